"""`excise.audit`: all sections, in order, from one set of rows."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from excise.auditing.audit_data import AuditData, read_audit_data
from excise.auditing.conditional import columns_given
from excise.auditing.cost import cost_of
from excise.auditing.estimation import estimation_of
from excise.auditing.guardedness import gather_evidence, guardedness
from excise.auditing.held_out import refitted
from excise.auditing.pictures import views_of
from excise.auditing.report import Report
from excise.auditing.unit_length import brought_back
from excise.auditing.unseen import Plan, look_at_unseen_rows
from excise.auditing.verdict import write_verdict
from excise.errors import ConceptError, InputError
from excise.files import versions
from excise.methods.checks import check_whole, class_codes
from excise.methods.table import METHODS
from excise.moments.labelled_rows import flat_labels
from excise.progress import Progress

__all__ = ["audit"]


def audit(
    X: Any,
    z: Any,
    eraser: Any = None,
    X_erased: Any = None,
    y: Any = None,
    refit: Any = None,
    seed: int = 0,
    *,
    test: Any = None,
    condition_on: Any = None,
    normalize: bool = False,
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
        refit: a method ("leace") or a function of (X, z) that gives an eraser: adds figures on unseen rows, from erasers
            that are fitted again on parts of the rows, with the options of the audited one.
        seed: of all splits, samples and probes.
        test: (X, z), or (X, z, y), that the eraser has not seen: adds figures of this very eraser on these rows.
        condition_on: a task, one class per row: judge the promise of `fit(condition_on=)`, that within every class of
            the task no linear score differs between the groups on average.
        normalize: judge rows of unit length, before and after: what a cosine index sees.
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
    lead = tuple(getattr(X, "shape", np.shape(X)))[:-1]
    if condition_on is not None:
        z, kind = columns_given(z, condition_on, lead, kind), "continuous"
    data = read_audit_data(X, z, eraser, X_erased, kind, normalize)
    task = None if y is None else class_codes(y, lead, data.n, "categorical", "y (the task)")
    grouped = _check_groups(groups, lead, data.n)
    notes: list[str] = []
    _check_same(eraser, refit, notes)
    if refit is not None and (test is not None or condition_on is not None):
        instead = "test= measures the eraser itself" if test is not None else "condition_on= has no use for it"
        raise InputError(f"refit= fits erasers again, and {instead}: leave refit= out")
    fit_again = None if refit is None else refitted(refit, kind, _options(eraser))
    unseen_data, unseen_task = (data, task) if test is None else _test_rows(test, eraser, condition_on, kind, data)
    if test is not None and grouped is not None:
        notes.append("groups= are those of X: the test rows were taken one by one")

    with Progress(4 + 10 + (5 if refit is not None or test is not None else 0), "audit", "steps", progress) as bar:
        step = bar.step
        step(f"moments of {data.n:,} rows")
        evidence = gather_evidence(data, quick, seed)
        found = evidence.first
        step("conditions")
        g = guardedness(data, evidence)
        if quick:
            notes.append("quick: the closed-form check by QR of the rows was left out")
        estimation = estimation_of(data, int((np.asarray(found.before.var_x) > 0).sum()))
        plan = Plan(fit_again, test is not None, None if estimation is None else estimation.rows, quick, seed)
        unseen = look_at_unseen_rows(
            unseen_data, unseen_task, grouped if test is None else None, plan, found.scale, step
        )
        step("cost of the edit")
        cost = None
        absent = unseen.absent
        if data.edited:
            cost = cost_of(data, found.before, evidence.second)
        else:
            absent["cost"] = "no eraser and no erased rows were given"
        back = None if normalize else brought_back(data, seed)
        views = views_of(data, np.array(g.first_direction), found.scale, seed)
    return Report(
        g.guarded,
        write_verdict(data, g, estimation, unseen, cost, back, condition_on is not None),
        g,
        unseen.held_out,
        unseen.probes,
        cost,
        unseen.fairness,
        absent,
        views,
        _describe_data(data, task),
        {
            "seed": seed,
            "quick": quick,
            "refit": refit if refit is None or isinstance(refit, str) else getattr(refit, "__name__", "function"),
            "test": None if test is None else unseen_data.n,
            "normalize": normalize,
            "condition_on": condition_on is not None,
            "eraser": _describe_eraser(data),
            "versions": _versions(),
            "seconds": round(time.perf_counter() - start, 2),
        },
        notes + unseen.notes,
        unseen.carriers,
        estimation,
        back,
    )


def _options(eraser: Any) -> dict[str, Any]:
    """The options that made an eraser, as far as it knows them."""
    info = getattr(eraser, "info", None)
    options = info.get("options", {}) if isinstance(info, dict) else {}
    return dict(options) if isinstance(options, dict) else {}


def _test_rows(test: Any, eraser: Any, condition_on: Any, kind: Any, data: AuditData) -> tuple[AuditData, Any]:
    """The rows of test=, and their task.

    Raises:
        InputError: not (X, z) or (X, z, y); no eraser to measure; another number of features.
    """
    if not isinstance(test, (tuple, list)) or len(test) not in (2, 3):
        raise InputError("test must be (X, z) or (X, z, y): rows that the eraser has not seen, with their labels")
    if eraser is None:
        raise InputError("test= measures an eraser on rows that it has not seen: pass eraser=")
    X, z, y = (*test, None)[:3]
    lead = tuple(getattr(X, "shape", np.shape(X)))[:-1]
    if condition_on is not None:
        if y is None:
            raise InputError("with condition_on=, test= needs the task of its rows too: test=(X, z, y)")
        z = columns_given(z, y, lead, None)
    try:
        own = read_audit_data(X, z, eraser, None, kind, data.unit)
    except (InputError, ConceptError) as error:
        raise type(error)(f"test=: {error}") from None
    return own, None if y is None else class_codes(y, lead, own.n, "categorical", "y (the task) of test=")


def _check_same(eraser: Any, refit: Any, notes: list[str]) -> None:
    """What is fitted again must be what is audited.

    Raises:
        InputError: the eraser says that another method made it.
    """
    if refit is None:
        return
    info = getattr(eraser, "info", {}) if eraser is not None else {}
    method = _map_of(info.get("method"))
    if isinstance(refit, str) and method is not None and method != _map_of(refit):
        raise InputError(f"refit={refit!r}, but the eraser was made by {method!r}: pass refit={method!r}")
    if method is None or not isinstance(refit, str):
        notes.append("figures on unseen rows are of refit=, which could not be checked to be what made these rows")


def _map_of(method: Any) -> Any:
    """The name under which a map is known: two methods may be one map."""
    if method == "random_projection":
        return "random"
    return METHODS[method].same_map or method if method in METHODS else method


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
