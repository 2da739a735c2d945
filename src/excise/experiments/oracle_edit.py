"""Oracle LEACE against LEACE: a smaller edit, and what nonlinear probes find after each; the Hilbert-space picture."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from excise.auditing.audit import audit
from excise.experiments import sources
from excise.experiments.running import Finding, Outcome, Run, paper_options
from excise.fitting import fit
from excise.reporting.svg import COLOURS

__all__ = ["PAPER", "experiment"]

PAPER = "Appendix on oracle LEACE: the smallest edit of all; no figures are given for nonlinear probes."


def experiment(run: Run, options: Any) -> Outcome:
    """word2vec, male against female."""
    data = sources.word2vec(run, options.data)
    rows: list[list[Any]] = []
    found: dict[str, Any] = {}
    for method in ("leace", "oracle"):
        found[method] = run.step(method, partial(_measure, data.X, data.concept, method, run))
    names = list(found["leace"]["probes"])
    for method, f in found.items():
        rows.append([method, f["edit"], f["guarded"], *[f["probes"][name][1] for name in names]])
    before = [f for f in found["leace"]["probes"].values()]
    rows.insert(0, ["none", 0.0, False, *[b[0] for b in before]])
    nonlinear = [name for name, (_, _, linear) in found["leace"]["probes"].items() if not linear]
    more = [name for name in nonlinear if found["oracle"]["probes"][name][1] > found["leace"]["probes"][name][1]]
    findings = [
        Finding("both guard on the fitting rows", all(f["guarded"] for f in found.values()), theorem=True),
        Finding(
            "the oracle's edit is no larger than LEACE's",
            found["oracle"]["edit"] <= found["leace"]["edit"],
            theorem=True,
        ),
        Finding(
            "nonlinear probes find more after the oracle than after LEACE",
            len(more) > len(nonlinear) / 2,
            note=f"in {len(more)} of {len(nonlinear)} probes",
        ),
    ]
    columns = ["method", "edit (of variance)", "guarded", *[f"{name} (bits)" for name in names]]
    return Outcome(columns, rows, findings, _draw(run.seed), (10.5, 4.2))


def _measure(X: Any, z: Any, method: str, run: Run) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refit: Any = partial(fit, method=method, **paper_options(method))
        report = audit(X, z, eraser=refit(X, z), refit=refit, seed=run.seed, quick=run.quick)
    assert report.cost is not None
    probes = {p.name: [p.information_before, p.information, p.linear] for p in report.probes}
    return {"edit": report.cost.relative, "guarded": report.guarded, "probes": probes}


def _draw(seed: int) -> Any:
    """A feature is a vector in a space of random variables; the oracle takes away its shadow on the labels."""

    def draw(figure: Any) -> None:
        space, plane = figure.subplots(1, 2, subplot_kw=None)
        corners = np.array([[-1.2, -0.5], [1.0, -0.9], [1.6, 0.1], [-0.6, 0.5]])
        space.fill(*corners.T, color=COLOURS[5], alpha=0.25)
        space.annotate("span of the labels", (0.75, -0.72), fontsize=9)
        start, tip, foot = np.array([-0.3, -0.15]), np.array([0.75, 1.25]), np.array([0.75, -0.2])
        for end, colour, text in ((tip, "black", "feature"), (foot, COLOURS[1], "its projection on the labels")):
            space.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": colour, "lw": 2})
            space.annotate(text, end, xytext=(4, 2), textcoords="offset points", color=colour, fontsize=9)
        space.annotate("", tip, foot, arrowprops={"arrowstyle": "->", "color": COLOURS[0], "lw": 2})
        space.annotate("residual: what the\noracle leaves", (0.8, 0.5), color=COLOURS[0], fontsize=9)
        space.set(
            xlim=(-1.5, 2.2),
            ylim=(-1.1, 1.5),
            xticks=[],
            yticks=[],
            title="One feature, as a vector of random variables",
        )
        rng = np.random.default_rng(seed)
        z = rng.integers(0, 2, 300)
        X = rng.standard_normal((300, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])
        X[:, 0] += 2.2 * z
        for method, marker, colour in (("leace", "^", COLOURS[0]), ("oracle", "o", COLOURS[1])):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                eraser: Any = fit(X, z, method, **paper_options(method))
            erased = eraser(X, z)
            moved = float(((erased - X) ** 2).sum(axis=1).mean())
            plane.scatter(
                *erased.T,
                s=10,
                marker=marker,
                color=colour,
                alpha=0.6,
                linewidth=0,
                label=f"{method}: edit {moved:.2f}",
            )
        plane.scatter(*X.T, s=6, color="0.75", zorder=0, label="before")
        plane.set_title("The same rows after each")
        plane.legend(frameon=False, fontsize=9)

    return draw
