"""What chance alone would do: a bootstrap interval and a permutation test, for single rows and for rows that come in groups.

Rows of one group (sentences about one person) are not independent. The interval then draws whole groups. The test
exchanges labels only where independence allows it: between groups where each group has one label, within groups where
labels vary inside them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["PERMUTATIONS", "bootstrap", "null_in_words", "permutation_test"]

PERMUTATIONS = 1999
AT_ONCE = 50
RESAMPLES = 2000
_FREE = "any order of these labels is as likely as any other"
_BETWEEN = "any order of the labels of whole groups is as likely as any other"
_WITHIN = "any order of the labels within a group is as likely as any other"


def bootstrap(values: Any, seed: int, groups: Any = None) -> tuple[float, float]:
    """95% interval of the mean, over rows or over whole groups."""
    rng = np.random.default_rng(seed)
    unit = np.arange(len(values)) if groups is None else np.unique(groups, return_inverse=True)[1].ravel()
    sums, sizes = np.bincount(unit, values), np.bincount(unit)
    drawn = (rng.integers(0, len(sums), len(sums)) for _ in range(RESAMPLES))
    low, high = np.quantile([sums[i].sum() / sizes[i].sum() for i in drawn], [0.025, 0.975])
    return float(low), float(high)


def null_in_words(z: Any, groups: Any) -> str:
    """What the p-value's null is, and which orders of the labels are equally likely under it."""
    how = _FREE if groups is None else _BETWEEN if _one_label_each(z, groups) else _WITHIN
    return f"in rows that the eraser has not seen, the erased features and the labels are independent; under it {how}"


def permutation_test(
    X: Any, z: Any, classes: bool, seed: int, permutations: int = PERMUTATIONS, groups: Any = None
) -> tuple[float, float]:
    """p-value and power of T = sum_i w_i |q_i^T Z|^2 / n, over the principal directions q_i of X, Z the white labels.

    w_i = l_i / (l_i + mean l) damps directions of little variance, so T also tells something where n <= d. The p-value
    is (1 + number of permutations with T at least as great) / (1 + permutations): valid for every n and d.
    """
    Xc = X - X.mean(axis=0)
    spread = Xc.std(axis=0)
    Xc = Xc[:, spread > 0] / spread[spread > 0]
    if Xc.shape[1] == 0:
        return 1.0, 1.0
    Q, t, _ = np.linalg.svd(Xc, full_matrices=False)
    own = t**2 > 1e-12 * t[0] ** 2
    Q, t = Q[:, own], t[own]
    root = np.sqrt(t**2 / (t**2 + np.mean(t**2)))
    Q = Q * root  # (n, r)
    Z = np.eye(int(z.max()) + 1)[z][:, np.unique(z)[1:]] if classes else np.asarray(z, dtype=float)
    Z = (Z - Z.mean(axis=0)) / Z.std(axis=0)
    size, block = np.ones(len(Q)), None
    if groups is not None:
        unit = np.unique(groups, return_inverse=True)[1].ravel()
        if _one_label_each(z, groups):  # a group is one draw, with the sum of its rows
            first = np.unique(unit, return_index=True)[1]
            Q, Z, size = _sums(Q, unit), Z[first], np.bincount(unit).astype(float)
        else:
            block = unit
    rng = np.random.default_rng(seed)
    observed = (_white_scores(Q, Z[None], size) ** 2).sum()
    null, first_draws = [], []
    for begin in range(0, permutations, AT_ONCE):
        many = np.stack([Z[_order(rng, len(Z), block)] for _ in range(min(AT_ONCE, permutations - begin))])
        scores = _white_scores(Q, many, size)
        null.append((scores**2).sum(axis=(1, 2)))
        if begin < 200:
            first_draws.append(scores)
    draws = np.concatenate(null)
    p = (1 + int((draws >= observed * (1 - 1e-12)).sum())) / (1 + permutations)
    return float(p), _smallest_effect(np.concatenate(first_draws), root, float(np.quantile(draws, 0.95)), rng)


def _one_label_each(z: Any, groups: Any) -> bool:
    """Whether no label varies within a group."""
    _, first, unit = np.unique(groups, return_index=True, return_inverse=True)
    z = np.asarray(z)
    return bool((z == z[first[unit.ravel()]]).all())


def _sums(rows: Any, unit: Any) -> Any:
    order = np.argsort(unit, kind="stable")
    return np.add.reduceat(rows[order], np.searchsorted(unit[order], np.arange(unit.max() + 1)), axis=0)


def _order(rng: Any, n: int, block: Any) -> Any:
    """A random order of all, or of those within each block."""
    if block is None:
        return rng.permutation(n)
    order = np.empty(n, dtype=int)
    order[np.argsort(block, kind="stable")] = np.lexsort((rng.random(n), block))
    return order


def _white_scores(Q: Any, Z: Any, size: Any) -> Any:
    """(b, r, q) Q^T times the labels made white, for b orders of them; each unit counts `size` times."""
    Z = Z - (size @ Z)[:, None, :] / size.sum()
    C = Z.transpose(0, 2, 1) @ (Z * size[:, None])
    values, vectors = np.linalg.eigh(C)
    keep = values > 1e-10 * values[:, -1:]
    root = np.where(keep, 1 / np.sqrt(np.where(keep, values, 1.0)), 0.0)
    white = Z @ (vectors * root[:, None, :])
    b, n, q = white.shape
    return (Q.T @ white.transpose(1, 0, 2).reshape(n, b * q)).reshape(-1, b, q).transpose(1, 0, 2)


def _smallest_effect(null: Any, root: Any, critical: float, rng: Any) -> float:
    """The canonical correlation, in a random direction, that would exceed the 5% limit four times in five."""
    direction = rng.standard_normal((len(null), len(root)))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)

    def power(rho: float) -> float:
        planted = np.sqrt(1 - rho**2) * null
        planted[:, :, -1] += rho * direction * root
        return float(((planted**2).sum(axis=(1, 2)) > critical).mean())

    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= 0.8 else (middle, high)
    return high
