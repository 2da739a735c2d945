"""Which features carry what a probe still finds, and in how many rows they vary at all.

A feature's share is what the probe loses when the feature's values are shuffled between the test rows, in parts of what
it loses over all features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from excise.auditing.audit_data import AuditData
from excise.auditing.probes import Fitted

__all__ = ["Carrier", "carriers_of", "in_words"]

MOST_FEATURES = 200  # beyond this a single feature means little, and shuffling each takes long
MOST_ROWS = 2000
SHOWN = 5


@dataclass(frozen=True)
class Carrier:
    feature: str
    share: float  # of the probe's gain
    varies_in: int  # audited rows, before the edit, that differ from the feature's most frequent value
    values: int  # distinct values of the feature before the edit


def carriers_of(data: AuditData, fitted: Fitted, seed: int) -> list[Carrier]:
    """The features with the largest share, those below 5% left out; [] if there are too many to try."""
    if data.d > MOST_FEATURES:
        return []
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(fitted.X))[:MOST_ROWS]
    X, z = fitted.X[rows], fitted.z[rows]
    whole = float(fitted.gain(X, z).mean())
    if whole <= 0:
        return []
    lost = np.zeros(data.d)
    for feature in range(data.d):
        own = X[:, feature].copy()
        X[:, feature] = rng.permutation(own)
        lost[feature] = (whole - float(fitted.gain(X, z).mean())) / whole
        X[:, feature] = own
    lost /= max(1.0, float(np.maximum(lost, 0.0).sum()))  # where features work together, each loses all: shared out
    return [
        Carrier(data.name_of(int(j)), float(lost[j]), *_variety(data, int(j)))
        for j in np.argsort(-lost)[:SHOWN]
        if lost[j] > 0.05
    ]


def _variety(data: AuditData, feature: int) -> tuple[int, int]:
    counts = np.unique(np.asarray(data.X[:, feature]), return_counts=True)[1]
    return int(data.n - counts.max()), len(counts)


def in_words(carriers: list[Carrier], n: int) -> str:
    """ "race_Black (61% of it; varies in 12 of 4,800 rows), ..."."""
    return ", ".join(f"{c.feature} ({c.share:.0%} of it; varies in {c.varies_in:,} of {n:,} rows)" for c in carriers)
