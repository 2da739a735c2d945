"""The findings in words: what is proved, what was only measured, what it cost. Nothing here is computed."""

from __future__ import annotations

from excise.auditing.audit_data import AuditData
from excise.auditing.cost import Cost
from excise.auditing.fairness import Fairness
from excise.auditing.guardedness import Guardedness
from excise.auditing.held_out import HeldOut
from excise.auditing.probes import ProbeResult

__all__ = ["write_verdict"]


def write_verdict(
    data: AuditData, g: Guardedness, h: HeldOut | None, probes: list[ProbeResult], c: Cost | None, f: Fairness | None
) -> list[str]:
    out = [_on_these_rows(data, g)]
    if g.guarded and g.resolution > 1e-3:
        out.append(
            f"The rows are {data.dtype}: correlations below {g.resolution:.2g} are hidden by rounding, so this is a weaker statement "
            f"than in float64."
        )
    if g.disagreement:
        out.append(g.disagreement[0].upper() + g.disagreement[1:] + ".")
    if h is not None:
        out.append(f"On new rows: {h.reading}.")
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


def _on_these_rows(data: AuditData, g: Guardedness) -> str:
    subject = "after the edit" if data.edited else "as they are (no eraser was given)"
    if g.guarded:
        was = "" if not data.edited else f"; before, the canonical correlation was {g.canonical_before[0]:.3f}"
        if g.v_information_before is not None and data.edited:
            was += f" and the best linear model gained {g.v_information_before:.3g} bits per row"
        what = "better than a constant" if data.target.codes is not None else "in least squares"
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
