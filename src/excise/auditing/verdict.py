"""The findings in words: what is proved, what was only measured, what it cost. Nothing here is computed."""

from __future__ import annotations

from excise.auditing.audited import Audited
from excise.auditing.cost import Cost
from excise.auditing.fairness import Fairness
from excise.auditing.guardedness import Guardedness
from excise.auditing.held_out import HeldOut
from excise.auditing.probes import ProbeResult

__all__ = ["words"]


def words(
    data: Audited, g: Guardedness, h: HeldOut | None, probes: list[ProbeResult], c: Cost | None, f: Fairness | None
) -> list[str]:
    out = [_on_these_rows(data, g)]
    if g.guarded and g.resolution > 1e-3:
        out.append(
            f"The rows are {data.dtype} and large against their spread: correlations below {g.resolution:.2g} are hidden by rounding, "
            f"so this is a weaker statement than in float64."
        )
    if g.disagreement:
        out.append(g.disagreement[0].upper() + g.disagreement[1:] + ".")
    if h is not None:
        out.append(f"On new rows: {h.reading}.")
    out += _nonlinear(probes)
    if c is not None:
        beyond = "" if c.over_leace is None else f" ({c.over_leace:.2f} times the least that an affine edit can do)"
        out.append(f"The edit moved the data by {100 * c.relative:.2g}% of its variance{beyond}.")
    if f is not None:
        out.append(
            f"Task accuracy went from {f.before.accuracy:.3f} to {f.refitted.accuracy:.3f} re-fitted ({f.kept.accuracy:.3f} with the old "
            f"classifier); the RMS gap in true-positive rates from {f.before.rms_tpr_gap:.3f} to {f.refitted.rms_tpr_gap:.3f} "
            f"({f.kept.rms_tpr_gap:.3f})."
        )
    return out


def _on_these_rows(data: Audited, g: Guardedness) -> str:
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


def _nonlinear(probes: list[ProbeResult]) -> list[str]:
    beyond = [p for p in probes if not p.linear and p.interval[0] > 0]
    if not beyond:
        return ["No nonlinear probe that was tried found it either."] if any(not p.linear for p in probes) else []
    best = max(beyond, key=lambda p: p.information)
    unit = "bits per row" if best.loss is not None else "of the variance"
    return [
        f"Beyond the guarantee: {len(beyond)} nonlinear probes still find it, the best of them ({best.name}) {best.information:.3g} {unit} "
        f"({best.information_before:.3g} before). Linear erasure does not promise anything about these."
    ]
