"""Every method on the same split of the same data.

Three parts: the eraser is fitted on the first, the probes are trained on the second and measured on the third, both
erased. A probe that is trained on the eraser's own rows would find nothing there by theorem, and say nothing.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from excise.auditing.audit_data import erased_rows
from excise.auditing.comparison_words import best_methods, comparison_in_words
from excise.auditing.fairness import tpr_spread
from excise.auditing.probe_models import PROBES, sized_for
from excise.auditing.probes import CERTAIN, WRITES, score, standardised
from excise.errors import ConceptError, ExciseError, ExciseWarning, InputError
from excise.files import versions
from excise.fitting import fit
from excise.methods.checks import check_whole, class_codes
from excise.methods.table import METHODS
from excise.moments.labelled_rows import flat_labels
from excise.moments.statistics import not_finite
from excise.numerics.arrays import as_rows, check_features, host, to_compute_array
from excise.numerics.linalg import largest_correlation
from excise.tables import markdown, show, write_csv, write_json, write_text

__all__ = ["Comparison", "Measure", "Outcome", "compare", "run_method", "split_rows"]


GIVEN_TASK = "leace given y"  # LEACE with condition_on: what the concept says within every class of the task
NONLINEAR = ("radial basis functions", "boosted trees")


@dataclass(frozen=True)
class Outcome:
    """One method. Losses in bits per row, on held-out rows unless the name says otherwise."""

    method: str
    fitted_correlation: float | None  # largest |correlation| of a feature with the concept left on the fitting rows
    linear_loss: float | None
    linear_accuracy: float | None
    nonlinear_loss: float | None
    nonlinear_accuracy: float | None
    edit: float | None  # mean squared edit over total variance
    rank: int | None
    seconds: float | None  # to fit
    needs_labels: bool  # when it is applied
    task_accuracy: float | None = None
    tpr_gap: float | None = None  # RMS over task classes of the largest difference between groups
    linear_interval: tuple[float, float] | None = None  # 95%, of the loss, from the spread over held-out rows
    nonlinear_interval: tuple[float, float] | None = None
    nonlinear_probe: str = ""  # the one that lost least, of those tried
    writes: bool = False  # a probe finds clearly more after the edit than before
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """A table of methods; `print` it, or write it with to_html, to_json, to_csv, to_markdown."""

    outcomes: list[Outcome]
    constant_loss: float
    majority: float
    n_fit: int
    n_probe: int
    n_held_out: int
    d: int
    classes: list[Any]
    seed: int

    @property
    def verdict(self) -> list[str]:
        """The findings in words, the most important first."""
        return comparison_in_words(self)

    def best(self, column: str) -> set[str]:
        """The methods that are best in a column, to within their intervals; "none" does not compete."""
        return best_methods(self, column)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict, "versions": versions()}

    def to_json(self, path: str | os.PathLike[str]) -> None:
        write_json(path, self.to_dict())

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """One self-contained page with the table and the picture of concept loss against edit size."""
        from excise.reporting.page import comparison_page

        write_text(path, comparison_page(self))

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        write_csv(path, self.outcomes)

    def to_markdown(self) -> str:
        header = ["method", "linear loss", "linear acc.", "nonlinear loss", "edit", "rank", "seconds", "left on fit"]
        with_task = any(outcome.task_accuracy is not None for outcome in self.outcomes)
        header += ["task acc.", "TPR gap"] if with_task else []
        rows = []
        for o in self.outcomes:
            name = o.method + (" (labels)" if o.needs_labels else "")
            cells = [show(o.linear_loss, digits=4), show(o.linear_accuracy)]
            cells += [show(o.nonlinear_loss, digits=4) + (" !" if o.writes else "")]
            cells += [show(o.edit, digits=4), show(o.rank, digits=0), show(o.seconds)]
            cells += ["-" if o.fitted_correlation is None else f"{o.fitted_correlation:.0e}"]
            cells += [show(o.task_accuracy), show(o.tpr_gap)] if with_task else []
            rows.append([name, *cells])
        by_note: dict[str, list[str]] = {}
        for o in self.outcomes:
            if o.note:
                by_note.setdefault(o.note, []).append(o.method)
        notes = [f"- {', '.join(names)}: {note}" for note, names in by_note.items()]
        return "\n".join([markdown(header, rows), *(["", *notes] if notes else [])])

    def __str__(self) -> str:
        return (
            f"erasers fitted on {self.n_fit} rows, probes trained on {self.n_probe} others and measured on {self.n_held_out} more; "
            f"d = {self.d}, {len(self.classes)} classes; "
            f"the constant has a loss of {self.constant_loss:.4f} bits and accuracy {self.majority:.3f}\n\n"
            + "\n".join(self.verdict)
            + f"\n\n{self.to_markdown()}"
        )


def compare(
    X: Any,
    z: Any,
    methods: Sequence[str] | None = None,
    y: Any = None,
    seed: int = 0,
    groups: Any = None,
    options: dict[str, dict[str, Any]] | None = None,
    kind: Any = None,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Fit every method on half of the rows; train probes on 30% more, erased, and measure them on the last 20%.

    Args:
        X: features (..., d).
        z: classes, one per row.
        methods: names of METHODS, or "leace given y" (condition_on=y); all that can be fitted unless given (the last and
            splince need y; names of the same map come once).
        y: the task, one class per row: adds its accuracy and the TPR gap.
        seed: of the split and of the methods that draw at random.
        groups: rows of one group stay on one side of the split (e.g. all sentences about one person).
        options: per method, e.g. {"rlace": {"steps": 2000}}.
        kind: "categorical" where the labels do not say it themselves.
        progress: called with the name of each method before it starts.

    A method that fails is a row with the reason, not the end of the comparison.

    Raises:
        ConceptError: the concept is not one column of classes, or a class is too small to split.
    """
    X = check_features(X)
    if X.ndim < 2:
        raise InputError(f"X has shape {tuple(X.shape)}: expected (..., d), at least two dimensions")
    check_whole("seed", seed, 0)
    rows = host(as_rows(to_compute_array(X)))
    if not np.isfinite(rows).all():
        raise not_finite(rows)
    lead = tuple(X.shape[:-1])
    codes, names = class_codes(z, lead, len(rows), kind)
    task = None if y is None else class_codes(y, lead, len(rows), "categorical", "y (the task)")[0]
    usable = [
        m for m, about in METHODS.items() if about.same_map is None and (about.uses_task != "must" or y is not None)
    ]
    chosen = list(methods) if methods is not None else usable + ([GIVEN_TASK] if y is not None else [])
    unknown = [m for m in (*chosen, *(options or {})) if m not in (*METHODS, GIVEN_TASK)]
    if unknown:
        raise ExciseError(f"unknown method {unknown[0]!r}; there are {', '.join(METHODS)}, {GIVEN_TASK}", code="method")
    if GIVEN_TASK in chosen and y is None:
        raise ExciseError(f"{GIVEN_TASK!r} needs the task: pass y=", code="no-task")
    fit_rows, probe, held = split_rows(codes, None if groups is None else np.asarray(flat_labels(groups, lead)), seed)
    share = np.bincount(codes[probe]) / len(probe)
    constant = float(-np.log2(share[codes[held]]).mean())
    measure = Measure(rows, codes, task, fit_rows, probe, held, seed)
    outcomes = [measure("none", None, 0.0)]
    for name in chosen:
        if progress is not None:
            progress(name)
        outcomes.append(run_method(name, measure, (options or {}).get(name, {})))
    return Comparison(
        outcomes,
        constant,
        float((codes[held] == np.argmax(share)).mean()),
        len(fit_rows),
        len(probe),
        len(held),
        rows.shape[1],
        [list(n) if isinstance(n, tuple) else n for n in names],
        seed,
    )


def split_rows(codes: Any, groups: Any, seed: int) -> tuple[Any, Any, Any]:
    """Rows to fit the eraser (50%), to train the probes (30%) and to measure them (20%); by class, or by group."""
    from sklearn.model_selection import GroupShuffleSplit, train_test_split

    rows = np.arange(len(codes))
    smallest = int(np.bincount(codes).min())
    if smallest < 6:
        raise ConceptError(
            f"the smallest class has {smallest} rows: at least 6 are needed to fit, to probe and to measure"
        )
    if groups is None:
        first, rest = train_test_split(rows, test_size=0.5, stratify=codes, random_state=seed)
        second, third = train_test_split(rest, test_size=0.4, stratify=codes[rest], random_state=seed)
    else:
        if len(groups) != len(codes) or len(np.unique(groups)) < 6:
            raise InputError(
                f"groups must be one per row and at least 6, got {len(np.unique(groups))} on {len(groups)} rows"
            )
        first, rest = next(GroupShuffleSplit(1, test_size=0.5, random_state=seed).split(rows, groups=groups))
        inner = next(GroupShuffleSplit(1, test_size=0.4, random_state=seed).split(rest, groups=groups[rest]))
        second, third = (rest[part] for part in inner)
    if any(len(np.unique(codes[part])) < len(np.unique(codes)) for part in (first, second)):
        raise ConceptError("the split leaves a class without rows to fit on: its rows are all of one group, or too few")
    return np.sort(first), np.sort(second), np.sort(third)


def run_method(name: str, measure: Measure, options: dict[str, Any]) -> Outcome:
    """Fit one method on its part of the rows and measure it; a failure is an outcome that says why."""
    data, at = measure, measure.fit_rows
    method = METHODS["leace" if name == GIVEN_TASK else name]
    if method.seeded:
        options = {"seed": data.seed, **options}
    start = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            task = data.task[at] if method.uses_task == "must" and data.task is not None else None
            if name == GIVEN_TASK:
                eraser = fit(data.X[at], data.codes[at], "leace", condition_on=data.task[at], **options)
            else:
                eraser = fit(data.X[at], data.codes[at], name, y=task, **options)
        seconds = time.perf_counter() - start
        said = "; ".join(dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, ExciseWarning)))
        return replace(measure(name, eraser, seconds), note=said)
    except Exception as error:  # the other methods go on
        return Outcome(
            name, None, None, None, None, None, None, None, None, method.labels_to_apply, note=f"not fitted: {error}"
        )


class Measure:
    """The data and the split; called with an eraser it gives the figures."""

    def __init__(self, X: Any, codes: Any, task: Any, fit_rows: Any, probe: Any, held: Any, seed: int) -> None:
        self.X, self.codes, self.task, self.seed = X, codes, task, seed
        self.fit_rows, self.probe, self.held = fit_rows, probe, held
        self.clean: tuple[Any, Any] | None = None  # losses of the probes on rows that nobody edited

    def _writes(self, *losses: Any) -> bool:
        """Does a probe lose clearly less than on the rows before the edit?"""
        if self.clean is None:
            return False
        gains = [before - after for before, after in zip(self.clean, losses, strict=True)]
        return any(float(g.mean() - CERTAIN * g.std() / np.sqrt(len(g))) > WRITES for g in gains)

    def __call__(self, name: str, eraser: Any, seconds: float) -> Outcome:
        X, codes, a, b = self.X, self.codes, self.probe, self.held
        erased = X if eraser is None else erased_rows(eraser, X, codes)
        X, erased = np.asarray(X, dtype=np.float64), np.asarray(erased, dtype=np.float64)
        train, test = standardised(erased[a], erased[b], X[a].std(axis=0))
        linear = _probed("logistic regression", train, codes[a], test, codes[b], self.seed)
        nonlinear = min(
            (_probed(name, train, codes[a], test, codes[b], self.seed) for name in NONLINEAR), key=lambda p: p.mean
        )
        if eraser is None:
            self.clean = (linear.loss, nonlinear.loss)
        centred = X[b] - X[a].mean(axis=0)
        figures: dict[str, Any] = {}
        if self.task is not None:
            figures = _task(train, self.task[a], test, self.task[b], codes[b])
        return Outcome(
            method=name,
            fitted_correlation=largest_correlation(erased[self.fit_rows], codes[self.fit_rows]),
            linear_loss=linear.mean,
            linear_accuracy=linear.accuracy,
            nonlinear_loss=nonlinear.mean,
            nonlinear_accuracy=nonlinear.accuracy,
            edit=float(((erased[b] - X[b]) ** 2).sum() / (centred**2).sum()),
            rank=0 if eraser is None else eraser.rank,
            seconds=seconds,
            needs_labels=eraser is not None and eraser.needs_labels,
            linear_interval=linear.interval,
            nonlinear_interval=nonlinear.interval,
            nonlinear_probe=nonlinear.name,
            writes=self._writes(linear.loss, nonlinear.loss),
            **figures,
        )


@dataclass(frozen=True)
class _Probed:
    name: str
    loss: Any  # (n,) bits
    accuracy: float

    @property
    def mean(self) -> float:
        return float(self.loss.mean())

    @property
    def interval(self) -> tuple[float, float]:
        half = 1.96 * float(self.loss.std()) / float(np.sqrt(len(self.loss)))
        return self.mean - half, self.mean + half


def _probed(name: str, X: Any, z: Any, X_new: Any, z_new: Any, seed: int) -> _Probed:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = sized_for(PROBES[name][1], X, z, seed).fit(X, z)
    linear = PROBES[name][0]  # sure of no single row: its probabilities are taken as they are
    loss, right = score(model, X_new, z_new, np.bincount(z) / len(z), mixed=0.0 if linear else 0.01)
    return _Probed(name, loss, float(right.mean()))


def _task(X: Any, y: Any, X_new: Any, y_new: Any, groups: Any) -> dict[str, float | None]:
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(max_iter=2000).fit(X, y)
    said = model.predict(X_new)
    return {"task_accuracy": float((said == y_new).mean()), "tpr_gap": tpr_spread(said, y_new, groups)}
