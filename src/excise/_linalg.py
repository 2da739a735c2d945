"""Matrices of covariances: ranks, roots, bases. The tolerances of the core are here.

Every matrix that comes here is free of units: features are divided by their standard deviations first, so that a
tolerance means the same for metres and for micrometres.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from excise._array import Array, host, namespace

__all__ = [
    "DEAD",
    "DISPENSABLE",
    "FAINT",
    "HIDDEN",
    "INFEASIBLE",
    "SAME_LEVEL",
    "ULPS",
    "UNEQUAL",
    "basis",
    "basis_and_rows",
    "canonical_correlation",
    "chance_correlation",
    "complement",
    "correlation_cutoff",
    "correlations_with",
    "covariance_cutoff",
    "data_eps",
    "extended",
    "force_dual",
    "greatest_correlation",
    "inverse_root",
    "inverse_root_psd",
    "rank_psd",
    "root_psd",
    "rounding_share",
    "scales",
    "share_outside",
    "singular_values",
]

EPS64 = float(np.finfo(np.float64).eps)
INFEASIBLE = 1e-7  # sines of angles, and shares, below this: two subspaces meet
UNEQUAL = 1e-6  # relative differences of covariances above this are worth a warning
HIDDEN = 0.05  # canonical correlations in unresolved directions above this are worth a warning
FAINT = 1e-5  # directions of less spread, in units of the features', are rounding errors if rounding explains them:
ULPS = 8.0  # if they vary by less than so many roundings do (what a LayerNorm leaves varies by two or three)
DISPENSABLE = 0.2  # such a direction is left alone if not more than this share of what is erased is best told by it
DEAD = 1e-12  # spread of a feature, relative to the average, below which it counts as constant
SAME_LEVEL = 1e-13  # eigenvalues in [0, 1] that differ by less are one


def covariance_cutoff(d: int, eps: float, top: float) -> float:
    """Eigenvalues of a d x d correlation matrix below this are rounding errors.

    Entries are at most 1 and carry errors of `eps`, which add up like noise; the eigensolver adds its own, relative to the
    greatest eigenvalue.
    """
    return 8.0 * eps * float(np.sqrt(d)) + 8.0 * EPS64 * top


def correlation_cutoff(d: int, k: int) -> float:
    """Singular values of a d x k matrix of correlations, summed in float64, below this are rounding errors."""
    return 32.0 * EPS64 * float(np.sqrt(d * k))


def data_eps(values: Any, dtype: str) -> float:
    """Unit roundoff of the digits that are really there: float64 that holds float32 numbers has those of float32."""
    eps = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}.get(dtype, 2.0**-53)
    wide = np.asarray(values, dtype=np.float64)
    if eps < 2.0**-24 and (wide != np.round(wide)).any() and np.array_equal(wide, wide.astype(np.float32)):
        return 2.0**-24
    return eps


def rounding_share(eps: float, size: Any, spread: Any) -> Any:
    """What rounding to `eps` of numbers of this size can do to a covariance, in units of the spread.

    Each number is off by at most eps times its size; the factor covers the sums and products before it.
    """
    return 64.0 * eps * (1.0 + size / np.where(spread > 0, spread, np.inf))


def chance_correlation(n: int, columns: int, looks: int) -> float:
    """The correlation with `columns` others that n rows of pure noise stay below, over many looks, 999 times in 1000."""
    from scipy.special import chdtri

    return float(min(1.0, np.sqrt(chdtri(max(columns, 1), 1e-3 / max(looks, 1)) / n)))


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
    keep = values > covariance_cutoff(covariance.shape[0], EPS64, float(values[-1]))
    return vectors[:, keep] / xp.sqrt(values[keep]) / scale[:, None]


def basis(A: Array) -> tuple[Array, Array]:
    """Orthonormal basis (d, r) of the columns of a matrix of correlations, and its singular values (r,)."""
    xp = namespace(A)
    if min(A.shape) == 0:
        return A[:, :0], A[0, :0]
    U, s, _ = xp.linalg.svd(A, full_matrices=False)
    keep = s > correlation_cutoff(*A.shape)
    return U[:, keep], s[keep]


def basis_and_rows(A: Array) -> tuple[Array, Array, Array]:
    """The singular value decomposition U s H^T of a matrix of correlations, without its rounding errors."""
    xp = namespace(A)
    U, s, Ht = xp.linalg.svd(A, full_matrices=False)
    keep = s > correlation_cutoff(*A.shape)
    return U[:, keep], s[keep], Ht[keep, :].T


def share_outside(A: Array, H: Array) -> float:
    """How much of the rows of A lies outside the span of the columns of H: the worst column, relative to its own size."""
    xp = namespace(A)
    sizes = xp.max(xp.abs(A), axis=0)
    outside = xp.max(xp.abs(A - A @ H @ H.T), axis=0)
    return float(xp.max(xp.where(sizes > 0, outside / xp.where(sizes > 0, sizes, xp.ones_like(sizes)), outside)))


def extended(B: Array, rows: Array) -> Array:
    """An orthonormal basis of the span of B (d, b) and of `rows` (w, d), NumPy; the columns of B come first."""
    new = rows.T - B @ (B.T @ rows.T)
    new = new - B @ (B.T @ new)
    U, s, _ = np.linalg.svd(new, full_matrices=False)
    return np.concatenate([B, U[:, s > 1e-9 * np.linalg.norm(rows, 2)]], axis=1)


def complement(U: Array) -> Array:
    """(d, d - r) orthonormal basis of what is orthogonal to the orthonormal columns of U (d, r)."""
    xp = namespace(U)
    return xp.linalg.qr(U, mode="complete")[0][:, U.shape[1] :]


def correlations_with(cov_xz: Array, cov_zz: Array, D: Array) -> Array:
    """(d, k) correlations of the features with the columns of the concept; free of all units.

    Not whitened: where two columns are almost the same, their small difference is still a direction.
    """
    return cov_xz / D[:, None] / scales(namespace(D).linalg.diagonal(cov_zz))[None, :]


def singular_values(A: Array) -> Array:
    xp = namespace(A)
    return xp.linalg.svdvals(A) if min(A.shape) else A.reshape(-1)[:0]


def root_psd(S: Array) -> Array:
    """S^1/2 of a positive semi-definite matrix."""
    xp = namespace(S)
    values, vectors = xp.linalg.eigh((S + S.T) / 2)
    return (vectors * xp.sqrt(xp.where(values > 0, values, xp.zeros_like(values)))) @ vectors.T


def rank_psd(S: Array) -> int:
    """Rank of a positive semi-definite matrix, by the same cut-off as its inverse root."""
    values = np.linalg.eigvalsh(host((S + S.T) / 2))
    return int((values > covariance_cutoff(S.shape[0], EPS64, 1.0) * values[-1]).sum())


def inverse_root_psd(S: Array) -> Array:
    """The pseudo-inverse of S^1/2, with eigenvalues below rounding taken as zero."""
    xp = namespace(S)
    values, vectors = xp.linalg.eigh((S + S.T) / 2)
    keep = values > covariance_cutoff(S.shape[0], EPS64, 1.0) * values[-1]
    safe = xp.where(keep, values, xp.ones_like(values))
    return (vectors * xp.where(keep, 1.0 / xp.sqrt(safe), xp.zeros_like(values))) @ vectors.T


def force_dual(V: Array, U: Array) -> Array:
    """V (U^T V)^-1, so that V^T U = I to rounding: what the guarantee rests on."""
    xp = namespace(U)
    for _ in range(2):  # the second pass removes the rounding of the first
        V = xp.linalg.solve((V.T @ U), V.T).T
    return V


def greatest_correlation(X: Any, codes: Any) -> float:
    """Greatest |correlation| of a feature (NumPy, float64) with a class; features that hardly vary count too."""
    Z = np.eye(int(codes.max()) + 1)[codes]
    Xc, Zc = X - X.mean(axis=0), Z - Z.mean(axis=0)
    sizes = np.linalg.norm(Xc, axis=0)
    noise = 1e-13 * np.linalg.norm(X, axis=0)  # a constant, to rounding
    c = (
        np.abs(Xc.T @ Zc)
        / np.where(sizes > noise, sizes, np.inf)[:, None]
        / np.maximum(np.linalg.norm(Zc, axis=0), 1e-300)
    )
    return float(c.max(initial=0.0))


def canonical_correlation(X: Any, codes: Any) -> float:
    """Greatest canonical correlation of features (NumPy, float64) with classes, by singular values of the data."""
    Z = np.eye(int(codes.max()) + 1)[codes]
    Xc = X - X.mean(axis=0)
    sizes = np.linalg.norm(Xc, axis=0)
    varies = sizes > 1e-13 * np.linalg.norm(X, axis=0)
    if not varies.any():
        return 0.0
    Q, s, _ = np.linalg.svd(Xc[:, varies] / sizes[varies], full_matrices=False)
    W, t, _ = np.linalg.svd(Z - Z.mean(axis=0), full_matrices=False)
    return float(np.linalg.svd(Q[:, s > 1e-10 * s[0]].T @ W[:, t > 1e-10 * t[0]], compute_uv=False)[0])
