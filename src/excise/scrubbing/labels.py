"""Labels of one batch: which vectors count, and what the concept is there.

A batch brings one label per token (B, T), numbers per token (B, T, k), or one label per sequence (B,). Padding and
labels of -100 do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from excise.concepts.concept import Concept
from excise.concepts.encoded import Encoded
from excise.errors import ConceptError, InputError
from excise.numerics.arrays import host
from excise.scrubbing.inputs import moved

__all__ = ["IGNORED", "BatchLabels", "Labels", "read_labels"]

IGNORED = -100
Values = np.ndarray[Any, Any]


@dataclass(eq=False)
class Labels:
    """Of a batch with n = B * rows vectors."""

    keep: Values  # (n,) whether the vector counts
    values: Values  # (kept,) classes, or (kept, k) numbers
    _made: dict[Any, Any] = field(
        default_factory=dict, repr=False, compare=False
    )  # on devices, for all sites of a pass

    @property
    def kind(self) -> Any:
        return "categorical" if self.values.ndim == 1 else "continuous"

    @cached_property
    def all_kept(self) -> bool:
        return bool(self.keep.all())

    def index(self, device: Any) -> Any:
        """(kept,) numbers of the vectors that count, as a tensor on a device; moved there once."""
        return self._once(("index", device), lambda: _moved(np.flatnonzero(self.keep), device))

    def kept(self, rows: Any) -> Any:
        """Those of the rows (n, d) that count, without waiting for the device. All of them are the rows themselves."""
        return rows if self.all_kept else rows.index_select(0, self.index(rows.device))

    def encoded(self, concept: Concept, device: Any) -> Encoded:
        """The labels as codes of a concept; on a device they are moved there once."""

        def make() -> Encoded:
            found = concept.read(self.values)
            if device.type == "cpu" or not found.has_classes:
                return found
            return Encoded(found.n, found.k, device_codes=_moved(found.codes, device), counts=found.counts)

        encoded: Encoded = self._once(("codes", concept.k, device), make)
        return encoded

    def columns(self, concept: Concept, device: Any, dtype: Any) -> Any:
        """(k, kept) columns of a concept, as a tensor on a device."""
        return self._once(
            ("columns", concept.k, device, dtype),
            lambda: _moved(concept.read(self.values).dense().T.copy(), device).to(dtype),
        )

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


def _moved(array: Any, device: Any) -> Any:
    import torch

    return moved(torch.from_numpy(np.ascontiguousarray(array)), device)


class BatchLabels:
    """The labels of a batch, before it is known how many vectors the model makes of each example."""

    def __init__(
        self,
        concept: Any,
        examples: int,
        tokens: int | None = None,
        mask: Any = None,
        frames: Callable[[int], Any] | None = None,
    ) -> None:
        """
        Args:
            concept: (B, T) classes, (B, T, k) numbers, or one per example: (B,) classes or numbers, (B, 1, k) numbers.
            examples: B.
            tokens: T of a text; None where the model makes the vectors itself.
            mask: 0 where there is padding.
            frames: number of vectors -> (B, rows) which of them are no padding, where the mask is of samples.

        Raises:
            ConceptError: another shape than the batch has, or numbers that are not finite.
        """
        z = np.asarray(host(concept) if hasattr(concept, "dtype") else concept)
        if z.dtype.kind not in "iubfUS":
            raise ConceptError(f"concept must be integers, strings or numbers, got {z.dtype}")
        B, T = examples, "T" if tokens is None else tokens
        if z.shape == (B,):
            z = z[:, None, None] if z.dtype.kind == "f" else z[:, None]
        self.per_example = z.ndim >= 2 and z.shape[:2] == (B, 1) and (tokens is None or tokens != 1)
        if z.ndim not in (2, 3) or z.shape[0] != B or not (self.per_example or tokens is None or z.shape[1] == tokens):
            raise ConceptError(
                f"concept has shape {np.shape(concept)}, the batch has {B} x {T} tokens: expected ({B}, {T}) classes, "
                f"({B}, {T}, k) numbers, or ({B},) one class per sequence"
            )
        if z.ndim == 2 and z.dtype.kind == "f":
            raise ConceptError(
                f"concept has {z.dtype} labels of shape {z.shape}: pass integers for classes, or shape {(*z.shape, 1)} for numbers"
            )
        self.z, self.examples, self.tokens, self.frames = z, B, tokens, frames
        self.mask = None if mask is None else np.asarray(host(mask) if hasattr(mask, "dtype") else mask).astype(bool)
        counts = np.ones(z.shape, dtype=bool) if z.dtype.kind in "US" else z != IGNORED
        self.counts = counts.any(axis=2) if z.ndim == 3 else counts  # (B, T or 1)
        numbers = z[self.counts] if z.dtype.kind == "f" else z[:0]
        if z.dtype.kind == "f" and not np.isfinite(numbers).all():
            raise ConceptError(f"concept has {int((~np.isfinite(numbers)).sum())} numbers that are NaN or infinite")
        self._at: dict[tuple[int, str | None], Labels] = {}

    @property
    def known(self) -> Labels:
        """The labels as they are given, without padding where that is known."""
        if self.tokens is not None:
            return self.at(self.tokens)
        return Labels(self.counts.reshape(-1), self._numbers(self.z[self.counts]))

    def at(self, rows: int, extra: str | None = None) -> Labels:
        """Labels of B x `rows` vectors; `extra` says where there are more vectors than labels: "front" or "back".

        Raises:
            InputError: they cannot be matched.
        """
        if (rows, extra) not in self._at:
            self._at[rows, extra] = self._align(rows, extra)
        return self._at[rows, extra]

    def _align(self, rows: int, extra: str | None) -> Labels:
        length = rows if self.per_example and self.tokens is None else self.tokens or self.z.shape[1]
        if rows != length and (extra is None or rows < length):
            raise InputError(f"{self.examples * rows} vectors for {self.examples * length} tokens; choose another site")
        first = rows - length if extra == "front" else 0
        counts = np.zeros((self.examples, rows), dtype=bool)
        counts[:, first : first + length] = self.counts
        counts &= self._present(rows, first, length)
        keep = counts.reshape(-1)
        if self.per_example:
            return Labels(keep, self._numbers(np.repeat(self.z[:, 0], counts.sum(axis=1), axis=0)))
        return Labels(keep, self._numbers(self.z[counts[:, first : first + length]]))

    def _present(self, rows: int, first: int, length: int) -> Values:
        """(B, rows): no padding."""
        everything = np.ones((self.examples, rows), dtype=bool)
        if self.mask is None or (self.mask.ndim != 2 and self.tokens is not None):
            return everything
        if self.mask.shape == (self.examples, rows):
            return self.mask
        if self.mask.shape == (self.examples, length):
            out = ~everything
            out[:, first : first + length] = self.mask
            return out
        found = None if self.frames is None else self.frames(rows)
        if found is None:
            raise InputError(
                f"attention_mask has shape {self.mask.shape}, and the model makes {rows} vectors of each example: it is unknown "
                f"which of them are padding; leave attention_mask out and give padding the label {IGNORED}",
                code="mask-and-vectors",
            )
        return np.asarray(found, dtype=bool)

    @staticmethod
    def _numbers(values: Values) -> Values:
        return values.astype(np.float64) if values.ndim == 2 else values


def read_labels(concept: Any, tokens: tuple[int, int], mask: Any = None) -> Labels:
    """Labels of a batch of (B, T) tokens; `mask` (B, T) is 0 where there is padding.

    Integers and strings are classes, (B, T, k) are k columns of numbers, and (B,) is spread over the sequence. A position
    does not count where its label (all k of them) is -100.

    Raises:
        ConceptError: another shape than the tokens have, or numbers that are not finite.
    """
    return BatchLabels(concept, tokens[0], tokens[1], mask).at(tokens[1])
