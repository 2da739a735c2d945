"""The report: what was found, as plain data that prints, and turns into a dict, JSON or a page."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass, field
from typing import Any

from excise.auditing.carriers import Carrier
from excise.auditing.cost import Cost
from excise.auditing.estimation import Estimation
from excise.auditing.fairness import Fairness
from excise.auditing.guardedness import Guardedness
from excise.auditing.held_out import HeldOut
from excise.auditing.pictures import Views
from excise.auditing.probes import ProbeResult
from excise.auditing.unit_length import BroughtBack
from excise.tables import write_json, write_text

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """The evidence about a concept in some rows.

    `guarded`: on these rows, no linear model tells the concept better than a constant, to rounding. `held_out`: what
    holds in rows that the eraser has not seen; None unless `test=` or `refit=` was given. `absent` says why a section is missing.
    """

    guarded: bool
    verdict: list[str]  # sentences, the most important first
    guardedness: Guardedness
    held_out: HeldOut | None
    probes: list[ProbeResult]
    cost: Cost | None
    fairness: Fairness | None
    absent: dict[str, str]
    views: Views
    data: dict[str, Any]
    settings: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    carriers: list[Carrier] = field(default_factory=list)  # features that carry what a probe still finds
    estimation: Estimation | None = None  # what this eraser can be expected to leave in new rows
    brought_back: BroughtBack | None = None  # by dividing erased unit vectors by their lengths

    @property
    def writes(self) -> list[ProbeResult]:
        """Probes that find clearly more after the edit than before: the edit writes the concept into the data."""
        return [p for p in self.probes if p.writes]

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold; what is not a number is None."""
        out = _plain(asdict(self))
        assert isinstance(out, dict)
        return out

    def to_json(self, path: str | os.PathLike[str]) -> None:
        write_json(path, self.to_dict())

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """One self-contained page: no network, no script.

        Raises:
            ExciseError: matplotlib or jinja2 is not installed.
        """
        from excise.reporting.page import report_page

        write_text(path, report_page(self))

    def _repr_html_(self) -> str:
        """For notebooks: the page in a frame of its own, so that neither styles the other."""
        from html import escape

        from excise.reporting.page import report_page

        page = escape(report_page(self), quote=True)
        return (
            f'<iframe srcdoc="{page}" sandbox style="width:100%;height:40rem;border:0" title="excise report"></iframe>'
        )

    def __str__(self) -> str:
        lines = ["GUARDED" if self.guarded else "NOT GUARDED", *(f"  {s}" for s in self.verdict), ""]
        lines += [f"{'condition':24}{'before':>12}{'after':>12}{'rounding':>12}"]
        for c in self.guardedness.conditions:
            before = "-" if c.before is None else f"{c.before:.3g}"
            lines.append(
                f"{c.name:24}{before:>12}{c.after:>12.2g}{c.tolerance:>12.1g}  {'holds' if c.holds else 'FAILS'}"
            )
        if self.held_out is not None:
            h = self.held_out
            lines += [
                "",
                f"{'test rows' if h.own else 'held out'} ({h.measure}): {h.information_before:.4f} before, {h.information:.4f} after "
                f"[{h.interval[0]:.4f}, {h.interval[1]:.4f}]; estimation alone leaves up to {h.expected_from_estimation:.4f}; "
                f"p = {h.p_value:.4f}",
                *(f"  {note}" for note in h.notes),
            ]
        if self.probes:
            unit = "bits" if self.probes[0].loss is not None else "R^2"
            lines += ["", f"{'probe (' + unit + ')':28}{'before':>10}{'after':>10}{'accuracy':>18}"]
            for p in self.probes:
                name = p.name + ("" if p.linear else " *")
                accuracy = "" if p.accuracy is None else f"{p.accuracy_before:.3f} -> {p.accuracy:.3f}"
                late = "" if p.converged else "  not converged"
                late += "  MORE THAN BEFORE" if p.writes else ""
                lines.append(f"{name:28}{p.information_before:>10.4f}{p.information:>10.4f}{accuracy:>18}{late}")
            lines.append("  * beyond the guarantee: not linear")
        lines += [
            f"  carried by {c.feature}: {c.share:.0%} of what the probe finds; {c.values:,} distinct values, varies in "
            f"{c.varies_in:,} rows"
            for c in self.carriers
        ]
        if self.cost is not None:
            c2 = self.cost
            best = "" if c2.over_leace is None else f", {c2.over_leace:.3f} times the least affine edit"
            lines += ["", f"edit: {100 * c2.relative:.3g}% of the variance, rank {c2.rank}{best}"]
        if self.fairness is not None:
            f = self.fairness
            lines += [
                "",
                f"{'task':12}{'accuracy':>10}{'RMS TPR gap':>14}{'parity':>10}{'odds':>10}{'share corr.':>14}",
            ]
            for name, o in (("before", f.before), ("kept", f.kept), ("re-fitted", f.refitted)):
                r = o.share_correlation[-1]
                lines.append(
                    f"{name:12}{o.accuracy:>10.3f}{_three(o.rms_tpr_gap):>14}{o.statistical_parity:>10.3f}"
                    f"{_three(o.equalised_odds):>10}{_three(r):>14}"
                )
        lines += [""] + [f"{name}: absent, {why}" for name, why in self.absent.items()]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines).rstrip()


def _three(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if hasattr(value, "item"):
        return _plain(value.item())
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
