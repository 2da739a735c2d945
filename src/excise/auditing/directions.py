"""Directions of the audited rows in which something can be seen: those that vary by more than rounding lets one know.

What lies below that, by the same ridge as in fitting, is not judged by its correlation, which could be anything, but by its
size: no feature may keep a covariance with the concept beyond what rounding leaves (`leak_bound`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.moments.moments import Moments
from excise.numerics.arrays import host
from excise.numerics.correlation import ridge, scales

__all__ = ["Whitened", "standard_norm", "unit_scale", "whitened"]


@dataclass(frozen=True)
class Whitened:
    """(x - mean) @ basis has unit covariance; `spread` are the directions' standard deviations in units of `scale`.

    `correlations` (r, q): of each direction with the whitened concept; its singular values are the canonical correlations.
    """

    mean: Any  # (d,)
    basis: Any  # (d, r)
    spread: Any  # (r,)
    correlations: Any  # (r, q)
    floor: float  # the variance, in units of `scale`, below which a direction was left out

    @property
    def canonical(self) -> Any:
        if min(self.correlations.shape) == 0:
            return np.zeros(0)
        return np.minimum(np.linalg.svd(self.correlations, compute_uv=False), 1.0)

    @property
    def first(self) -> Any:
        """(d,) the direction of the largest canonical correlation."""
        if min(self.correlations.shape) == 0:
            return np.eye(len(self.mean))[0]
        return self.basis @ np.linalg.svd(self.correlations, full_matrices=False)[0][:, 0]


def whitened(m: Moments, scale: Any, eps: float | None = None) -> Whitened:
    """Directions of X, in units of `scale` (d,), that vary by more than the ridge.

    `eps` is the unit roundoff of the rows; None takes what the Moments know.
    """
    R = np.asarray(m.cov_xx) / scale[:, None] / scale[None, :]
    values, vectors = np.linalg.eigh((R + R.T) / 2)
    delta = np.asarray(m.delta)
    if eps is not None:
        delta = eps * np.hypot(np.asarray(m.mean_x), np.sqrt(np.asarray(m.var_x))) / scale
    floor = float(ridge(delta, m.kish, m.eps_xx, float(np.linalg.norm(values))).max())
    seen = values > floor
    spread = np.sqrt(values[seen])
    basis = vectors[:, seen] / spread / scale[:, None]
    return Whitened(np.asarray(m.mean_x), basis, spread, basis.T @ np.asarray(m.whitened_cov_xz), floor)


def standard_norm(eraser: Any, scale: Any) -> float:
    """Spectral norm of an affine edit in units of the features' scales: what it multiplies roundings by; 1 if unknown."""
    left, right = getattr(eraser, "left", None), getattr(eraser, "right", None)
    if left is None or right is None or min(left.shape) == 0:
        return 1.0
    U, V = host(left).astype(np.float64) / scale[:, None], host(right).astype(np.float64) * scale[:, None]
    return float(np.linalg.norm(np.linalg.qr(U)[1] @ np.linalg.qr(V)[1].T, 2))


def unit_scale(m: Moments, other: Moments) -> Any:
    """(d,) standard deviations of the features before; of those that were constant, that after."""
    before, after = np.asarray(m.var_x), np.asarray(other.var_x)
    return np.asarray(scales(np.where(before > 0, before, after)))
