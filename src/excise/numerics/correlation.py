"""The correlation matrix of the features: scales, the concept's directions, shrinkage, and the one factorisation.

R is known only up to the rounding of the numbers that it was computed from. A ridge states how well: it is always added,
so a Cholesky factor always exists, and a direction that holds rounding errors alone gets a bounded weight. Whether an
eraser guards does not depend on it: V^T U = I does that, and it is enforced at the end. Shrinkage is the same matrix with a
larger ridge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from excise.errors import ExciseError
from excise.numerics.arrays import Array, convert, host, is_cupy, is_numpy, is_torch, namespace
from excise.numerics.precision import EPS64, RIDGE_FACTOR, RIDGE_GROWTH, RIDGE_MOST, RIDGE_SUMS, correlation_floor

__all__ = [
    "FEW_ROWS",
    "Factor",
    "MatrixFactor",
    "RowsFactor",
    "Shrinkage",
    "basis",
    "choose_shrinkage",
    "factor",
    "factor_rows",
    "force_dual",
    "intensity",
    "least_dual",
    "ridge",
    "scales",
    "shrink",
]

Shrinkage = Literal["auto", "none", "oas", "optimal"]
FEW_ROWS = 10.0  # per feature: with fewer, "auto" shrinks
MOST_GROWTHS = 20


def scales(variance: Array) -> Array:
    """Standard deviations to divide by; 1 for a constant feature, whose rows are zero anyway."""
    xp = namespace(variance)
    positive = variance > 0
    return xp.where(positive, xp.sqrt(xp.where(positive, variance, xp.ones_like(variance))), xp.ones_like(variance))


def basis(A: Array) -> tuple[Array, Array, Array]:
    """U s H^T = A (d, k), a matrix of correlations, without its summation errors: U (d, r) and H (k, r) are orthonormal."""
    if min(A.shape) == 0:
        return A[:, :0], A[0, :0], A.T[:, :0]
    xp = namespace(A)
    d, k = A.shape
    if is_numpy(A) or d < 4 * k or k > 512:
        U, s, Ht = xp.linalg.svd(A, full_matrices=False)
    else:  # small matrices are quicker on the host
        Q, T = xp.linalg.qr(A)
        U, s, Ht = (convert(part, A) for part in np.linalg.svd(host(T)))
        U = Q @ U
    keep = s > correlation_floor(d, k)
    return U[:, keep], s[keep], Ht[keep, :].T


def choose_shrinkage(method: Shrinkage, rows: float, d: int) -> Shrinkage:
    """What "auto" stands for: "oas" with fewer than FEW_ROWS rows per feature, else "none".

    Raises:
        ExciseError: an unknown name.
    """
    if method not in ("auto", "none", "oas", "optimal"):
        raise ExciseError(f"shrinkage must be 'auto', 'none', 'oas' or 'optimal', got {method!r}")
    if method != "auto":
        return method
    return "oas" if rows < FEW_ROWS * d else "none"


def intensity(trace: float, square: float, d: int, n: float, method: Shrinkage) -> float:
    """How far to shrink, between 0 and 1, from the trace and the squared Frobenius norm of the d x d matrix.

    "oas": oracle approximating shrinkage (Chen, Wiesel, Eldar and Hero 2010, eq. 23, as scikit-learn has it).
    "optimal": optimal linear shrinkage (Bodnar, Gupta and Parolya 2014), towards the identity.
    """
    if method == "none":
        return 0.0
    spherical = trace**2 / d  # ||m I||_F^2 with m = trace / d
    if square - spherical <= 1e-14 * square:
        return 1.0  # the matrix is a multiple of the identity already
    if method == "oas":
        # alpha = mean of S_ij^2, mu = mean of S_ii
        alpha, mu = square / d**2, trace / d
        return min(1.0, (alpha + mu**2) / ((n + 1.0) * (alpha - mu**2 / d)))
    return min(1.0, (trace**2 / n) / (square - spherical))


def shrink(S: Array, n: float, method: Shrinkage) -> tuple[Array, float]:
    """(1 - a) S + a m I with m the mean variance, and the intensity a in [0, 1].

    >>> shrunk, a = shrink(np.diag([1.0, 3.0]), n=100, method="oas")
    >>> round(a, 4), np.trace(shrunk).round(12)
    (0.1287, np.float64(4.0))
    """
    d = int(S.shape[0])
    method = choose_shrinkage(method, n, d)
    if method == "none":
        return S, 0.0
    xp = namespace(S)
    trace = float(xp.linalg.trace(S))
    a = intensity(trace, float(xp.sum(S * S)), d, n, method)
    return (1.0 - a) * S + a * trace / d * xp.eye(d, dtype=S.dtype, device=S.device), a


def ridge(delta: Array, kish: float, eps_sums: float, size: float) -> Array:
    """(d,) how well rounding lets the correlation matrix be known.

    Args:
        delta: (d,) what one rounding does to a feature, in its standard deviations. Independent roundings of n rows move R
            by about delta sqrt(d / n) in norm. Never more than RIDGE_MOST.
        kish: effective number of rows.
        eps_sums: machine epsilon of the products behind R, which moves R by about eps sqrt(d).
        size: Frobenius norm of R. The factorisation is off by a few epsilons of it.
    """
    root = float(np.sqrt(delta.shape[0]))
    rounding = delta * (root / float(np.sqrt(max(kish, 1.0))))
    rounding = namespace(delta).where(rounding < RIDGE_MOST, rounding, RIDGE_MOST + 0.0 * delta)
    return rounding + (RIDGE_SUMS * root * eps_sums + RIDGE_FACTOR * EPS64 * size)


class Factor(Protocol):
    """F with F F^T = (1 - a) R + a I + multiplier * diag(ridge)."""

    @property
    def ridge(self) -> Array: ...
    @property
    def multiplier(self) -> float:
        """8^j: more than 1 if the factorisation failed at first."""
        ...

    @property
    def intensity(self) -> float:
        """a"""
        ...

    def solve(self, U: Array) -> Array:
        """(F F^T)^-1 U for U in the span of R."""
        ...

    def half(self, A: Array) -> Array:
        """F^-1 A"""
        ...

    def half_transposed(self, A: Array) -> Array:
        """F^-T A"""
        ...

    def times(self, A: Array) -> Array:
        """F A"""
        ...


@dataclass(frozen=True)
class MatrixFactor:
    """From R itself: one Cholesky factor."""

    lower: Array  # (d, d); only its lower triangle counts
    ridge: Array
    multiplier: float
    intensity: float

    def solve(self, U: Array) -> Array:
        return _both(self.lower, U)

    def half(self, A: Array) -> Array:
        return _solve_triangular(self.lower, A, transposed=False)

    def half_transposed(self, A: Array) -> Array:
        return _solve_triangular(self.lower, A, transposed=True)

    def times(self, A: Array) -> Array:
        return _lower_times(self.lower, A)


@dataclass(frozen=True)
class RowsFactor:
    """From fewer rows than features, by the eigenvectors of an m x m matrix. What needs F itself makes the d x d factor.

    With R = G^T G, L = a I + diag(ridge) and G L^-1 G^T = W K W^T, for U in the span of the rows:
    ((1 - a) R + L)^-1 U = B ((1 - a) K + I)^-1 B^T U with B = L^-1 G^T W K^-1/2.
    """

    span: Array  # (d, p) B
    core: Array  # (p,) (1 - a) K + 1
    ridge: Array
    intensity: float
    make: Callable[[], Array]
    multiplier: float = 1.0

    def solve(self, U: Array) -> Array:
        return self.span @ ((self.span.T @ U) / self.core[:, None])

    @cached_property
    def whole(self) -> MatrixFactor:
        lower, multiplier = _grown(self.make, self.ridge, self.multiplier, self.intensity)
        return MatrixFactor(lower, self.ridge, multiplier, self.intensity)

    def half(self, A: Array) -> Array:
        return self.whole.half(A)

    def half_transposed(self, A: Array) -> Array:
        return self.whole.half_transposed(A)

    def times(self, A: Array) -> Array:
        return self.whole.times(A)


def factor(
    make: Callable[[], Array], delta: Array, kish: float, eps_sums: float, shrinkage: Callable[[float, float], float]
) -> MatrixFactor:
    """Factor the correlation matrix R (d, d).

    Args:
        make: gives R as a new array, which is used up.
        delta, kish, eps_sums: as for `ridge`.
        shrinkage: the intensity a, from the trace and the squared Frobenius norm of R.
    """
    first = [make()]
    size = float(namespace(delta).linalg.vector_norm(first[0]))
    diagonal = ridge(delta, kish, eps_sums, size)
    a = shrinkage(float(namespace(delta).linalg.trace(first[0])), size * size)
    lower, multiplier = _grown(lambda: first.pop() if first else make(), diagonal, 1.0, a)
    return MatrixFactor(lower, diagonal, multiplier, a)


def factor_rows(
    G: Array, make: Callable[[], Array], delta: Array, kish: float, shrinkage: Callable[[float, float], float] | None
) -> RowsFactor:
    """The same for R = G^T G given by m < d rows G (m, d), in O(m^2 d). No `shrinkage` is none."""
    xp = namespace(G)
    trace, a = float(xp.sum(G * G)), 0.0
    size = trace / float(np.sqrt(G.shape[0]))  # the Frobenius norm of R, if all of its eigenvalues are equal
    if shrinkage is not None:
        size = float(xp.linalg.vector_norm(G @ G.T))
        a = shrinkage(trace, size * size)
    diagonal = ridge(delta, kish, EPS64, size)
    G = G / xp.sqrt(a + diagonal)[None, :]
    values, vectors = xp.linalg.eigh(G @ G.T)
    clear = values > RIDGE_FACTOR * G.shape[0] * EPS64 * float(values[-1])  # centred rows: one of them is none
    values = values[clear]
    span = (G.T @ vectors[:, clear]) / xp.sqrt((a + diagonal)[:, None] * values[None, :])
    return RowsFactor(span, (1.0 - a) * values + 1.0, diagonal, a, make)


def least_dual(F: Factor, U: Array) -> Array:
    """V (d, r) with V^T U = I for which U V^T x is smallest in mean square: V = R^-1 U (U^T R^-1 U)^-1."""
    return force_dual(F.solve(U), U)


def force_dual(V: Array, U: Array) -> Array:
    """V (U^T V)^-1, so that V^T U = I to rounding: what the guarantee rests on."""
    for _ in range(2):  # the second pass removes the rounding of the first
        M = V.T @ U
        V = np.linalg.solve(M, V.T).T if is_numpy(V) else V @ convert(np.linalg.inv(host(M)).T, V)
    return V


def _grown(make: Callable[[], Array], diagonal: Array, start: float, a: float = 0.0) -> tuple[Array, float]:
    """Cholesky of (1 - a) R + a I + multiplier diag(diagonal), with the first multiplier that lets it succeed."""
    multiplier = start
    for _ in range(MOST_GROWTHS):
        R = make()
        if a:
            R *= 1.0 - a
        lower = _cholesky(_plus_diagonal(R, a + multiplier * diagonal))
        if lower is not None:
            return lower, multiplier
        # float32 products of heavy tails, or a subtraction: errors beyond what the ridge allows for.
        multiplier *= RIDGE_GROWTH
    raise ExciseError("the covariance of the features is not positive semi-definite: the moments are damaged")


def _plus_diagonal(R: Array, diagonal: Array) -> Array:
    if is_numpy(R):
        R.reshape(-1)[:: R.shape[0] + 1] += diagonal
        return R
    if is_torch(R):
        R.diagonal().add_(diagonal)
        return R
    xp = namespace(R)
    return R + diagonal[:, None] * xp.eye(R.shape[0], dtype=R.dtype, device=R.device)


def _cholesky(R: Array) -> Array | None:
    """L with R = L L^T, or None; only its lower triangle counts. R is used up."""
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


def _solve_triangular(lower: Array, B: Array, transposed: bool) -> Array:
    if is_torch(lower):
        import torch

        return torch.linalg.solve_triangular(lower.T if transposed else lower, B, upper=transposed)
    if is_cupy(lower):
        from cupyx.scipy.linalg import solve_triangular

        return solve_triangular(lower, B, lower=True, trans=1 if transposed else 0, check_finite=False)
    from scipy.linalg.lapack import dtrtrs

    return dtrtrs(lower, B, lower=1, trans=1 if transposed else 0)[0]


def _both(lower: Array, B: Array) -> Array:
    """(L L^T)^-1 B"""
    return _solve_triangular(lower, _solve_triangular(lower, B, transposed=False), transposed=True)


def _lower_times(lower: Array, B: Array) -> Array:
    """L B, reading the lower triangle alone."""
    if not is_numpy(lower):  # there the other triangle is zero
        return lower @ B
    from scipy.linalg.blas import dtrmm

    return dtrmm(1.0, lower, B, side=0, lower=1)
