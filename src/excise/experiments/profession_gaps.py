"""Profession prediction before and after erasing gender: accuracy, TPR gaps, their correlation with the share of women."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from excise.auditing.audit_data import read_audit_data
from excise.auditing.fairness import outcomes
from excise.auditing.guardedness import gather_evidence, guardedness
from excise.auditing.splits import rotations
from excise.experiments import sources
from excise.experiments.running import Finding, Outcome, Run, paper_options
from excise.fitting import fit
from excise.reporting.svg import COLOURS

__all__ = ["PAPER", "experiment"]

PAPER = "Accuracy 79.3% -> 77.3% (classifier kept) -> 78.1% (re-fitted); RMS TPR gap 0.198 -> 0.084 -> 0.158; correlation 0.867 -> 0.392."
STATES = ("before", "kept", "re-fitted")


def experiment(run: Run, options: Any) -> Outcome:
    """Biographies by hub name, or the wiki passages and Adult from a local folder."""
    sets, encoder, pool = sources.labelled_sets(run, options, [sources.wiki, sources.adult])
    rows: list[list[Any]] = []
    findings, scatter = [], {}
    for data in sets:
        X = np.asarray(sources.embed(run, data, encoder, pool))
        found = run.step(data.name, partial(_measure, X, data, run.seed, 200 if run.quick else 2000))
        rows += [[data.name, state, *found[state]["figures"]] for state in STATES]
        scatter[data.name] = found
        before, kept = found["before"]["figures"], found["kept"]["figures"]
        findings += [
            Finding(f"{data.name}: the concept is guarded on the eraser's rows", found["guarded"], theorem=True),
            Finding(
                f"{data.name}: the RMS TPR gap falls with the classifier kept",
                kept[1] < before[1],
                note=f"{before[1]:.3f} -> {kept[1]:.3f}",
            ),
            Finding(
                f"{data.name}: re-fitting brings part of the gap back",
                found["re-fitted"]["figures"][1] > kept[1],
                note=f"{kept[1]:.4f} -> {found['re-fitted']['figures'][1]:.4f}",
            ),
            Finding(
                f"{data.name}: the correlation with the share of women falls",
                abs(kept[2] or 0) < abs(before[2] or 0),
                note=f"{before[2] or 0:.3f} -> {kept[2] or 0:.3f}",
            ),
        ]
    columns = ["data", "state", "accuracy", "RMS TPR gap", "correlation with share", "majority", "test rows"]
    return Outcome(columns, rows, findings, _draw(scatter), (9.5, 3.7 * len(sets)), {"scatter": scatter})


def _measure(X: Any, data: sources.Labelled, seed: int, iterations: int) -> dict[str, Any]:
    """Cross-fitted: in each of five folds the eraser and the classifier are fitted on the other four."""
    from sklearn.linear_model import LogisticRegression

    names = np.unique(data.concept)
    groups = (data.concept != names[0]).astype(int)
    groups = 1 - groups if names[0][0].lower() == "f" else groups  # the last group is the women
    classes, task = np.unique(data.task, return_inverse=True)
    audited = read_audit_data(X, groups, None, None, None)
    said = {state: np.zeros(len(task), dtype=int) for state in STATES}
    guarded = True
    for part in rotations(audited.target, np.arange(len(task)), data.groups, seed):
        train = np.sort(np.concatenate([part.erase, part.train]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            eraser: Any = fit(X[train], groups[train], **paper_options("leace"))
            own = read_audit_data(X[train], groups[train], eraser, None, None)
            guarded = guarded and guardedness(own, gather_evidence(own, True, seed)).guarded
            center, spread = X[train].mean(axis=0), X[train].std(axis=0)
            spread = np.where(spread > 0, spread, 1.0)
            A, B = (X[train] - center) / spread, (X[part.test] - center) / spread
            A2, B2 = (eraser(X[train]) - center) / spread, (eraser(X[part.test]) - center) / spread
            first = LogisticRegression(max_iter=iterations).fit(A, task[train])
            second = LogisticRegression(max_iter=iterations).fit(A2, task[train])
        said["before"][part.test] = first.predict(B)
        said["kept"][part.test] = first.predict(B2)
        said["re-fitted"][part.test] = second.predict(B2)
    share = np.array([[np.mean(groups[task == c] == g) for g in (0, 1)] for c in range(len(classes))])
    majority = float(np.bincount(task).max() / len(task))
    out: dict[str, Any] = {"guarded": bool(guarded), "share": share[:, 1].tolist(), "classes": classes.tolist()}
    for state in STATES:
        o = outcomes(said[state], task, groups, share)
        figures = [o.accuracy, o.rms_tpr_gap, o.share_correlation[1], majority, len(task)]
        out[state] = {"figures": figures, "gaps": [row[1] for row in o.tpr_gap]}
    return out


def _draw(scatter: dict[str, Any]) -> Any:
    def draw(figure: Any) -> None:
        axes = figure.subplots(len(scatter), 2, squeeze=False, sharey="row")
        for row, (name, found) in zip(axes, scatter.items(), strict=True):
            for axis, state in zip(row, ("before", "kept"), strict=True):
                xs, ys = np.array(found["share"]), np.array(found[state]["gaps"], dtype=float)
                axis.axhline(0, color="0.6", linewidth=0.8)
                axis.scatter(
                    xs,
                    ys,
                    color=COLOURS[1] if state == "before" else COLOURS[0],
                    marker="^" if state == "before" else "o",
                )
                known = np.isfinite(ys)
                line = np.polyfit(xs[known], ys[known], 1)
                axis.plot(xs[known], np.polyval(line, xs[known]), color="black", linewidth=1)
                for x, y, c in zip(xs, ys, found["classes"], strict=True):
                    axis.annotate(c, (x, y), fontsize=6, xytext=(2, 2), textcoords="offset points")
                r = found[state]["figures"][2]
                axis.set_title(f"{name}, {state}: r = {'-' if r is None else format(r, '.2f')}", fontsize=10)
                axis.set_xlabel("share of women")
            row[0].set_ylabel("TPR gap, women minus men")

    return draw
