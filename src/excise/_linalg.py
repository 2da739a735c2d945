"""Matrices of covariances: ranks, whitening, bases. The only place that holds a tolerance or decides a rank.

Every matrix that comes here is free of units: features are divided by their standard deviations first, so that a
tolerance means the same for metres and for micrometres.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from excise._array import Array, convert, is_cupy, is_torch, namespace

__all__ = ["Whitening", "basis", "force_dual", "inverse_root", "scales", "singular_values", "whitening"]

EPS64 = float(np.finfo(np.float64).eps)


def covariance_cutoff(d: int, eps: float) -> float:
    """Eigenvalues of a d x d correlation matrix below this are rounding errors of the sums behind it."""
    return 10.0 * eps * float(np.sqrt(d))


def correlation_cutoff(d: int, k: int) -> float:
    """Singular values of a d x k matrix of correlations, summed in float64, below this are rounding errors."""
    return 32.0 * EPS64 * float(np.sqrt(d * k))


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
    keep = values > 100 * covariance_cutoff(covariance.shape[0], EPS64)
    return vectors[:, keep] / xp.sqrt(values[keep]) / scale[:, None]


def basis(A: Array) -> tuple[Array, Array]:
    """Orthonormal basis (d, r) of the columns of a matrix of correlations, and its singular values (r,)."""
    xp = namespace(A)
    if min(A.shape) == 0:
        return A[:, :0], A[0, :0]
    U, s, _ = xp.linalg.svd(A, full_matrices=False)
    keep = s > correlation_cutoff(*A.shape)
    return U[:, keep], s[keep]


def singular_values(A: Array) -> Array:
    xp = namespace(A)
    return xp.linalg.svdvals(A) if min(A.shape) else A.reshape(-1)[:0]


def force_dual(V: Array, U: Array) -> Array:
    """V (U^T V)^-1, so that V^T U = I to rounding: what the guarantee rests on."""
    xp = namespace(U)
    for _ in range(2):  # the second pass removes the rounding of the first
        V = xp.linalg.solve((V.T @ U), V.T).T
    return V


class Whitening(Protocol):
    """A factor F of the correlation matrix, R = F F^T, known by its inverse."""

    @property
    def method(self) -> str: ...
    @property
    def kept(self) -> int: ...
    @property
    def dropped(self) -> int: ...
    @property
    def rcond(self) -> float: ...

    def whiten(self, A: Array) -> Array:
        """F^-1 A"""
        ...

    def whiten_transposed(self, A: Array) -> Array:
        """F^-T A"""
        ...

    def supported(self, A: Array) -> Array:
        """A without its rounding errors along directions that have no variance."""
        ...


@dataclass(frozen=True)
class _Cholesky:
    lower: Array
    rcond: float
    kept: int
    method: str = "cholesky"
    dropped: int = 0

    def whiten(self, A: Array) -> Array:
        return _solve_triangular(self.lower, A, transposed=False)

    def whiten_transposed(self, A: Array) -> Array:
        return _solve_triangular(self.lower, A, transposed=True)

    def supported(self, A: Array) -> Array:
        return A


@dataclass(frozen=True)
class _Eigen:
    vectors: Array  # (d, d)
    root: Array  # (d,) square roots of the eigenvalues, raised to the cut-off
    rcond: float
    kept: int
    dropped: int
    method: str = "eigen"

    def whiten(self, A: Array) -> Array:
        return (self.vectors.T @ A) / self.root[:, None]

    def whiten_transposed(self, A: Array) -> Array:
        return self.vectors @ (A / self.root[:, None])

    def supported(self, A: Array) -> Array:
        # A direction below the cut-off has hardly any variance, but what there is may still be the concept: it is
        # left out only where the correlation with the concept is a rounding error too.
        xp = namespace(A)
        null = self.vectors[:, : self.dropped]  # eigenvalues ascend
        part = null.T @ A
        size = xp.sqrt(xp.sum(part * part, axis=1))
        noise = xp.where(size[:, None] > correlation_cutoff(*A.shape), xp.zeros_like(part), part)
        return A - null @ noise


def whitening(R: Array, eps: float) -> Whitening:
    """Factor a correlation matrix R (d, d) whose entries carry errors of `eps`.

    Cholesky where R is well enough conditioned, by an estimate and not by waiting for a failure: on exactly
    singular matrices Cholesky often succeeds. Otherwise an eigendecomposition, with eigenvalues raised to the cut-off.
    """
    d = R.shape[0]
    cutoff = covariance_cutoff(d, eps)
    lower = _cholesky(R)
    if lower is not None:
        rcond = _rcond(R, lower)
        if rcond > cutoff:
            return _Cholesky(lower, rcond, kept=d)
    xp = namespace(R)
    values, vectors = xp.linalg.eigh(R)
    top = float(values[-1])
    dropped = int(xp.sum(xp.astype(values <= cutoff * top, xp.int64)))
    floor = xp.full_like(values, max(cutoff * top, 1e-300))
    return _Eigen(
        vectors,
        xp.sqrt(xp.where(values > floor, values, floor)),
        max(float(values[0]) / top, 0.0),
        d - dropped,
        dropped,
    )


def _cholesky(R: Array) -> Array | None:
    if is_torch(R):
        import torch

        lower, info = torch.linalg.cholesky_ex(R)
        return lower if int(info) == 0 else None
    if is_cupy(R):
        import cupy  # pyright: ignore

        lower = cupy.linalg.cholesky(R)
        return lower if bool(cupy.isfinite(lower).all()) else None
    from scipy.linalg import LinAlgError, cholesky

    try:
        return cholesky(R, lower=True, check_finite=False)
    except LinAlgError:
        return None


def _solve_triangular(lower: Array, B: Array, transposed: bool) -> Array:
    if is_torch(lower):
        import torch

        return torch.linalg.solve_triangular(lower.T if transposed else lower, B, upper=transposed)
    if is_cupy(lower):
        from cupyx.scipy.linalg import solve_triangular as solve
    else:
        from scipy.linalg import solve_triangular as solve
    return solve(lower, B, lower=True, trans=1 if transposed else 0, check_finite=False)


def _rcond(R: Array, lower: Array) -> float:
    """Reciprocal condition number, estimated by inverse iteration: never much too small, rarely too large."""
    xp = namespace(R)
    d = R.shape[0]
    top = float(xp.max(xp.sum(xp.abs(R), axis=0)))  # at least the largest eigenvalue
    start = np.random.default_rng(0).standard_normal((d, 3))
    x = convert(start / np.linalg.norm(start, axis=0), R)
    growth = 1.0
    for _ in range(3):
        y = _solve_triangular(lower, _solve_triangular(lower, x, transposed=False), transposed=True)
        size = xp.sqrt(xp.sum(y * y, axis=0))
        growth = float(xp.max(size))
        if not np.isfinite(growth) or growth == 0.0:
            return 0.0
        x = y / size[None, :]
    return 1.0 / (growth * top)
