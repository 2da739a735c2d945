"""The pictures of a report, each from its plain numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from excise.auditing.report import Report
from excise.reporting.svg import COLOURS, INK, LINES, MARKERS, drawing, label

__all__ = ["figures"]

BEFORE, AFTER = COLOURS[1], COLOURS[0]


def figures(report: Report) -> dict[str, str]:
    """Name of the section -> SVG."""
    out = {"densities": _densities(report), "plane": _plane(report)}
    if len(report.guardedness.canonical_before) > 1:  # one bar says no more than its number
        out["canonical"] = _canonical(report)
    if report.probes:
        out["probes"] = _probes(report)
    if report.cost is not None:
        out["edits"] = _edits(report)
    if report.fairness is not None and any(r is not None for r in report.fairness.before.share_correlation):
        out["fairness"] = _gaps(report)
    return out


def _when(report: Report) -> list[str]:
    return ["before", "after"] if report.cost is not None else ["as they are"]


def _densities(report: Report) -> str:
    v = report.views
    edges = np.array(v.edges)
    middle = (edges[1:] + edges[:-1]) / 2
    shown = [v.density_before, v.density]
    with drawing("Densities by class along the first canonical direction", len(_when(report))) as drawn:
        for axis, when, densities in zip(drawn.axes, _when(report), shown, strict=False):
            for i, (name, density) in enumerate(zip(v.classes, densities, strict=True)):
                axis.plot(middle, density, color=COLOURS[i], linestyle=LINES[i], label=label(name), linewidth=1.8)
            axis.set(title=when, xlabel="score, in standard deviations before", yticks=[])
        drawn.axes[0].set_ylabel("density")
        drawn.legend()
    return str(drawn.svg)


def _plane(report: Report) -> str:
    v = report.views
    every = np.concatenate([np.array(p).reshape(-1, 2) for p in (*v.points_before, *v.points)])
    low, high = np.quantile(every, [0.002, 0.998], axis=0)
    pad = 0.08 * np.maximum(high - low, 1e-9)
    with drawing("Rows in a plane, by class", len(_when(report)), size=(7.0, 3.8)) as drawn:
        for axis, when, groups in zip(drawn.axes, _when(report), (v.points_before, v.points), strict=False):
            for i, (name, points) in enumerate(zip(v.classes, groups, strict=True)):
                xy = np.array(points).reshape(-1, 2)
                axis.scatter(*xy.T, s=9, color=COLOURS[i], marker=MARKERS[i], alpha=0.5, linewidth=0, label=label(name))
                if len(xy):
                    axis.scatter(
                        *xy.mean(axis=0), s=90, color=COLOURS[i], marker=MARKERS[i], edgecolor="white", zorder=3
                    )
            axis.set(title=when, xlim=(low[0] - pad[0], high[0] + pad[0]), ylim=(low[1] - pad[1], high[1] + pad[1]))
            axis.set_xlabel("largest difference of class means before")
        drawn.axes[0].set_ylabel("largest variance beside it")
        drawn.legend(markerscale=1.6)
    return str(drawn.svg)


def _canonical(report: Report) -> str:
    before, after = report.guardedness.canonical_before[:20], report.guardedness.canonical[:20]
    at = np.arange(1, len(before) + 1)
    with drawing("Canonical correlations with the concept", size=(7.0, 2.8)) as drawn:
        axis = drawn.axes[0]
        axis.bar(at - 0.2, before, 0.38, color=BEFORE, label="before", hatch="//", edgecolor="white", linewidth=0)
        if report.cost is not None:
            axis.bar(at + 0.2, after, 0.38, color=AFTER, label=f"after (largest {max(after, default=0):.1e})")
        axis.set(ylim=(0, 1.02), xlabel="direction", ylabel="correlation", xticks=at[:: max(1, len(at) // 10)])
        axis.set_xlim(0.3, max(len(before), 3) + 0.7)
        axis.legend(fontsize=9)
    return str(drawn.svg)


def _probes(report: Report) -> str:
    probes = list(reversed(report.probes))
    at = np.arange(len(probes))
    unit = "bits per row" if probes[0].loss is not None else "R²"
    with drawing("What probes find, against the constant", size=(7.0, 0.9 + 0.36 * len(probes))) as drawn:
        axis = drawn.axes[0]
        axis.axvline(0, color=INK, linestyle=":", linewidth=1.2)
        axis.scatter([p.information_before for p in probes], at, marker="^", color=BEFORE, s=45, label="before")
        if report.cost is not None or report.held_out is not None:
            values = np.array([p.information for p in probes])
            bars = np.array([[p.information - p.interval[0], p.interval[1] - p.information] for p in probes]).T
            axis.errorbar(
                values, at, xerr=bars, fmt="o", color=AFTER, markersize=6, capsize=3, label="after, 95% interval"
            )
        axis.set_yticks(at, [p.name + ("" if p.linear else " *") for p in probes])
        reach = max(0.02, *(abs(p.information_before) for p in probes), *(abs(v) for p in probes for v in p.interval))
        worst = min(0.0, *(p.interval[0] for p in probes), *(p.information_before for p in probes))
        axis.set(
            xlim=(max(1.15 * worst, -reach) - 0.03 * reach, 1.08 * reach),
            xlabel=f"gain on the constant, {unit} (0: it knows nothing)",
        )
        axis.legend(fontsize=8, loc="best")
    return str(drawn.svg)


def _edits(report: Report) -> str:
    assert report.cost is not None
    h = report.cost.histogram
    edges = np.array(h["edges"])
    with drawing("How far each row was moved", size=(7.0, 2.6)) as drawn:
        axis = drawn.axes[0]
        axis.bar(edges[:-1], h["counts"], np.diff(edges), align="edge", color=AFTER)
        axis.axvline(report.cost.sizes["50%"], color=INK, linestyle="--", linewidth=1.2, label="median")
        axis.set(xlabel="length of the edit, over the root of the total variance", ylabel="rows")
        axis.legend(fontsize=9)
    return str(drawn.svg)


def _gaps(report: Report) -> str:
    f = report.fairness
    assert f is not None
    g = len(f.groups) - 1
    share = [row[g] for row in f.share]
    sets = (("before", f.before), ("after, classifier kept", f.kept), ("after, re-fitted", f.refitted))
    limit = max([abs(v) for _, o in sets for row in o.tpr_gap if (v := row[g]) is not None], default=0.1) * 1.15 + 0.01
    with drawing(f"TPR gap of {label(f.groups[g])} by its share in each class", 3, size=(9.0, 3.2)) as drawn:
        for axis, (name, o) in zip(drawn.axes, sets, strict=True):
            known = [
                (s, row[g], c) for s, row, c in zip(share, o.tpr_gap, f.task_classes, strict=True) if row[g] is not None
            ]
            xs, ys = (np.array([k[i] for k in known], dtype=float) for i in (0, 1))
            axis.axhline(0, color=INK, linewidth=0.8, linestyle=":")
            axis.scatter(
                xs, ys, color=BEFORE if name == "before" else AFTER, marker="^" if name == "before" else "o", s=30
            )
            for s, value, c in known if len(known) <= 12 else []:
                axis.annotate(label(c, 14), (s, value), fontsize=7, xytext=(3, 3), textcoords="offset points")
            if len(known) > 2 and xs.std() > 0:
                line = np.polyfit(xs, ys, 1)
                ends = np.array([xs.min(), xs.max()])
                axis.plot(ends, np.polyval(line, ends), color=INK, linewidth=1.2)
            r: Any = o.share_correlation[g]
            rms = "no gap to measure" if o.rms_tpr_gap is None else f"RMS {o.rms_tpr_gap:.3f}"
            axis.set(title=f"{name}\n{rms}" + ("" if r is None else f", r = {r:.2f}"), ylim=(-limit, limit))
            axis.title.set_fontsize(9)
            axis.set_xlabel(f"share of {label(f.groups[g], 14)}")
        drawn.axes[0].set_ylabel("TPR gap")
    return str(drawn.svg)
