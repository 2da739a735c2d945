"""The findings in words: what is proved, what was only measured, what it cost. Nothing here is computed."""

from __future__ import annotations

from excise.auditing.audit_data import AuditData
from excise.auditing.carriers import Carrier, in_words
from excise.auditing.cost import Cost
from excise.auditing.estimation import Estimation
from excise.auditing.guardedness import Guardedness
from excise.auditing.held_out import HeldOut
from excise.auditing.probes import ProbeResult
from excise.auditing.unit_length import BroughtBack
from excise.auditing.unseen import Unseen

__all__ = ["write_verdict"]


def write_verdict(
    data: AuditData,
    g: Guardedness,
    estimation: Estimation | None,
    unseen: Unseen,
    c: Cost | None,
    back: BroughtBack | None,
    given_task: bool,
) -> list[str]:
    h, probes, f = unseen.held_out, unseen.probes, unseen.fairness
    out = _written(data, probes, unseen.carriers)
    out.append(_on_these_rows(data, g, given_task))
    if g.nothing_left:
        out.append(
            f"Nothing is left of the features: all {data.d} are constant after the edit. That the concept is gone says "
            f"nothing then; erase fewer classes, or use more features."
        )
    elif g.emptied:
        out.append(f"{g.emptied} of {data.d} features are constant after the edit: they were the concept itself.")
    if g.guarded and g.resolution > 1e-3:
        out.append(
            f"The rows are {data.dtype}: correlations below {g.resolution:.2g} are hidden by rounding, so this is a weaker statement "
            f"than in float64."
        )
    if g.disagreement:
        out.append(g.disagreement[0].upper() + g.disagreement[1:] + ".")
    out += _new_rows(data, estimation, h, unseen.carriers if not any(p.writes for p in probes) else [])
    if back is not None and back.normalized > max(2 * back.erased, 0.01):
        out.append(
            f"The rows have unit length before the edit and not after it. If they are normalised again, as a cosine index "
            f"does, a linear score follows the concept with a correlation of {back.normalized:.3f} ({back.before:.3f} before): "
            f"fit with normalize=True."
        )
    out += _nonlinear(probes, g.guarded)
    if c is not None:
        beyond = "" if c.over_leace is None else f" ({c.over_leace:.2f} times the least affine edit that erases)"
        out.append(f"The edit moved the data by {100 * c.relative:.2g}% of its variance{beyond}.")
    if f is not None:
        said = (
            f"Task accuracy went from {f.before.accuracy:.3f} to {f.refitted.accuracy:.3f} re-fitted ({f.kept.accuracy:.3f} with the old "
            f"classifier)"
        )
        gaps = [o.rms_tpr_gap for o in (f.before, f.refitted, f.kept)]
        if None in gaps:
            out.append(f"{said}; no class of the task has test rows of two groups, so there is no gap to measure.")
        else:
            out.append(
                f"{said}; the RMS gap in true-positive rates from {gaps[0]:.3f} to {gaps[1]:.3f} ({gaps[2]:.3f})."
            )
    return out


def _written(data: AuditData, probes: list[ProbeResult], carriers: list[Carrier]) -> list[str]:
    """A probe that finds more after than before is the first thing to know."""
    more = [p for p in probes if p.writes]
    if not more:
        return []
    worst = max(more, key=lambda p: p.information)
    unit = "bits per row" if worst.loss is not None else "of the variance"
    said = f" It is carried by {in_words(carriers, data.n)}." if carriers else ""
    return [
        f"This edit writes the concept into the data: {worst.name} find{'' if worst.name.endswith('s') else 's'} "
        f"{worst.information:.3g} {unit} after it and {worst.information_before:.3g} before.{said}"
    ]


def _new_rows(data: AuditData, e: Estimation | None, h: HeldOut | None, carriers: list[Carrier]) -> list[str]:
    """What this eraser can be expected to leave in new rows, first; then what was measured."""
    out = []
    if e is not None:
        unit = "bits per row" if e.measure == "bits" else "of the variance"
        out.append(
            f"This eraser was fitted on {e.rows:,} rows of {e.features:,} features: in new rows, estimation alone can leave "
            f"about {e.information:.2g} {unit}."
        )
    if h is not None:
        how = (
            f"On {h.n:,} test rows"
            if h.own
            else f"On unseen rows, measured with erasers that were fitted again on {h.n_erase:,} rows each"
        )
        out.append(f"{how}: {h.reading}.")
        if carriers and h.interval[0] > h.expected_from_estimation:
            out.append(f"What is left there is carried by {in_words(carriers, data.n)}.")
    return out


def _on_these_rows(data: AuditData, g: Guardedness, given_task: bool) -> str:
    subject = "after the edit" if data.edited else "as they are (no eraser was given)"
    if data.unit:
        subject += ", divided by their lengths"
    if given_task:
        subject += ", within every class of the task"
    if g.guarded:
        was = "" if not data.edited else f"; before, the canonical correlation was {g.canonical_before[0]:.3f}"
        if g.v_information_before is not None and data.edited:
            was += f" and the best linear model gained {g.v_information_before:.3g} bits per row"
        what = "better than a constant" if data.target.codes is not None else "in least squares"
        if given_task:
            return f"On these {data.n:,} rows, {subject}, every linear score has the same mean for all groups, to rounding{was}."
        return f"On these {data.n:,} rows, {subject}, no linear model can predict the concept {what}, to rounding{was}."
    found = [c for c in g.conditions if not c.holds]
    worst = max(found, key=lambda c: c.after / c.tolerance)
    gained = "" if g.v_information is None else f" The best linear model gains {g.v_information:.3g} bits per row."
    return (
        f"On these {data.n:,} rows, {subject}, a linear model can find the concept: the {worst.name} is {worst.after:.3g}, "
        f"where rounding would leave at most {worst.tolerance:.1g}.{gained}"
    )


def _nonlinear(probes: list[ProbeResult], guarded: bool) -> list[str]:
    beyond = [p for p in probes if not p.linear and p.interval[0] > 0]
    if not beyond:
        tried = [p for p in probes if not p.linear]
        if not tried or not guarded:
            return []
        widest = max(p.interval[1] for p in tried)
        return [
            f"None of {len(tried)} nonlinear probes found it; the widest of their intervals reaches {max(widest, 0.0):.2g}."
        ]
    best = max(beyond, key=lambda p: p.information)
    unit = "bits per row" if best.loss is not None else "of the variance"
    return [
        f"Beyond the guarantee: {len(beyond)} nonlinear probes still find it, the best of them ({best.name}) {best.information:.3g} {unit} "
        f"({best.information_before:.3g} before). Linear erasure does not promise anything about these."
    ]
