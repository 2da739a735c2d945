"""Amnesic probing: erase the concept from the residual stream at one layer at a time, and see what the model loses.

Each eraser is fitted on the clean model's states, is the only one at work while the model is measured, and is followed by a
linear classifier that says what it left.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from excise.errors import ExciseError, ExciseWarning, InputError
from excise.files import versions
from excise.measuring.classifiers import Rows, activations, constant, fitted_scores, held_out_scores
from excise.measuring.evaluation import evaluate_each
from excise.measuring.figures import Evaluation
from excise.measuring.kinds import check_kind, kind_of
from excise.methods.table import METHODS, check_method
from excise.scrubbing.edits import apply_eraser
from excise.scrubbing.loop import scrub
from excise.scrubbing.scrubber import Scrubber
from excise.scrubbing.sites import find_sites
from excise.tables import markdown, show, write_csv, write_json

__all__ = ["Amnesic", "LayerFigures", "amnesic"]


@dataclass(frozen=True)
class LayerFigures:
    """One method at one layer: what the model does then, and what a linear classifier still finds there."""

    layer: int
    site: str
    method: str
    rank: int
    loss: float  # of a masked model: with masked inputs
    loss_se: float | None
    accuracy: float
    accuracy_se: float | None
    kl: float | None
    unmasked_loss: float | None
    unmasked_loss_se: float | None
    unmasked_accuracy: float | None
    unmasked_accuracy_se: float | None
    probe_loss: float  # of the best linear classifier, on the tokens that it and the eraser were fitted on
    probe_accuracy: float
    held_probe_loss: float | None
    held_probe_accuracy: float | None


@dataclass(frozen=True)
class Amnesic:
    """A row per layer and method; method "none" is the clean model, and what a classifier finds before erasure."""

    rows: list[LayerFigures]
    kind: str
    constant_loss: float  # for the concept
    majority: float
    held_constant_loss: float | None
    held_majority: float | None
    fitted_tokens: int
    predicted_tokens: int
    sequences: int
    notes: list[str]
    seed: int

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "versions": versions()}

    def to_json(self, path: str | os.PathLike[str]) -> None:
        write_json(path, self.to_dict())

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        write_csv(path, self.rows)

    def to_markdown(self) -> str:
        masked = self.kind == "masked"
        head = ["layer", "method", "rank"]
        head += ["unmasked loss", "unmasked acc.", "masked loss", "masked acc."] if masked else ["loss", "accuracy"]
        head += ["KL from clean", "concept loss", "concept acc."]
        head += ["held-out loss", "held-out acc."] if self.held_majority is not None else []
        lines = []
        for r in self.rows:
            cells = [str(r.layer), r.method, str(r.rank)]
            if masked:
                cells += [show(r.unmasked_loss, r.unmasked_loss_se), show(r.unmasked_accuracy, r.unmasked_accuracy_se)]
            cells += [show(r.loss, r.loss_se), show(r.accuracy, r.accuracy_se), show(r.kl)]
            cells += [show(r.probe_loss), show(r.probe_accuracy)]
            if self.held_majority is not None:
                cells += [show(r.held_probe_loss), show(r.held_probe_accuracy)]
            lines.append(cells)
        return "\n".join([markdown(head, lines), *(["", *(f"- {note}" for note in self.notes)] if self.notes else [])])

    def __str__(self) -> str:
        held = (
            ""
            if self.held_majority is None
            else f" ({self.held_constant_loss:.3f} and {self.held_majority:.3f} held out)"
        )
        return (
            f"erasers fitted on {self.fitted_tokens:,} tokens; {self.kind} language model measured on {self.predicted_tokens:,} "
            f"predicted tokens in {self.sequences:,} sequences, ± one standard error; for the concept the constant has loss "
            f"{self.constant_loss:.3f} and accuracy {self.majority:.3f}{held}\n\n{self.to_markdown()}"
        )


def amnesic(
    model: torch.nn.Module,
    batches: Iterable[Mapping[str, Any]],
    methods: Sequence[str] = ("leace", "inlp", "random"),
    held_out: Iterable[Mapping[str, Any]] | None = None,
    layers: Sequence[int] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
    progress: bool = True,
    kind: str | None = None,
) -> Amnesic:
    """Loss and accuracy of a language model with a concept erased from the residual stream after one block at a time.

    Args:
        model: with a language-modelling head, causal or masked.
        batches: to fit erasers and classifiers on, as for `excise.scrub`; classes.
        methods: names of methods that `excise.scrub` takes. INLP and RLACE train on the rows and take long.
        held_out: to measure on, at least two batches; the fitting batches unless given. Classifiers for the held-out figures
            are trained on every second batch, erased, and measured on the others.
        layers: numbers of blocks, from 0; all unless given.
        options: per method, e.g. {"inlp": {"rounds": 20}}.
        seed: of the masks, and of methods that draw at random where options do not say it.
        progress: show bars on the terminal.
        kind: "causal" or "masked"; see `kind_of` for how it is found unless given.

    Raises:
        ExciseError: unknown methods or layers, no language-modelling head, no batches; before any long work.
    """
    wanted = {method: dict((options or {}).get(method, {})) for method in methods}
    for method in wanted:
        found = check_method(method, wanted[method])
        if found.uses_task == "must" or found.needs == "class moments" or found.labels_to_apply:
            raise ExciseError(
                f"method {method!r} cannot be used for amnesic probing: it needs labels when it is applied"
            )
    unknown = set(options or {}) - set(wanted)
    if unknown:
        raise ExciseError(f"options for {sorted(unknown)[0]!r}, which is not among the methods {', '.join(wanted)}")
    first = next(iter(batches), None)
    if first is None:
        raise InputError("there are no batches: the data set is empty")
    kind = check_kind(kind) or kind_of(model, first)
    paths = find_sites(model, first, "residual").paths
    chosen = range(len(paths)) if layers is None else list(layers)
    if not chosen or any(not 0 <= layer < len(paths) for layer in chosen):
        raise ExciseError(f"layers must be numbers from 0 to {len(paths) - 1}, got {list(chosen)}")
    sites = {layer: paths[layer] for layer in chosen}
    new = None if held_out is None else activations(model, held_out, list(sites.values()))
    split = None if new is None else new.trains  # refuses a single batch before any long work
    scrubbers, notes = _fit(model, batches, wanted, list(sites.values()), seed, progress)
    alone = {"none": None} | {
        f"{method} {layer}": _only(scrubber, site)
        for method, scrubber in scrubbers.items()
        for layer, site in sites.items()
    }
    measured = held_out if held_out is not None else batches
    table = evaluate_each(model, measured, alone, kind=kind, seed=seed, progress=progress)
    own = activations(model, batches, list(sites.values()))
    rows = []
    for layer, site in sites.items():
        for method in ("none", *wanted):
            eraser = None if method == "none" else scrubbers[method].erasers[site]
            probe = _probed(eraser, site, own, new)
            row = table["none" if method == "none" else f"{method} {layer}"]
            rows.append(_row(layer, site, method, 0 if eraser is None else eraser.rank, row, probe))
    loss, majority = constant(own.labels)
    held_loss, held_majority = None, None
    if new is not None and split is not None:
        held_loss, held_majority = constant(new.labels[split], new.labels[~split])
    sizes = len(own.labels), table["none"].tokens, table["none"].sequences
    return Amnesic(rows, kind, loss, majority, held_loss, held_majority, *sizes, notes, seed)


def _fit(
    model: torch.nn.Module,
    batches: Iterable[Mapping[str, Any]],
    wanted: Mapping[str, dict[str, Any]],
    sites: list[str],
    seed: int,
    progress: bool,
) -> tuple[dict[str, Scrubber], list[str]]:
    """All layers of a method at once, each on the clean model's states; and what was said on the way."""
    scrubbers, notes = {}, []
    for method, own in wanted.items():
        drawn = {"seed": seed, **own} if METHODS[method].seeded else own
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ExciseWarning)
            scrubbers[method] = scrub(model, batches, method, sites, progress=progress, sequential=False, **drawn)
        for warning in caught:
            if issubclass(warning.category, ExciseWarning):
                notes.append(f"{method}: {warning.message}")
            else:
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return scrubbers, notes


def _only(scrubber: Scrubber, site: str) -> Scrubber:
    return Scrubber({site: scrubber.erasers[site]}, {}, scrubber.identity, scrubber.about)


def _probed(eraser: Any, site: str, own: Rows, new: Rows | None) -> dict[str, Any]:
    """Figures of classifiers trained on what the eraser leaves."""

    def left(rows: Any) -> Any:
        return rows if eraser is None else apply_eraser(eraser, site, torch.from_numpy(rows).double(), None).numpy()

    fitted = fitted_scores(left(own.sites[site]), own.labels)
    held = (None, None) if new is None else held_out_scores(left(new.sites[site]), new.labels, new.trains)
    names = ("probe_loss", "probe_accuracy", "held_probe_loss", "held_probe_accuracy")
    return dict(zip(names, (*fitted, *held), strict=True))


def _row(layer: int, site: str, method: str, rank: int, found: Evaluation, probe: dict[str, Any]) -> LayerFigures:
    names = ["loss", "loss_se", "accuracy", "accuracy_se", "kl", "unmasked_loss", "unmasked_loss_se"]
    names += ["unmasked_accuracy", "unmasked_accuracy_se"]
    return LayerFigures(layer, site, method, rank, **{name: getattr(found, name) for name in names}, **probe)
