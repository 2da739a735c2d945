"""What chance alone would do: an interval and a permutation test, for single rows and for rows that come in groups.

Rows of one group (sentences about one person) are not independent. The interval then counts whole groups. The test has
two parts: group means, where the groups' labels are exchanged, each group counted once; and deviations from them, where
labels are exchanged within a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["PERMUTATIONS", "interval_of_mean", "null_in_words", "permutation_test"]

PERMUTATIONS = 1999
AT_ONCE = 50


def interval_of_mean(values: Any, groups: Any = None, test_over_train: float = 0.0) -> tuple[float, float]:
    """95% interval of the mean, over rows or over whole groups, by Student's t.

    `test_over_train`: the values come from cross-validation. Which rows the models were trained on is a matter of chance
    too, and the folds share them; the variance is raised by the ratio of test to training rows for it (Nadeau and Bengio,
    2003).
    """
    from scipy.stats import t

    unit = np.arange(len(values)) if groups is None else np.unique(groups, return_inverse=True)[1].ravel()
    sums, sizes = np.bincount(unit, values), np.bincount(unit)
    mean, count = float(np.mean(values)), len(sums)
    if count < 2:
        return -np.inf, np.inf
    influence = (sums - mean * sizes) / sizes.mean()
    half = t.ppf(0.975, count - 1) * np.sqrt((1.0 + test_over_train) * influence.var(ddof=1) / count)
    return mean - float(half), mean + float(half)


def null_in_words(grouped: bool) -> str:
    """What the p-value's null is, and which orders of the labels are equally likely under it."""
    how = (
        "any order of the groups' labels, and of the labels within a group, is as likely as any other"
        if grouped
        else "any order of these labels is as likely as any other"
    )
    return f"in rows that the eraser has not seen, the erased features and the labels are independent; under it {how}"


def permutation_test(
    X: Any, z: Any, classes: bool, seed: int, permutations: int = PERMUTATIONS, groups: Any = None
) -> tuple[float, float]:
    """p-value and power of T = sum_i w_i |q_i^T Z|^2 / n, over the principal directions q_i of X, Z the white labels.

    w_i = l_i / (l_i + mean l) damps directions of little variance, so T also tells something where n <= d. The p-value
    is (1 + number of permutations with T at least as great) / (1 + permutations): valid for every n and d. With groups,
    T is the sum of the two parts, each divided by what it is on average under the null.
    """
    Xc = X - X.mean(axis=0)
    spread = Xc.std(axis=0)
    Xc = Xc[:, spread > 0] / spread[spread > 0]
    Z = np.eye(int(z.max()) + 1)[z][:, np.unique(z)[1:]] if classes else np.asarray(z, dtype=float)
    Z = Z[:, Z.std(axis=0) > 0]
    if Xc.shape[1] == 0 or Z.shape[1] == 0:
        return 1.0, 1.0
    Z = (Z - Z.mean(axis=0)) / Z.std(axis=0)
    Q, t, _ = np.linalg.svd(Xc, full_matrices=False)
    own = t**2 > 1e-12 * t[0] ** 2
    Q = Q[:, own] * np.sqrt(t[own] ** 2 / (t[own] ** 2 + np.mean(t[own] ** 2)))  # (n, r)
    parts = _parts(Q, Z, groups)
    if not parts:
        return 1.0, 1.0
    rng = np.random.default_rng(seed)
    observed = sum(float((part.scores(part.Z[None]) ** 2).sum()) for part in parts)
    null, first = [], []
    for begin in range(0, permutations, AT_ONCE):
        count = min(AT_ONCE, permutations - begin)
        scores = [part.scores(np.stack([part.Z[part.order(rng)] for _ in range(count)])) for part in parts]
        null.append(sum((s**2).sum(axis=(1, 2)) for s in scores))
        if begin < 200:
            first.append(scores)
    draws = np.concatenate(null)
    p = (1 + int((draws >= observed * (1 - 1e-12)).sum())) / (1 + permutations)
    kept = [np.concatenate(s) for s in zip(*first, strict=True)]
    return float(p), _smallest_effect(kept, [part.norms for part in parts], float(np.quantile(draws, 0.95)), rng)


@dataclass(frozen=True)
class _Part:
    """Rows whose labels may be exchanged, all of them or within blocks. Q (n, r) and Z (n, q) are centred."""

    Q: Any
    Z: Any
    block: Any = None

    @property
    def norms(self) -> Any:
        """(r,) scores of labels that are the direction itself."""
        return np.linalg.norm(self.Q, axis=0) / self.usual

    @property
    def usual(self) -> float:
        """The square root of |Q^T Z|^2 for white labels in random order, on average."""
        return float(np.linalg.norm(self.Q) * np.sqrt(self.Z.shape[1] / len(self.Q)))

    def order(self, rng: Any) -> Any:
        n = len(self.Q)
        if self.block is None:
            return rng.permutation(n)
        order = np.empty(n, dtype=int)
        order[np.argsort(self.block, kind="stable")] = np.lexsort((rng.random(n), self.block))
        return order

    def scores(self, Z: Any) -> Any:
        """(b, r, q) Q^T times the white labels, for b orders of them (b, n, q)."""
        values, vectors = np.linalg.eigh(Z.transpose(0, 2, 1) @ Z)
        keep = values > 1e-10 * values[:, -1:]
        root = np.where(keep, 1 / np.sqrt(np.where(keep, values, 1.0)), 0.0)
        white = Z @ (vectors * root[:, None, :])
        b, n, q = white.shape
        scores = (self.Q.T @ white.transpose(1, 0, 2).reshape(n, b * q)).reshape(-1, b, q).transpose(1, 0, 2)
        return scores / self.usual


def _parts(Q: Any, Z: Any, groups: Any) -> list[_Part]:
    if groups is None:
        return [_Part(Q, Z)]
    unit = np.unique(groups, return_inverse=True)[1].ravel()
    size = np.bincount(unit)[:, None]
    Q_mean, Z_mean = (_sums(A, unit) / size for A in (Q, Z))
    between = _Part(Q_mean - Q_mean.mean(axis=0), Z_mean - Z_mean.mean(axis=0))
    within = _Part(Q - Q_mean[unit], Z - Z_mean[unit], unit)
    return [part for part in (between, within) if min(np.abs(part.Q).max(), np.abs(part.Z).max()) > 1e-9]


def _sums(rows: Any, unit: Any) -> Any:
    order = np.argsort(unit, kind="stable")
    return np.add.reduceat(rows[order], np.searchsorted(unit[order], np.arange(unit.max() + 1)), axis=0)


def _smallest_effect(null: list[Any], norms: list[Any], critical: float, rng: Any) -> float:
    """The correlation, in a random direction, that would exceed the 5% limit four times in five."""
    direction = rng.standard_normal((len(null[0]), len(norms[0])))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)

    def power(rho: float) -> float:
        total = np.zeros(len(direction))
        for scores, norm in zip(null, norms, strict=True):
            planted = np.sqrt(1 - rho**2) * scores
            planted[:, :, -1] += rho * direction * norm
            total += (planted**2).sum(axis=(1, 2))
        return float((total > critical).mean())

    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= 0.8 else (middle, high)
    return high
