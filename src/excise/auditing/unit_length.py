"""What dividing by the length would bring back of an erased concept: a cosine index does it to every row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from excise.auditing.audit_data import AuditData, unit_rows
from excise.auditing.directions import unit_scale, whitened
from excise.moments.moments import Moments

__all__ = ["BroughtBack", "brought_back"]

MOST_ROWS = 20_000
UNIT = 1e-2  # how far from 1 the length of a row may be to count as a unit vector


@dataclass(frozen=True)
class BroughtBack:
    """Largest canonical correlation of the concept with the rows: before, erased, and erased then normalised."""

    before: float
    erased: float
    normalized: float


def brought_back(data: AuditData, seed: int) -> BroughtBack | None:
    """None unless the rows come in unit length and leave it by the edit; of rows drawn at random where there are many."""
    if not data.edited:
        return None
    head = data.before(slice(0, min(data.n, 256)))
    if not (np.abs(np.linalg.norm(head, axis=1) - 1.0) < UNIT).all():
        return None
    index = np.arange(data.n)
    if data.n > MOST_ROWS:
        index = np.sort(np.random.default_rng(seed).choice(data.n, MOST_ROWS, replace=False))
    before, after = data.before(index), data.after(index)
    labels = data.labels(index)
    own, *others = (Moments().update(rows, labels) for rows in (before, after, unit_rows(after)))
    values = [own, *others]
    found = [
        float(whitened(m, unit_scale(own, m), data.eps if m is not own else None).canonical.max(initial=0.0))
        for m in values
    ]
    return BroughtBack(*found)
