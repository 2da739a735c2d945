"""The sections of an audit that split the rows: figures on unseen rows, probes, fairness.

A split that cannot be made is said, and the rest of the audit goes on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from excise.auditing.audit_data import AuditData, take
from excise.auditing.carriers import Carrier, carriers_of
from excise.auditing.fairness import Fairness, fairness_of
from excise.auditing.held_out import HeldOut, Refit, held_out
from excise.auditing.probes import Fitted, ProbeResult, run_probes
from excise.auditing.splits import Part, chosen_rows, rotations
from excise.errors import ConceptError

__all__ = ["Unseen", "look_at_unseen_rows"]

HELD_OUT_ROWS, PROBE_ROWS = 40_000, 20_000
QUICK_HELD_OUT_ROWS, QUICK_PROBE_ROWS = 10_000, 4_000


@dataclass
class Unseen:
    """What these sections found; `absent` says why one is missing."""

    held_out: HeldOut | None = None
    probes: list[ProbeResult] = field(default_factory=list)
    carriers: list[Carrier] = field(default_factory=list)
    fairness: Fairness | None = None
    notes: list[str] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """How to look: `refit` fits erasers again; `own` says that no row of the data was seen by the audited eraser."""

    refit: Refit | None
    own: bool
    seen: int | None  # rows that the audited eraser was fitted on
    quick: bool
    seed: int


def look_at_unseen_rows(
    data: AuditData, task: Any, groups: Any, plan: Plan, scale: Any, step: Callable[[str], None]
) -> Unseen:
    """`task` is (codes, names) of y or None, `groups` one code per row or None, `scale` (d,) the features' units."""
    out = Unseen()
    seed = plan.seed
    try:
        _held_out(data, groups, plan, step, out)
        index, said = chosen_rows(data.target, QUICK_PROBE_ROWS if plan.quick else PROBE_ROWS, seed + 1)
        part = rotations(data.target, index, groups, seed, erase=plan.refit is not None)[0]
    except ConceptError as error:
        for section in ("held out", "probes", *(("fairness",) if task is not None else ())):
            out.absent[section] = str(error)
        return out
    before, after, where = _before_and_after(data, part, plan)
    out.notes += [f"probes: {note}" for note in [*said, *where]]
    step("probes")
    truth = tuple(data.truth(rows) for rows in (part.train, part.test))
    second = None if task is None else task[0][part.train]
    out.probes, trained, failed = run_probes(before, after, truth, second, scale, seed, step)
    out.notes += failed
    if data.edited:
        out.carriers = _carriers(data, out.probes, trained, seed)
    out.fairness = _fairness(data, task, part, before, after, scale, where, out.absent)
    return out


def _held_out(data: AuditData, groups: Any, plan: Plan, step: Callable[[str], None], out: Unseen) -> None:
    if plan.own:
        refit: Refit | None = lambda X, z: data.eraser  # noqa: E731
    else:
        refit = plan.refit
    if refit is None:
        out.absent["held out"] = (
            "it needs rows that the eraser has not seen: pass test=(X, z), or refit= (a method name, or the function that "
            "made the eraser), to fit again without the rows it is measured on"
        )
        return
    index, said = chosen_rows(data.target, QUICK_HELD_OUT_ROWS if plan.quick else HELD_OUT_ROWS, plan.seed)
    parts = rotations(data.target, index, groups, plan.seed, erase=not plan.own)
    seen = (plan.seen or len(index)) if plan.own else None
    out.held_out = held_out(data, parts, refit, plan.seed, said, step, groups, seen)


def _before_and_after(data: AuditData, part: Part, plan: Plan) -> tuple[Any, Any, list[str]]:
    before = tuple(data.before(rows) for rows in (part.train, part.test))
    if plan.refit is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said in the section on held-out rows
            eraser = plan.refit(np.asarray(data.X[part.erase]), take(data.z, part.erase))
        after = tuple(data.erased_by(eraser, rows) for rows in (part.train, part.test))
        return before, after, ["the eraser was fitted again on other rows than the probes were trained and tested on"]
    if not data.edited:
        return before, before, []
    after = tuple(data.after(rows) for rows in (part.train, part.test))
    if plan.own:
        return before, after, ["trained and tested on the test rows, which the eraser has not seen"]
    return (
        before,
        after,
        [
            "the eraser may have seen these rows; then what is left in the test rows is the opposite of what is left in the "
            "training rows, and linear probes look worse than the constant: refit= or test= measure it on unseen rows"
        ],
    )


def _carriers(data: AuditData, probes: list[ProbeResult], trained: dict[str, Fitted], seed: int) -> list[Carrier]:
    """Of the probe that the edit helped; else of the best linear probe, if it still finds something."""
    written = [p for p in probes if p.writes]
    suspects = written or [p for p in probes if p.linear and p.interval[0] > 0]
    if not suspects:
        return []
    return carriers_of(data, trained[max(suspects, key=lambda p: p.information).name], seed)


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
        absent["fairness"] = "no task was given: pass y=, one class per row (with test=, as its third part)"
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
