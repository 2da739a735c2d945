"""Matrices of covariances and correlations: ranks, roots, bases.

Every matrix that comes here is free of units: features are divided by their standard deviations first. Tolerances
are in `precision.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from excise.numerics.arrays import Array, convert, host, is_numpy, namespace
from excise.numerics.correlation import scales
from excise.numerics.precision import CONSTANT, EPS64, NEGLIGIBLE, summation_floor

__all__ = [
    "canonical_correlation",
    "complement",
    "extend_basis",
    "inverse_root",
    "inverse_root_psd",
    "largest_correlation",
    "rank_psd",
    "root_psd",
    "share_outside",
    "singular_values",
]


def inverse_root(covariance: Array) -> Array:
    """T (k, r) with T T^T the pseudo-inverse and T^T S T = I_r, for a small covariance S of rank r.

    Decided on the correlation matrix of the columns, so a class of 20 rows in 200,000 counts like any other.
    """
    xp = namespace(covariance)
    scale = scales(xp.linalg.diagonal(covariance))
    values, vectors = xp.linalg.eigh(covariance / scale[:, None] / scale[None, :])
    keep = values > summation_floor(covariance.shape[0], EPS64, float(values[-1]))
    return vectors[:, keep] / xp.sqrt(values[keep]) / scale[:, None]


def share_outside(A: Array, H: Array) -> float:
    """How much of the rows of A lies outside the span of the columns of H: the worst column, relative to its own size."""
    xp = namespace(A)
    sizes = xp.max(xp.abs(A), axis=0)
    outside = xp.max(xp.abs(A - A @ H @ H.T), axis=0)
    return float(xp.max(xp.where(sizes > 0, outside / xp.where(sizes > 0, sizes, xp.ones_like(sizes)), outside)))


def extend_basis(B: Array, rows: Array) -> Array:
    """An orthonormal basis of the span of B (d, b) and of `rows` (w, d), NumPy; the columns of B come first."""
    new = rows.T - B @ (B.T @ rows.T)
    new = new - B @ (B.T @ new)
    U, s, _ = np.linalg.svd(new, full_matrices=False)
    return np.concatenate([B, U[:, s > NEGLIGIBLE * np.linalg.norm(rows, 2)]], axis=1)


def complement(U: Array) -> Array:
    """(d, d - r) orthonormal basis of what is orthogonal to the orthonormal columns of U (d, r)."""
    xp = namespace(U)
    return xp.linalg.qr(U, mode="complete")[0][:, U.shape[1] :]


def singular_values(A: Array) -> Array:
    if min(A.shape) == 0:
        return A.reshape(-1)[:0]
    # On a device the small triangle of a QR is quicker on the host.
    small = A if is_numpy(A) else host(namespace(A).linalg.qr(A)[1])
    return convert(np.linalg.svd(small, compute_uv=False), A)


def root_psd(S: Array) -> Array:
    """S^1/2 of a positive semi-definite matrix."""
    xp = namespace(S)
    values, vectors = xp.linalg.eigh((S + S.T) / 2)
    return (vectors * xp.sqrt(xp.where(values > 0, values, xp.zeros_like(values)))) @ vectors.T


def rank_psd(S: Array) -> int:
    """Rank of a positive semi-definite matrix, by the same cut-off as its inverse root."""
    values = np.linalg.eigvalsh(host((S + S.T) / 2))
    return int((values > summation_floor(S.shape[0], EPS64, 1.0) * values[-1]).sum())


def inverse_root_psd(S: Array) -> Array:
    """The pseudo-inverse of S^1/2, with eigenvalues below rounding taken as zero."""
    xp = namespace(S)
    values, vectors = xp.linalg.eigh((S + S.T) / 2)
    keep = values > summation_floor(S.shape[0], EPS64, 1.0) * values[-1]
    safe = xp.where(keep, values, xp.ones_like(values))
    return (vectors * xp.where(keep, 1.0 / xp.sqrt(safe), xp.zeros_like(values))) @ vectors.T


def largest_correlation(X: Any, codes: Any) -> float:
    """Largest |correlation| of a feature (NumPy, float64) with a class; features that hardly vary count too."""
    Xc, Zc, sizes = _centred(X, codes)
    varies = sizes > CONSTANT * np.linalg.norm(X, axis=0)  # more than a constant does by rounding
    lengths = np.outer(np.where(varies, sizes, np.inf), np.maximum(np.linalg.norm(Zc, axis=0), 1e-300))
    return float((np.abs(Xc.T @ Zc) / lengths).max(initial=0.0))


def canonical_correlation(X: Any, codes: Any) -> float:
    """Largest canonical correlation of features (NumPy, float64) with classes, by singular values of the data."""
    Xc, Zc, sizes = _centred(X, codes)
    varies = sizes > CONSTANT * np.linalg.norm(X, axis=0)
    if not varies.any():
        return 0.0
    Q, s, _ = np.linalg.svd(Xc[:, varies] / sizes[varies], full_matrices=False)
    W, t, _ = np.linalg.svd(Zc, full_matrices=False)
    kept = Q[:, s > 0.1 * NEGLIGIBLE * s[0]].T @ W[:, t > 0.1 * NEGLIGIBLE * t[0]]
    return float(np.linalg.svd(kept, compute_uv=False)[0])


def _centred(X: Any, codes: Any) -> tuple[Any, Any, Any]:
    """Features and 0/1 columns of the classes, both centred, and the lengths of the features."""
    Z = np.eye(int(codes.max()) + 1)[codes]
    Xc = X - X.mean(axis=0)
    return Xc, Z - Z.mean(axis=0), np.linalg.norm(Xc, axis=0)
