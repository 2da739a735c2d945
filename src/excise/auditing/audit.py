"""`excise.audit`: all sections, in order, from one set of rows."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np

from excise.auditing.audit_data import AuditData, read_audit_data, take
from excise.auditing.cost import cost_of
from excise.auditing.fairness import Fairness, fairness_of
from excise.auditing.guardedness import gather_evidence, guardedness
from excise.auditing.held_out import HeldOut, held_out, refitted
from excise.auditing.pictures import views_of
from excise.auditing.probes import ProbeResult, run_probes
from excise.auditing.report import Report
from excise.auditing.splits import Part, chosen_rows, rotations
from excise.auditing.verdict import write_verdict
from excise.errors import ConceptError, InputError
from excise.files import versions
from excise.methods.checks import check_whole, class_codes
from excise.moments.labelled_rows import flat_labels
from excise.progress import Progress

__all__ = ["audit"]

HELD_OUT_ROWS, PROBE_ROWS = 40_000, 20_000
QUICK_HELD_OUT_ROWS, QUICK_PROBE_ROWS = 10_000, 4_000
SAME = {"random_projection": "random", "mean_projection": "sal"}  # names of one map


def audit(
    X: Any,
    z: Any,
    eraser: Any = None,
    X_erased: Any = None,
    y: Any = None,
    refit: Any = None,
    seed: int = 0,
    *,
    groups: Any = None,
    kind: Any = None,
    quick: bool = False,
    progress: bool = False,
) -> Report:
    """Is the concept gone, what did it cost, what is left beyond the guarantee?

    Args:
        X: features (..., d) before the edit; a memory map is read in batches.
        z: the concept, one label per row: see `Concept.of`.
        eraser: what is audited: an eraser (`excise.fit`, `excise.load`) or any function of X.
        X_erased: or its result, the same rows as X. Neither: X is audited as it is.
        y: the main task, one class per row: adds the fairness figures.
        refit: a method ("leace") or a function of (X, z) that gives an eraser: adds the cross-fitted figures. Pass what
            made the eraser.
        seed: of all splits, samples and probes.
        groups: rows of one group stay on one side of a split (all sentences about one person).
        kind: "categorical" or "continuous" where the labels do not say it themselves.
        quick: fewer rows for the probes and no second closed-form check; all rows count for the conditions all the same.
        progress: a bar on the error stream, where that is a terminal.

    Raises:
        InputError: shapes that do not match, NaN or infinity.
        ConceptError: labels of one class, or of another number than rows.

    >>> import numpy as np, excise
    >>> rng = np.random.default_rng(0)
    >>> z = rng.integers(0, 2, 400)
    >>> X = rng.standard_normal((400, 4)) + z[:, None]
    >>> excise.audit(X, z, quick=True).guarded
    False
    >>> report = excise.audit(X, z, eraser=excise.fit(X, z), quick=True)
    >>> report.guarded, report.held_out is None
    (True, True)
    """
    check_whole("seed", seed, 0)
    start = time.perf_counter()
    data = read_audit_data(X, z, eraser, X_erased, kind)
    lead = tuple(getattr(X, "shape", np.shape(X)))[:-1]
    task = None if y is None else class_codes(y, lead, data.n, what="y (the task)")
    grouped = _check_groups(groups, lead, data.n)
    fit_again = None if refit is None else refitted(refit, kind)
    notes: list[str] = []
    absent: dict[str, str] = {}
    _check_same(eraser, refit, notes)

    with Progress(4 + 10 + (5 if refit is not None else 0), "audit", "steps", progress) as bar:
        step = bar.step
        step(f"moments of {data.n:,} rows")
        evidence = gather_evidence(data, quick, seed)
        found = evidence.first
        step("conditions")
        g = guardedness(data, evidence)
        if quick:
            notes.append("quick: the closed-form check by QR of the rows was left out")
        h, probes, fair = _held_out_and_probes(
            data, task, grouped, fit_again, quick, seed, found.scale, notes, absent, step
        )
        step("cost of the edit")
        cost = None
        if data.edited:
            cost = cost_of(data, found.before, evidence.second)
        else:
            absent["cost"] = "no eraser and no erased rows were given"
        views = views_of(data, np.array(g.first_direction), found.scale, seed)
    return Report(
        g.guarded,
        write_verdict(data, g, h, probes, cost, fair),
        g,
        h,
        probes,
        cost,
        fair,
        absent,
        views,
        _describe_data(data, task),
        {
            "seed": seed,
            "quick": quick,
            "refit": refit if refit is None or isinstance(refit, str) else getattr(refit, "__name__", "function"),
            "eraser": _describe_eraser(data),
            "versions": _versions(),
            "seconds": round(time.perf_counter() - start, 2),
        },
        notes,
    )


def _held_out_and_probes(
    data: AuditData,
    task: Any,
    groups: Any,
    refit: Any,
    quick: bool,
    seed: int,
    scale: Any,
    notes: list[str],
    absent: dict[str, str],
    step: Any,
) -> tuple[HeldOut | None, list[ProbeResult], Fairness | None]:
    """The sections that split the rows. A split that cannot be made is said, and the rest goes on."""
    h = None
    try:
        if refit is None:
            absent["held out"] = (
                "it needs refit= (a method name, or the function that made the eraser), to fit again without the rows it is "
                "measured on"
            )
        else:
            index, said = chosen_rows(data.target, QUICK_HELD_OUT_ROWS if quick else HELD_OUT_ROWS, seed)
            h = held_out(data, rotations(data.target, index, groups, seed), refit, seed, said, step, groups)
        index, said = chosen_rows(data.target, QUICK_PROBE_ROWS if quick else PROBE_ROWS, seed + 1)
        part = rotations(data.target, index, groups, seed)[0]
        if refit is None:  # no eraser is fitted: the probes get those rows too
            part = Part(part.erase, np.sort(np.concatenate([part.erase, part.train])), part.test)
    except ConceptError as error:
        for section in ("held out", "probes", *(("fairness",) if task is not None else ())):
            absent[section] = str(error)
        return None, [], None
    before, after, where = _before_and_after(data, part, refit)
    notes += [f"probes: {note}" for note in [*said, *where]]
    step("probes")
    truth = tuple(data.truth(rows) for rows in (part.train, part.test))
    second = None if task is None else task[0][part.train]
    probes, failed = run_probes(before, after, truth, second, scale, seed, step)
    notes += failed
    return h, probes, _fairness(data, task, part, before, after, scale, where, absent)


def _before_and_after(data: AuditData, part: Part, refit: Any) -> tuple[Any, Any, list[str]]:
    before = tuple(data.before(rows) for rows in (part.train, part.test))
    if refit is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said in the section on held-out rows
            eraser = refit(np.asarray(data.X[part.erase]), take(data.z, part.erase))
        after = tuple(data.erased_by(eraser, rows) for rows in (part.train, part.test))
        return before, after, ["the eraser was fitted again on other rows than the probes were trained and tested on"]
    if not data.edited:
        return before, before, []
    after = tuple(data.after(rows) for rows in (part.train, part.test))
    return (
        before,
        after,
        [
            "the eraser may have seen these rows; then what is left in the test rows is the opposite of what is left in the training "
            "rows, and linear probes look worse than the constant: refit= measures it on unseen rows"
        ],
    )


def _fairness(
    data: AuditData,
    task: Any,
    part: Part,
    before: Any,
    after: Any,
    scale: Any,
    notes: list[str],
    absent: dict[str, str],
) -> Fairness | None:
    if task is None:
        absent["fairness"] = "no task was given: pass y=, one class per row"
        return None
    if data.target.codes is None:
        absent["fairness"] = "the concept is numbers or several columns, not groups"
        return None
    codes, names = task
    if len(np.unique(codes[part.train])) < 2:
        absent["fairness"] = "the task has one class only in the training rows"
        return None
    share = np.zeros((len(names), data.target.k))
    np.add.at(share, (codes, data.target.codes), 1.0)
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1.0)
    return fairness_of(
        before,
        after,
        (codes[part.train], codes[part.test]),
        data.target.codes[part.test],
        share,
        ([list(n) if isinstance(n, tuple) else n for n in names], data.target.names),
        scale,
        notes + (["the eraser is given the labels of the test rows too"] if data.needs_labels else []),
    )


def _check_same(eraser: Any, refit: Any, notes: list[str]) -> None:
    """What is fitted again must be what is audited.

    Raises:
        InputError: the eraser says that another method made it.
    """
    if refit is None:
        return
    method = getattr(eraser, "info", {}).get("method") if eraser is not None else None
    method = SAME.get(str(method), method)
    if isinstance(refit, str) and method is not None and method != SAME.get(refit, refit):
        raise InputError(f"refit={refit!r}, but the eraser was made by {method!r}: pass refit={method!r}")
    if method is None or not isinstance(refit, str):
        notes.append("figures on unseen rows are of refit=, which could not be checked to be what made these rows")


def _check_groups(groups: Any, lead: tuple[int, ...], n: int) -> Any:
    if groups is None:
        return None
    flat = np.asarray(flat_labels(groups, lead)).reshape(-1)
    if len(flat) != n:
        raise InputError(f"X has {n} rows, but there are {len(flat)} groups: pass one group per row")
    try:
        return np.unique(flat, return_inverse=True)[1].reshape(-1)
    except TypeError:
        raise InputError("groups mixes values of several types (or has None): pass numbers or strings alone") from None


def _describe_data(data: AuditData, task: Any) -> dict[str, Any]:
    out: dict[str, Any] = {"rows": data.n, "features": data.d, "dtype": data.dtype, "concept": data.target.concept.kind}
    if data.target.codes is not None:
        counts = np.bincount(data.target.codes, minlength=data.target.k).tolist()
        out["classes"] = [[name, count] for name, count in zip(data.target.names, counts, strict=True)]
    else:
        out["columns"] = data.target.names
    if task is not None:
        counts = np.bincount(task[0], minlength=len(task[1])).tolist()
        out["task"] = [[name, count] for name, count in zip(task[1], counts, strict=True)]
    return out


def _describe_eraser(data: AuditData) -> dict[str, Any] | None:
    if data.eraser is None:
        return {"kind": "erased rows were given"} if data.X_erased is not None else None
    info = getattr(data.eraser, "info", {})
    return {"kind": type(data.eraser).__name__, **(info if isinstance(info, dict) else {})}


def _versions() -> dict[str, str]:
    import scipy
    import sklearn

    return {**versions(), "scipy": scipy.__version__, "scikit-learn": sklearn.__version__}
