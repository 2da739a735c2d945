"""Is the main task fairer? Accuracy and true-positive rates by group, before and after the edit.

The theorem speaks of losses and scores. Decisions are thresholds on scores: they may still differ between groups, so
these are figures, not conditions.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.auditing.probes import standardised, units

__all__ = ["Fairness", "Outcomes", "fairness_of", "outcomes", "tpr_spread"]


@dataclass(frozen=True)
class Outcomes:
    """One classifier's decisions on the test rows."""

    accuracy: float
    rms_tpr_gap: float | None  # over task classes: largest difference of TPR between two groups; None: no class has two
    statistical_parity: float  # largest difference between two groups in how often a class is predicted
    equalised_odds: float | None  # largest difference between two groups in true- or false-positive rate of a class
    tpr: list[list[float | None]]  # [task class][group]
    tpr_gap: list[list[float | None]]  # [task class][group]: TPR of the group minus that of all others
    share_correlation: list[float | None]  # per group: of its gaps with its share in each task class


@dataclass(frozen=True)
class Fairness:
    """`kept`: the classifier trained before, on rows after; `refitted`: trained again after."""

    task_classes: list[Any]
    groups: list[Any]
    share: list[list[float]]  # [task class][group]: share of the group in the class, all rows
    n_train: int
    n_test: int
    majority: float
    before: Outcomes
    kept: Outcomes
    refitted: Outcomes
    notes: list[str]


def rates(hit: Any, among: Any, groups: Any, count: int) -> list[float | None]:
    """Per group: the share of hits among its rows; None where it has none."""
    return [float(hit[among & (groups == g)].mean()) if (among & (groups == g)).any() else None for g in range(count)]


def _largest_gap(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return max(known) - min(known) if len(known) > 1 else None


def tpr_spread(said: Any, y: Any, groups: Any) -> float | None:
    """RMS over the classes of y of the largest difference in TPR between two groups."""
    count = int(groups.max()) + 1
    gaps = [_largest_gap(rates(said == c, y == c, groups, count)) for c in np.unique(y)]
    known = [gap for gap in gaps if gap is not None]
    return float(np.sqrt(np.mean(np.square(known)))) if known else None


def outcomes(said: Any, y: Any, groups: Any, share: Any) -> Outcomes:
    """All figures of one classifier. share: (task classes, groups)."""
    n_classes, n_groups = share.shape
    everyone = np.ones(len(y), dtype=bool)
    tpr, gap, parity = [], [], []
    odds: list[float | None] = []
    for c in range(n_classes):
        own = rates(said == c, y == c, groups, n_groups)
        tpr.append(own)
        others = [rates(said == c, y == c, groups != g, 2)[1] for g in range(n_groups)]
        gap.append([None if a is None or b is None else a - b for a, b in zip(own, others, strict=True)])
        parity.append(_largest_gap(rates(said == c, everyone, groups, n_groups)) or 0.0)
        odds += [_largest_gap(own), _largest_gap(rates(said == c, y != c, groups, n_groups))]
    return Outcomes(
        float((said == y).mean()),
        tpr_spread(said, y, groups),
        max(parity),
        max((gap for gap in odds if gap is not None), default=None),
        tpr,
        gap,
        [_correlation([row[g] for row in gap], share[:, g]) for g in range(n_groups)],
    )


def _correlation(gaps: list[float | None], share: Any) -> float | None:
    known = [(gap, s) for gap, s in zip(gaps, share.tolist(), strict=True) if gap is not None]
    if len(known) < 3:
        return None  # through two points there is always a line
    a, b = np.array(known).T
    return float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else None


def fairness_of(
    before: tuple[Any, Any],
    after: tuple[Any, Any],
    y: tuple[Any, Any],
    groups: Any,
    share: Any,
    names: tuple[list[Any], list[Any]],
    scale: Any,
    notes: list[str],
) -> Fairness:
    """Train on the first of each pair, decide on the second; `groups` are those of the second."""
    from sklearn.linear_model import LogisticRegression

    def fitted(X: Any) -> Any:
        return LogisticRegression(max_iter=2000).fit(X, y[0])

    mean, spread = units(before[0], scale)
    own, own_new = ((X - mean) / spread for X in before)
    kept_new = (after[1] - mean) / spread  # the kept classifier reads the new rows in its own units
    again, again_new = standardised(*after, scale)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = fitted(own), fitted(again)
    said = notes + [
        f"the {which} classifier stopped at {int(model.n_iter_.max())} iterations, before convergence"
        for which, model in (("first", first), ("re-fitted", second))
        if int(model.n_iter_.max()) >= model.max_iter
    ]
    results = [
        outcomes(model.predict(X), y[1], groups, share)
        for model, X in ((first, own_new), (first, kept_new), (second, again_new))
    ]
    alone = [name for name, row in zip(names[0], results[0].tpr, strict=True) if sum(v is not None for v in row) < 2]
    if alone:
        said.append(
            f"{len(alone)} classes of the task have test rows of one group only and count in no gap: {', '.join(map(str, alone[:5]))}"
        )
    majority = float((y[1] == np.argmax(np.bincount(y[0]))).mean())
    return Fairness(
        names[0], names[1], share.tolist(), len(y[0]), len(y[1]), majority, results[0], results[1], results[2], said
    )
