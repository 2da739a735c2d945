"""Features on which an edit leaves fingerprints: those of few distinct values, and those that hardly ever vary.

A 0/1 feature plus a shift per class gives the class away by its fraction (oracle, quadratic). An indicator that fires in a
handful of rows becomes, where it does not fire, a copy of the erased score. Both are known from one pass: counts add up,
and most features are settled by a look at a few rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.numerics.arrays import Array, convert, host, namespace

__all__ = ["FEW_VALUES", "RARE_ROWS", "Fingerprints"]

FEW_VALUES = 10  # distinct values up to which a feature is discrete
RARE_ROWS = 20  # features that vary in fewer rows are rare
SAMPLE = 256  # rows in which distinct values are counted
Host = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Fingerprints:
    """What is known of the values of d features.

    >>> X = np.array([[0.0, 1.0], [0.0, 2.0], [5.0, 3.0]])
    >>> found = Fingerprints.of(X)
    >>> found.varying.tolist(), found.few_valued.tolist()
    ([1, 2], [True, True])
    """

    rows: int
    usual: Host  # (d,) a value that occurs: the one of most rows, if there is such a value
    varying: Host  # (d,) rows with another value; all rows if a look at a few of them found many values
    values: Host  # (d, FEW_VALUES + 1) the least distinct values, padded with infinity; all NaN if there are more

    @staticmethod
    def of(X: Array, few: Array | None = None) -> Fingerprints:
        """Of rows X (n, d). `few` are some of them, a look at which settles most features."""
        n = int(X.shape[0])
        pilot = np.sort(host(X[:: max(1, n // 63)] if few is None else few).astype(np.float64), axis=0)
        usual = pilot[len(pilot) // 2]
        varying, values = (pilot != usual).sum(axis=0), _least(pilot)
        if n > len(pilot):
            settled = np.isnan(values[:, 0]) & (2 * varying >= len(pilot))
            varying = np.where(settled, n, 0)
            if len(at := np.flatnonzero(~settled)):
                varying[at] = _count(X, at, usual[at])
            if len(at := np.flatnonzero(~np.isnan(values[:, 0]))):
                some = np.unique(np.linspace(0, n - 1, min(SAMPLE, n)).astype(np.int64))
                sample = namespace(X).take(X[convert(some, X)], convert(at, X), axis=1)
                values[at] = _least(np.sort(host(sample).astype(np.float64), axis=0))
        return Fingerprints(n, usual, varying, values)

    def __add__(self, other: Fingerprints) -> Fingerprints:
        """Of both parts. If their usual values differ, rows of the smaller part all count as varying."""
        same = self.usual == other.usual
        own, others = self.rows - self.varying, other.rows - other.varying  # rows that have the usual value
        mine = (own > others) | ((own == others) & (self.usual <= other.usual))
        apart = np.where(mine, self.varying + other.rows, other.varying + self.rows)
        varying = np.where(same, self.varying + other.varying, apart)
        values = np.full_like(self.values, np.nan)
        few = np.flatnonzero(~(np.isnan(self.values[:, 0]) | np.isnan(other.values[:, 0])))
        if len(few):
            values[few] = _least(np.sort(np.concatenate([self.values[few].T, other.values[few].T]), axis=0))
        return Fingerprints(self.rows + other.rows, np.where(mine, self.usual, other.usual), varying, values)

    def __sub__(self, other: Fingerprints) -> Fingerprints:
        """Of the rows that are not in `other`, which is a part of these."""
        rows = self.rows - other.rows
        varying = np.where(self.usual == other.usual, np.maximum(self.varying - other.varying, 0), rows)
        return Fingerprints(rows, self.usual, varying, self.values)

    @property
    def few_valued(self) -> Host:
        """(d,) features with 2 to FEW_VALUES distinct values."""
        distinct = np.isfinite(self.values).sum(axis=1)
        few: Host = (distinct > 1) & (distinct <= FEW_VALUES)
        return few

    @property
    def least_varying(self) -> Host:
        """(d,) rows in which a feature varies. Of two values either may be the usual one: a stream may start with the other."""
        two = np.isfinite(self.values).sum(axis=1) == 2
        return np.where(two, np.minimum(self.varying, self.rows - self.varying), self.varying)

    def rare(self, rows: int = RARE_ROWS) -> Host:
        """(d,) features that vary, in fewer than `rows` rows."""
        least = self.least_varying
        return (least > 0) & (least < rows)

    def to_dict(self) -> dict[str, Any]:
        """In JSON values: only of features that hardly vary or have few values, so that no row can be read from it."""
        few = ~np.isnan(self.values[:, 0])
        at = np.flatnonzero(few | (2 * self.varying < self.rows))
        kept = [[v for v in row if np.isfinite(v)] for row in self.values[at].tolist()]
        return {
            "rows": self.rows,
            "d": len(self.usual),
            "features": at.tolist(),
            "usual": self.usual[at].tolist(),
            "varying": self.varying[at].tolist(),
            "values": [values if some else None for values, some in zip(kept, few[at].tolist(), strict=True)],
        }

    @staticmethod
    def from_dict(about: dict[str, Any]) -> Fingerprints:
        rows, d, at = int(about["rows"]), int(about["d"]), np.array(about["features"], dtype=np.int64)
        usual, varying = np.full(d, np.nan), np.full(d, rows)
        values = np.full((d, FEW_VALUES + 1), np.nan)
        usual[at], varying[at] = about["usual"], about["varying"]
        for feature, known in zip(at, about["values"], strict=True):
            if known is not None:
                values[feature] = [*known, *[np.inf] * (FEW_VALUES + 1 - len(known))]
        return Fingerprints(rows, usual, varying, values)


def _least(ordered: Host) -> Host:
    """(d, FEW_VALUES + 1) the least distinct values of sorted columns (m, d); NaN for columns with more of them."""
    new = np.ones(ordered.shape, dtype=bool)
    new[1:] = ordered[1:] != ordered[:-1]
    distinct = np.sort(np.where(new, ordered, np.inf), axis=0)[: FEW_VALUES + 1].T
    missing = FEW_VALUES + 1 - distinct.shape[1]
    if missing > 0:
        distinct = np.concatenate([distinct, np.full((len(distinct), missing), np.inf)], axis=1)
    distinct[np.isfinite(distinct[:, -1])] = np.nan
    return distinct


def _count(X: Array, at: Host, usual: Host) -> Host:
    """In how many rows each of the features `at` has another value than the usual one."""
    xp = namespace(X)
    columns, value = convert(at, X), xp.astype(convert(usual, X), X.dtype)
    total = np.zeros(len(at), dtype=np.int64)
    for begin in range(0, X.shape[0], step := max(1, 2**22 // len(at))):
        part = xp.take(X[begin : begin + step], columns, axis=1)
        total += host(xp.sum(xp.astype(part != value, xp.int64), axis=0))
    return total
