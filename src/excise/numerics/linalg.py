"""Matrices of covariances and correlations: ranks, roots, bases.

Every matrix that comes here is free of units: features are divided by their standard deviations first. Tolerances
are in `precision.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from excise.numerics.arrays import Array, convert, host, is_numpy, namespace
from excise.numerics.precision import CONSTANT_RTOL, EPS64, NEGLIGIBLE, correlation_floor, summation_floor

__all__ = [
    "basis",
    "basis_and_rows",
    "canonical_correlation",
    "complement",
    "extend_basis",
    "force_dual",
    "inverse_root",
    "inverse_root_psd",
    "largest_correlation",
    "over_transposed",
    "rank_psd",
    "root_psd",
    "scales",
    "share_outside",
    "singular_values",
    "thin_svd",
]


def scales(variance: Array) -> Array:
    """Standard deviations to divide by; 1 for a constant feature, whose rows are zero anyway."""
    xp = namespace(variance)
    positive = variance > 0
    return xp.where(positive, xp.sqrt(xp.where(positive, variance, xp.ones_like(variance))), xp.ones_like(variance))


def inverse_root(covariance: Array) -> Array:
    """T (k, r) with T T^T the pseudo-inverse and T^T S T = I_r, for a small covariance S of rank r.

    Decided on the correlation matrix of the columns, so a class of 20 rows in 200,000 counts like any other.
    """
    xp = namespace(covariance)
    scale = scales(xp.linalg.diagonal(covariance))
    values, vectors = xp.linalg.eigh(covariance / scale[:, None] / scale[None, :])
    keep = values > summation_floor(covariance.shape[0], EPS64, float(values[-1]))
    return vectors[:, keep] / xp.sqrt(values[keep]) / scale[:, None]


def basis(A: Array) -> tuple[Array, Array]:
    """Orthonormal basis (d, r) of the columns of a matrix of correlations, and its singular values (r,)."""
    U, s, _ = basis_and_rows(A)
    return U, s


def basis_and_rows(A: Array) -> tuple[Array, Array, Array]:
    """The singular value decomposition U s H^T of a matrix of correlations, without its summation errors."""
    if min(A.shape) == 0:
        return A[:, :0], A[0, :0], A.T[:, :0]
    U, s, Ht = thin_svd(A)
    keep = s > correlation_floor(*A.shape)
    return U[:, keep], s[keep], Ht[keep, :].T


def thin_svd(A: Array) -> tuple[Array, Array, Array]:
    """U s H^T = A (d, k). A tall matrix on a device is first brought to (k, k) there: small ones are quicker on the host."""
    xp = namespace(A)
    d, k = A.shape
    if is_numpy(A) or d < 4 * k or k > 512:
        U, s, Ht = xp.linalg.svd(A, full_matrices=False)
        return U, s, Ht
    Q, T = xp.linalg.qr(A)
    U, s, Ht = np.linalg.svd(host(T))
    return Q @ convert(U, A), convert(s, A), convert(Ht, A)


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
    return namespace(A).linalg.svdvals(A) if is_numpy(A) else thin_svd(A)[1]


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


def force_dual(V: Array, U: Array) -> Array:
    """V (U^T V)^-1, so that V^T U = I to rounding: what the guarantee rests on."""
    for _ in range(2):  # the second pass removes the rounding of the first
        V = over_transposed(V, V.T @ U)
    return V


def over_transposed(V: Array, M: Array) -> Array:
    """V M^-T for V (d, r) and a small M (r, r), which is inverted on the host."""
    if is_numpy(V):
        return np.linalg.solve(M, V.T).T
    return V @ convert(np.linalg.inv(host(M)).T, V)


def largest_correlation(X: Any, codes: Any) -> float:
    """Largest |correlation| of a feature (NumPy, float64) with a class; features that hardly vary count too."""
    Xc, Zc, sizes = _centred(X, codes)
    varies = sizes > 0.1 * CONSTANT_RTOL * np.linalg.norm(X, axis=0)  # more than a constant does by rounding
    lengths = np.outer(np.where(varies, sizes, np.inf), np.maximum(np.linalg.norm(Zc, axis=0), 1e-300))
    return float((np.abs(Xc.T @ Zc) / lengths).max(initial=0.0))


def canonical_correlation(X: Any, codes: Any) -> float:
    """Largest canonical correlation of features (NumPy, float64) with classes, by singular values of the data."""
    Xc, Zc, sizes = _centred(X, codes)
    varies = sizes > 0.1 * CONSTANT_RTOL * np.linalg.norm(X, axis=0)
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
