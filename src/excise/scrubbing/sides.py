"""Which labels belong to the vectors at a site: those of the input, or those of a decoder's tokens; and in which rows.

A model may have more vectors than there are labels: a class token before the patches of an image, virtual tokens before
those of a text, padding after them. Whether the extra rows come first or last is found by changing the end of the input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch

from excise.errors import ExciseError, InputError
from excise.scrubbing.addresses import address
from excise.scrubbing.capture import Stop, evaluating, hooked, run
from excise.scrubbing.flow import Value
from excise.scrubbing.inputs import main_input, names_taken, tokens_of
from excise.scrubbing.trace import Call

__all__ = ["CONCEPTS", "Sides", "check_decoder"]

CONCEPTS = ("concept", "decoder_concept")


class Sides:
    """The sides of one model: a text has one, an encoder-decoder has two."""

    def __init__(
        self, model: torch.nn.Module, inputs: Mapping[str, Any], batch: Mapping[str, Any], entries: Iterable[Call]
    ) -> None:
        """
        Args:
            model: the model.
            inputs: of the traced sample.
            batch: the whole batch, for the shapes of its labels.
            entries: the calls of the first blocks.
        """
        self.model, self.inputs = model, inputs
        self.main = main_input(inputs)
        decoder = next((inputs[n] for n in ("decoder_input_ids", "decoder_inputs_embeds") if n in inputs), None)
        self.given = [name for name in CONCEPTS if batch.get(name) is not None] or list(CONCEPTS)
        text = tokens_of(inputs)
        self.lengths: dict[str, int | None] = {
            "concept": text[1] if text is not None else _labels_per_example(batch.get("concept")),
            "decoder_concept": None if decoder is None else int(decoder.shape[1]),
        }
        self.is_text = text is not None
        entries = list(entries)
        # Rows of (T, B) without their shape would be taken for rows of (B, T).
        self.flat_is_time_first = any(self.time_first(entry.address + ":in", entry) for entry in entries)
        # Vectors per example that labels can be matched with: one per label, or those that enter a stack of blocks.
        entering = {self.rows(entry.address + ":in", entry) for entry in entries if self.of(entry.hidden) == "concept"}
        self.entering = entering - {None}

    def of(self, value: Value | None) -> str | None:
        """The name of the labels of a tensor; None if there are none for it."""
        if value is None:
            return None
        names = value.inputs
        side = "decoder_concept" if any(name.startswith("decoder_") for name in names) else None
        if side is None and self.main in names:
            side = "concept"
        return side if side in self.given else None

    def labelled(self, site: str, call: Call) -> bool:
        """Whether there is a label for every vector of a site, or for some of them and the rest is known to have none."""
        side, rows = self.of(_value(site, call)), self.rows(site, call)
        return side is not None and rows is not None and self._fits(side, rows)

    def rows(self, site: str, call: Call) -> int | None:
        """Vectors of one example at a site; None where it does not hold one vector per row."""
        shape = call.shape_in if address(site).inside else call.shape_out
        if shape is None or len(shape) < 2:
            return None
        known = self.lengths[self.of(_value(site, call)) or "concept"]
        rows = int(np.prod(shape[:-1]))
        if len(shape) == 2:
            return None if self.flat_is_time_first else rows
        regular = len(shape) == 3 and 1 in shape[:2]
        return rows if regular or (rows == known and shape[0] == 1) else None

    def time_first(self, site: str, call: Call) -> bool:
        """Whether the vectors of a site come in the order (T, B)."""
        shape = call.shape_in if address(site).inside else call.shape_out
        return shape is not None and len(shape) == 3 and shape[0] > 1 and shape[1] == 1

    def _fits(self, side: str, rows: int) -> bool:
        length = self.lengths[side]
        return length is None or rows == length or (side == "concept" and rows > length and rows in self.entering)

    def check(self, site: str, call: Call) -> None:
        """
        Raises:
            ExciseError: a site without a vector per token, or without labels.
        """
        side, rows = self.of(_value(site, call)), self.rows(site, call)
        if side is None:
            raise ExciseError(
                f"{site}: the batches have no labels for what it holds ({' and '.join(self.given)} are given)"
            )
        if rows is None or not self._fits(side, rows):
            shape = call.shape_in if address(site).inside else call.shape_out
            raise ExciseError(
                f"{site} holds no vector per token (shape {shape} for 1 x {self.lengths[side] or '?'} tokens)"
            )

    def extra_rows(self, entry: Call) -> str | None:
        """Where rows stand for which there are no labels: "front", "back", or None if there are none.

        `entry` is the call of the first block.
        """
        length = self.lengths["concept"]
        rows = self.rows(entry.address + ":in", entry)
        if length is None or rows is None or rows == length:
            return None
        before, after = (self._entering(entry, inputs) for inputs in (self.inputs, self._changed))
        moved = (before != after).reshape(rows, -1).any(dim=1)
        if bool(moved[-1]):
            return "front"
        if bool(moved[length - 1]):
            return "back"
        raise ExciseError(
            f"{entry.path} reads {rows} vectors for {length} labels, and the last input is none of the last vectors: give one label "
            f"per vector, -100 where there is none",
            code="rows-and-labels",
        )

    def _entering(self, entry: Call, inputs: Mapping[str, Any]) -> torch.Tensor:
        found: list[torch.Tensor] = []

        def visit(_: str, x: torch.Tensor) -> None:
            found.append(x.clone())
            raise Stop

        with evaluating(self.model), hooked(self.model, [entry.address + ":in"], visit):
            run(self.model, inputs)
        return found[0]

    @cached_property
    def _changed(self) -> dict[str, Any]:
        """The same sample with another end."""
        x = self.inputs[self.main].clone()
        if not self.is_text:
            x[..., -max(1, x.shape[-1] // 50) :] += 1.0
            return {**self.inputs, self.main: x}
        if x.is_floating_point():
            x[:, -1] += 1.0
        else:
            other = x[x != x[0, -1]]
            x[:, -1] = other[0] if len(other) else (x[0, -1] + 1) % 2
        return {**self.inputs, self.main: x}


def check_decoder(model: torch.nn.Module, inputs: Mapping[str, Any]) -> None:
    """
    Raises:
        InputError: an encoder-decoder without tokens for its decoder.
    """
    given = any(name in inputs for name in ("decoder_input_ids", "decoder_inputs_embeds"))
    if not given and "decoder_input_ids" in names_taken(model):
        raise InputError(
            f"{type(model).__name__} is an encoder-decoder: a batch needs decoder_input_ids (B, T) too, with 'concept' for the "
            f"labels of the encoder's tokens and 'decoder_concept' for the decoder's, one of them or both; to scrub the "
            f"encoder alone, pass model.get_encoder()",
            code="decoder-input",
        )


def _value(site: str, call: Call) -> Value | None:
    return call.hidden if address(site).inside else call.output


def _labels_per_example(concept: Any) -> int | None:
    """T of labels (B, T) or (B, T, k); None for one label per example, or none at all."""
    shape: tuple[int, ...] = np.shape(concept) if concept is not None else ()
    return shape[1] if len(shape) >= 2 and shape[1] > 1 else None
