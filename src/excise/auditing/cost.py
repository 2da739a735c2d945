"""What the edit cost: how far the rows were moved, and how far they had to be."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.auditing.audit_data import AuditData
from excise.auditing.passes import SecondPass
from excise.errors import ExciseError, ExciseWarning
from excise.methods.leace import leace
from excise.moments.moments import Moments
from excise.numerics.linalg import rank_psd

__all__ = ["Cost", "cost_of"]

BINS = 40


@dataclass(frozen=True)
class Cost:
    mean_squared_edit: float
    relative: float  # to the total variance before
    mahalanobis: float  # mean squared edit in units of the covariance before: dimensions' worth of variance
    oracle: float | None  # the least mean squared edit of all, which needs labels
    leace: float | None  # the least of an affine edit
    over_oracle: float | None
    over_leace: float | None
    rank: int  # dimensions in which the edit lives
    spectral_norm: float | None  # of P: how much it can lengthen a difference
    sizes: dict[str, float]  # quantiles of |edit| of a row, over the root of the total variance
    cosines: dict[str, float]  # quantiles of the cosine between a row before and after
    histogram: dict[str, list[float]]  # of the sizes


def cost_of(data: AuditData, m: Moments, found: SecondPass) -> Cost:
    """From the moments before and what the second walk over the rows gathered."""
    total = float(np.asarray(m.var_x).sum())
    sizes = found.sizes
    known = getattr(data.eraser, "rank", None)
    squared = float((sizes**2).mean())
    oracle = float((np.asarray(m.whitened_cov_xz) ** 2).sum())
    affine = _leace_edit(m)
    unit = np.sqrt(total) if total > 0 else 1.0
    low, high = float((sizes / unit).min()), float((sizes / unit).max())
    slack = 1e-6 * max(high, 1e-6)  # an oracle may move all rows by the same length, to rounding
    counts, edges = np.histogram(sizes / unit, bins=BINS, range=(max(0.0, low - slack), high + slack))
    if known is None:
        known = rank_psd(found.second) if found.second is not None and found.second.any() else 0
    return Cost(
        squared,
        squared / total if total > 0 else 0.0,
        found.within / data.n,
        oracle,
        affine,
        squared / oracle if oracle > 0 else None,
        squared / affine if affine else None,
        int(known),
        float(data.eraser.spectral_norm) if hasattr(data.eraser, "spectral_norm") else None,
        _quantiles(sizes / unit),
        _quantiles(found.cosines),
        {"counts": counts.astype(float).tolist(), "edges": edges.tolist()},
    )


def _leace_edit(m: Moments) -> float | None:
    """The mean squared edit of LEACE on these rows: the least of an affine edit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExciseWarning)
        try:
            e = leace(m, shrinkage="none")
        except ExciseError:
            return None
    return m.mean_squared_edit(e.left, e.right)


def _quantiles(values: Any) -> dict[str, float]:
    at = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
    return {f"{100 * q:g}%": float(v) for q, v in zip(at, np.quantile(values, at), strict=True)}
