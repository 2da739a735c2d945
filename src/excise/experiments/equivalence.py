"""The five conditions as the strength of the erasure goes from 0 to 1, and what they do not cover."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from excise.auditing.audit_data import read_audit_data
from excise.auditing.guardedness import gather_evidence, guardedness
from excise.experiments.running import Finding, Outcome, Run
from excise.fitting import erase, fit
from excise.reporting.svg import COLOURS, LINES

__all__ = ["PAPER", "experiment"]

PAPER = "Section 3 and appendices: the conditions are equivalent; decisions and stacked softmaxes are outside of them."
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0)


def experiment(run: Run, options: Any) -> Outcome:
    """Needs no data: classes of other shape and spread, so that equal means are not equal distributions."""
    n = 4000 if run.quick else 20_000
    rng = np.random.default_rng(run.seed)
    z = rng.integers(0, 2, n)
    skewed = np.where(z == 1, rng.exponential(1.0, n), -rng.exponential(1.0, n))  # skewed to opposite sides
    task = rng.integers(0, 3, n)
    X = rng.standard_normal((n, 5)) + rng.standard_normal((3, 5))[task]
    X[:, 0] += 2.0 * skewed
    X[:, 1] += z
    X[z == 1, 2:] *= 2.5  # one class is decided more confidently than the other
    rows, names = [], []
    for strength in STRENGTHS:
        found = run.step(f"strength {strength}", partial(_conditions, X, z, strength, run.seed))
        names = [name for name, _, _ in found]
        rows.append([strength, *[value for _, value, _ in found], sum(holds for _, _, holds in found)])
    leak = run.step("beyond the conditions", lambda: _beyond(X, z, task, run.seed))
    whole, partly = rows[-1], rows[:-1]
    findings = [
        Finding("at strength 1 all conditions hold", whole[-1] == len(names), theorem=True),
        Finding("below strength 1 none of them holds", all(row[-1] == 0 for row in partly), theorem=True),
        Finding("the greatest class-mean gap of a linear score is rounding", leak["score_gap"] < 1e-12, theorem=True),
        Finding(
            "decisions of a threshold still differ between the classes",
            leak["decision_gap"] > 0.02,
            note=f"score gap {leak['score_gap']:.1e}, decision gap {leak['decision_gap']:.3f}",
        ),
        Finding(
            "a classifier stacked on the softmax of a guarded one finds the concept",
            leak["stacked_bits"] > 0.005,
            note=f"{leak['stacked_bits']:.4f} bits per row on held-out rows",
        ),
    ]
    return Outcome(["strength", *names, "conditions that hold"], rows, findings, _draw(names, rows), (7.5, 4.5), leak)


def _conditions(X: Any, z: Any, strength: float, seed: int) -> list[Any]:
    eraser = fit(X, z, shrinkage="none", strength=strength)
    data = read_audit_data(X, z, eraser, None, None)
    found = guardedness(data, gather_evidence(data, False, seed))
    return [[c.name, c.after, c.holds] for c in found.conditions]


def _beyond(X: Any, z: Any, task: Any, seed: int) -> dict[str, float]:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    erased = erase(X, z, shrinkage="none")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(max_iter=2000).fit(erased, task)
    scores = erased @ model.coef_.T + model.intercept_
    score_gap = float(np.abs(scores[z == 1].mean(0) - scores[z == 0].mean(0)).max())
    said = model.predict(erased)
    decision_gap = max(abs(float((said[z == 1] == c).mean() - (said[z == 0] == c).mean())) for c in range(3))
    half = len(z) // 2
    proba = model.predict_proba(erased)
    second = HistGradientBoostingClassifier(max_leaf_nodes=15, early_stopping=True, random_state=seed)
    second.fit(proba[:half], z[:half])
    p = np.clip(second.predict_proba(proba[half:])[np.arange(len(z) - half), z[half:]], 1e-12, 1)
    share = np.bincount(z[:half]) / half
    bits = float((np.log2(p) - np.log2(share[z[half:]])).mean())
    return {"score_gap": score_gap, "decision_gap": decision_gap, "stacked_bits": bits}


def _draw(names: list[str], rows: list[list[Any]]) -> Any:
    def draw(figure: Any) -> None:
        axis = figure.subplots()
        left = [1 - row[0] for row in rows]
        for i, name in enumerate(names):
            values = [max(row[1 + i], 1e-32) for row in rows]
            axis.plot(
                [max(v, 1e-4) for v in left],
                values,
                marker="osD^vP"[i],
                linestyle=LINES[i],
                color=COLOURS[i],
                label=name,
            )
        axis.set(
            xscale="log",
            yscale="log",
            ylabel="value of the condition",
            xlabel="what is left of the concept: 1 - strength",
        )
        axis.set_xticks([1e-4, 1e-3, 1e-2, 1e-1, 1], ["erased", "0.001", "0.01", "0.1", "1"])
        axis.invert_xaxis()
        axis.legend(frameon=False, fontsize=9)

    return draw
