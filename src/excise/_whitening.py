"""Whitening: a factor of the correlation matrix, and which of its directions count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from excise._array import Array, convert, is_cupy, is_numpy, is_torch, namespace
from excise._linalg import DISPENSABLE, FAINT, basis, correlation_cutoff, covariance_cutoff, force_dual

__all__ = ["Whitening", "least_dual", "whitening"]


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
    @property
    def hidden(self) -> float:
        """How much of the concept lies in directions below the cut-off, on the scale of a canonical correlation."""
        ...

    def whiten(self, A: Array) -> Array:
        """F^-1 A"""
        ...

    def whiten_transposed(self, A: Array) -> Array:
        """F^-T A"""
        ...


@dataclass(frozen=True)
class _Cholesky:
    lower: Array
    rcond: float
    kept: int
    method: str = "cholesky"
    dropped: int = 0
    hidden: float = 0.0

    def whiten(self, A: Array) -> Array:
        return _solve_triangular(self.lower, A, transposed=False)

    def whiten_transposed(self, A: Array) -> Array:
        return _solve_triangular(self.lower, A, transposed=True)


@dataclass(frozen=True)
class _Eigen:
    vectors: Array  # (d, d)
    weights: Array  # (d,) inverse square roots of the eigenvalues, 0 for directions that do not count
    rcond: float
    kept: int
    dropped: int
    hidden: float
    method: str = "eigen"

    def whiten(self, A: Array) -> Array:
        return (self.vectors.T @ A) * self.weights[:, None]

    def whiten_transposed(self, A: Array) -> Array:
        return self.vectors @ (A * self.weights[:, None])


def least_dual(F: Whitening, U: Array) -> Array:
    """V with V^T U = I for which U V^T x is smallest in mean square: with F^-1 U = G T, V = F^-T G T^-T."""
    xp = namespace(U)
    G, T = xp.linalg.qr(F.whiten(U))
    return force_dual(xp.linalg.solve(T, F.whiten_transposed(G).T).T, U)


def whitening(R: Array, A: Array, eps: float, rounding: Array) -> Whitening:
    """Factor a correlation matrix R (d, d), whose entries carry errors of `eps`, to whiten the correlations A (d, k).

    Cholesky where R is well enough conditioned, by an estimate and not by waiting for a failure: on exactly
    singular matrices Cholesky often succeeds. Otherwise an eigendecomposition. `rounding` (d,) is what rounding does to
    the features, in their standard deviations. R is used up: its memory may be overwritten.
    """
    d = R.shape[0]
    xp = namespace(R)
    size = float(xp.linalg.vector_norm(R))  # at least the greatest eigenvalue
    diagonal = xp.linalg.diagonal(R) + 0.0
    faint = min(float(xp.max(rounding)), FAINT) ** 2
    lower = _cholesky(R)
    if lower is not None:
        smallest = 1.0 / _inverse_norm(lower)
        if smallest > max(covariance_cutoff(d, eps, size), faint):
            return _Cholesky(lower, smallest / size, kept=d)
    _restore(R, diagonal)
    values, vectors = xp.linalg.eigh(R)
    top = float(values[-1])
    cutoff = covariance_cutoff(d, eps, top)
    low = values <= cutoff
    # A direction below the cut-off has hardly any variance, but what there is may still be the concept: it stays, at
    # the cut-off, unless its correlation with the concept is a rounding error too. The rest is left untouched.
    part = vectors.T @ A
    loudness = xp.sqrt(xp.sum(part * part, axis=1))
    silent = low & (loudness <= correlation_cutoff(*A.shape))
    raised = xp.where(low, xp.full_like(values, cutoff), values)
    weights = xp.where(silent, xp.zeros_like(values), 1.0 / xp.sqrt(raised))
    errors = xp.sqrt(xp.sum((vectors * rounding[:, None]) ** 2, axis=0))
    bound = xp.where(errors < FAINT, errors, xp.full_like(errors, FAINT))
    left_alone = _dispensable((vectors.T @ basis(A)[0]) * weights[:, None], values <= bound * bound)
    weights = xp.where(left_alone, xp.zeros_like(weights), weights)
    dropped = int(xp.sum(xp.astype(low | left_alone, xp.int64)))
    missed = xp.where(low & ~left_alone, loudness, xp.zeros_like(loudness))
    hidden = float(xp.max(missed)) / float(np.sqrt(cutoff))
    return _Eigen(vectors, weights, max(float(values[0]) / top, 0.0), d - dropped, dropped, hidden)


def _dispensable(B: Array, faint: Array) -> Array:
    """(d,) which of the faint directions nothing much is told by; B (d, r) is what is erased, whitened.

    Faint directions hold rounding errors: the output of a LayerNorm has one. To read a concept there takes weights above
    1e5, and the next rounding undoes it. But what is erased may be there and nowhere else (what an earlier erasure left
    of another concept, a small difference of two copies), and telling it by other directions would cost them dearly.
    The leverage of a direction is the share of B that is lost without it.
    """
    xp = namespace(B)
    if B.shape[1] == 0:
        return faint & False
    leverage = xp.sum(xp.linalg.qr(B)[0] ** 2, axis=1)
    out = faint & (leverage <= DISPENSABLE)
    together = float(xp.sum(xp.where(out, leverage, xp.zeros_like(leverage))))
    return out if together <= 2 * DISPENSABLE else faint & False


def _cholesky(R: Array) -> Array | None:
    """L with R = L L^T, or None. On the host it overwrites the upper triangle and the diagonal of R."""
    if is_torch(R):
        import torch

        lower, info = torch.linalg.cholesky_ex(R)
        return lower if int(info) == 0 else None
    if is_cupy(R):
        import cupy

        lower = cupy.linalg.cholesky(R)
        return lower if bool(cupy.isfinite(lower).all()) else None
    from scipy.linalg.lapack import dpotrf

    # In place: at d = 4096 copies would take as long as the factorisation.
    lower, info = dpotrf(np.ascontiguousarray(R).T, lower=1, clean=0, overwrite_a=1)
    return lower if info == 0 else None


def _restore(R: Array, diagonal: Array) -> None:
    """Undo what `_cholesky` did on the host; eigh reads the lower triangle only."""
    if is_numpy(R):
        np.fill_diagonal(R, diagonal)


def _solve_triangular(lower: Array, B: Array, transposed: bool) -> Array:
    if is_torch(lower):
        import torch

        return torch.linalg.solve_triangular(lower.T if transposed else lower, B, upper=transposed)
    if is_cupy(lower):
        from cupyx.scipy.linalg import solve_triangular as solve
    else:
        from scipy.linalg import solve_triangular as solve
    return solve(lower, B, lower=True, trans=1 if transposed else 0, check_finite=False)


def _inverse_norm(lower: Array) -> float:
    """Spectral norm of (L L^T)^-1, estimated from below by inverse iteration; infinite where L is singular."""
    xp = namespace(lower)
    start = np.random.default_rng(0).standard_normal((lower.shape[0], 3))
    x = convert(start / np.linalg.norm(start, axis=0), lower)
    norm = 1.0
    for _ in range(3):
        y = _solve_triangular(lower, _solve_triangular(lower, x, transposed=False), transposed=True)
        sizes = xp.sqrt(xp.sum(y * y, axis=0))
        norm = float(xp.max(sizes))
        if not np.isfinite(norm):
            return float("inf")
        x = y / sizes[None, :]
    return norm
