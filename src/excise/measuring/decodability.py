"""How well a linear classifier finds the concept at every site of a model, before and after scrubbing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from excise.errors import InputError
from excise.files import versions
from excise.measuring.classifiers import activations, constant, fitted_scores, held_out_scores
from excise.scrubbing.sites import find_sites
from excise.tables import markdown, show, write_csv, write_json

__all__ = ["Decodability", "SiteFigures", "decodability"]

HELD_AT_ONCE = 2**30  # bytes of activations; more sites than fit are read in several passes


@dataclass(frozen=True)
class SiteFigures:
    """Loss (nats) and accuracy of the best linear classifier at a site. `after` is under the scrubber."""

    site: str
    loss_before: float
    accuracy_before: float
    loss_after: float | None = None
    accuracy_after: float | None = None
    held_loss_before: float | None = None
    held_accuracy_before: float | None = None
    held_loss_after: float | None = None
    held_accuracy_after: float | None = None


@dataclass(frozen=True)
class Decodability:
    """A row per site, in the order of the model.

    Fitted figures are of the tokens that the classifier (and the eraser) was fitted on; held-out ones of a classifier that was
    trained on half of other text and measured on the other half, `held_tokens` in number.
    """

    rows: list[SiteFigures]
    constant_loss: float
    majority: float
    tokens: int
    held_constant_loss: float | None = None
    held_majority: float | None = None
    held_tokens: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "versions": versions()}

    def to_json(self, path: str | os.PathLike[str]) -> None:
        write_json(path, self.to_dict())

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        write_csv(path, self.rows)

    def to_markdown(self) -> str:
        names = [name for name in asdict(self.rows[0]) if any(getattr(row, name) is not None for row in self.rows)][1:]
        head = ["site", *(name.replace("_", " ").replace("held", "held-out") for name in names)]
        own: dict[str, float | None] = {"loss": self.constant_loss, "accuracy": self.majority}
        own |= {"held_loss": self.held_constant_loss, "held_accuracy": self.held_majority}
        rows = [[row.site, *(show(getattr(row, name), digits=4) for name in names)] for row in self.rows]
        rows.append(["(constant)", *(show(own[name.rsplit("_", 1)[0]], digits=4) for name in names)])
        return markdown(head, rows)

    def __str__(self) -> str:
        held = (
            ""
            if self.held_tokens is None
            else f"; held out: trained on half of other text, measured on {self.held_tokens:,} tokens of the rest"
        )
        return f"linear classifiers trained on {self.tokens:,} tokens{held}\n\n{self.to_markdown()}"


def decodability(
    model: torch.nn.Module,
    batches: Iterable[Mapping[str, Any]],
    scrubber: Any = None,
    held_out: Iterable[Mapping[str, Any]] | None = None,
    sites: Any = None,
    max_tokens: int | None = None,
) -> Decodability:
    """The best linear loss and accuracy for the concept at every site, before and after scrubbing.

    On the batches that the scrubber was fitted on, all of them, LEACE leaves no more than the constant's loss: that is the
    theorem. With `max_tokens`, or on other text, classifiers find what chance leaves there, about d (k - 1) / (2 n) nats.
    Fitted figures are those of the classifier without penalty. Held-out ones are of classifiers with a ridge of 0.001 (on
    whitened activations, mean loss), trained on every second batch of other text, erased, and measured on the rest of it.

    Args:
        model, batches: as for `excise.scrub`; integer labels.
        scrubber: adds the figures after erasure. Without it only those before are measured.
        held_out: batches of other text to measure on.
        sites: as for `excise.scrub`; those of the scrubber unless given.
        max_tokens: use only so many tokens of each.

    Raises:
        InputError, ConceptError: no batches, or labels that are not classes.
    """
    first = next(iter(batches), None)
    if first is None:
        raise InputError("there are no batches: the data set is empty")
    if sites is None and scrubber is not None:
        paths: Sequence[str] = list(scrubber.erasers)
    else:
        paths = find_sites(model, first, sites).paths
    rows: list[SiteFigures] = []
    remaining = iter(paths)
    while part := list(islice(remaining, _sites_at_once(model, batches, max_tokens))):
        figures: dict[str, dict[str, Any]] = {site: {} for site in part}
        for when, at_work in [("before", None), *([("after", scrubber)] if scrubber is not None else [])]:
            new = None if held_out is None else activations(model, held_out, part, at_work, max_tokens)
            split = None if new is None else new.trains
            own = activations(model, batches, part, at_work, max_tokens)
            for site in part:
                scores = dict(zip(("loss", "accuracy"), fitted_scores(own.sites.pop(site), own.labels), strict=True))
                if new is not None:
                    found = held_out_scores(new.sites.pop(site), new.labels, split)
                    scores |= dict(zip(("held_loss", "held_accuracy"), found, strict=True))
                figures[site] |= {f"{name}_{when}": score for name, score in scores.items()}
        rows += [SiteFigures(site, **figures[site]) for site in part]
    loss, majority = constant(own.labels)
    if new is None or split is None:
        return Decodability(rows, loss, majority, len(own.labels))
    held = constant(new.labels[split], new.labels[~split])
    return Decodability(rows, loss, majority, len(own.labels), *held, int((~split).sum()))


def _sites_at_once(model: torch.nn.Module, batches: Iterable[Mapping[str, Any]], max_tokens: int | None) -> int:
    width = int(getattr(getattr(model, "config", None), "hidden_size", 4096))
    tokens = sum(int(np.prod(np.shape(batch["input_ids"]))) for batch in batches)
    return max(1, HELD_AT_ONCE // (4 * width * min(tokens, max_tokens or tokens)))
