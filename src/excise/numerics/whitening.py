"""Whitening: a factor of the correlation matrix, and which of its directions count.

R = F F^T is known by F^-1 alone. Three forms: a Cholesky factor where R is well conditioned; the same with a few
near-null directions taken out, which is what the output of a LayerNorm needs; and a basis with weights, from an
eigendecomposition of R or from the rows themselves where there are fewer rows than features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from excise.numerics.arrays import Array, convert, describe_device, host, is_cupy, is_numpy, is_torch, namespace
from excise.numerics.linalg import over_transposed
from excise.numerics.precision import (
    EPS64,
    FAINT,
    ROUNDINGS,
    correlation_floor,
    counts,
    leverage_bound,
    summation_floor,
)

__all__ = ["Resolve", "Whitening", "least_dual", "whiten_matrix", "whiten_rows"]

SMALL = 96  # up to this many features an eigendecomposition is as quick as a factorisation
Host = np.ndarray[Any, Any]
EXACT = 1e-8  # angle up to which a near-null direction is known
MOST_NEAR_NULL = 7  # directions that are taken out one by one; with more, all are found by an eigendecomposition

# Directions (d, f) of the standardised features -> their variances (f,) and a rotation (f, f) to directions that have
# them, measured on the rows themselves, which see a spread of 1e-15 where a covariance sees 1e-8.
Resolve = Callable[[Array], tuple[Array, Array]]


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
        """The canonical correlation that directions below the resolution of R may hold."""
        ...

    @property
    def whitened(self) -> Array:
        """F^-1 U for the directions U that it was made for."""
        ...

    @property
    def dual(self) -> Array | None:
        """R^-1 U, where it was made on the way."""
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
    whitened: Array
    dual: Array
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
class _Deflated:
    """F^-1 = [L^-1 (I - N N^T); diag(weights) N^T] with N the near-null directions and L L^T = R off their span."""

    lower: Array
    null: Array  # (d, f)
    weights: Array  # (f,) inverse spreads; 0 for directions that do not count
    whitened: Array
    rcond: float
    kept: int
    dropped: int
    hidden: float
    method: str = "deflated"
    dual: Array | None = None

    def whiten(self, A: Array) -> Array:
        inside = self.null.T @ A
        rest = _solve_triangular(self.lower, A - self.null @ inside, transposed=False)
        return namespace(A).concat([rest, inside * self.weights[:, None]], axis=0)

    def whiten_transposed(self, A: Array) -> Array:
        d = self.lower.shape[0]
        rest = _solve_triangular(self.lower, A[:d], transposed=True)
        return rest - self.null @ (self.null.T @ rest) + self.null @ (A[d:] * self.weights[:, None])


@dataclass(frozen=True)
class _Basis:
    vectors: Array  # (d, p) orthonormal
    weights: Array  # (p,) inverse spreads, 0 for directions that do not count
    whitened: Array
    rcond: float
    kept: int
    dropped: int
    hidden: float
    method: str
    dual: Array | None = None

    def whiten(self, A: Array) -> Array:
        return (self.vectors.T @ A) * self.weights[:, None]

    def whiten_transposed(self, A: Array) -> Array:
        return self.vectors @ (A * self.weights[:, None])


def least_dual(F: Whitening, U: Array) -> tuple[Array, Array]:
    """V with V^T U = I for which U V^T x is smallest in mean square: with F^-1 U = G T, V = F^-T G T^-T. And T (r, r).

    U are the directions that F was made for.
    """
    xp = namespace(U)
    if F.dual is not None:
        T = xp.linalg.qr(F.whitened)[1]
        V = over_transposed(F.dual, U.T @ F.dual)
    else:
        G, T = xp.linalg.qr(F.whitened)
        V = over_transposed(F.whiten_transposed(G), T)
    return over_transposed(V, V.T @ U), T  # once more: V^T U = I to the last digit is what the guarantee rests on


def whiten_matrix(
    make: Callable[[], Array],
    A: Array,
    U: Array,
    eps: float,
    rounding: Host,
    resolve: Resolve | None = None,
    chance: float = 0.0,
) -> Whitening:
    """Factor a correlation matrix R (d, d), whose entries carry errors of `eps`.

    Whether a Cholesky factor will do is decided by the smallest eigenvalue, not by waiting for a failure: on exactly
    singular matrices Cholesky often succeeds.

    Args:
        make: gives R as a new array, which is used up.
        A: (d, k) correlations with the concept, which decide what becomes of faint directions.
        U: (d, r) an orthonormal basis of what will be whitened.
        eps: machine epsilon of the sums behind R.
        rounding: (d,) NumPy; what rounding does to the features, in their standard deviations.
        resolve: measures faint directions on the rows, where there are any.
        chance: the correlation that a direction of noise has with the concept by chance.
    """
    R = make()
    d = R.shape[0]
    xp = namespace(R)
    if d <= SMALL:
        return _by_eigenvalues(R, A, U, eps, rounding, resolve, chance)
    size = float(xp.linalg.vector_norm(R))  # at least the largest eigenvalue
    floor = summation_floor(d, eps, size)
    limit = max(floor, min(float(rounding.max()), FAINT) ** 2)
    # A shift below the resolution of R lets the factorisation of an exactly singular matrix succeed.
    shift = min(0.1, 1.6 / float(np.sqrt(d))) * floor
    lower = _cholesky(_plus_diagonal(R, shift))
    if lower is None:
        shift = 2.0 * floor
        lower = _cholesky(_plus_diagonal(make(), shift))
    if lower is None:
        return _by_eigenvalues(make(), A, U, eps, rounding, resolve, chance)
    near, whitened, dual = _smallest(lower, shift, U, limit, floor)
    if near is not None:
        if shift < floor and float(near.values[0]) > limit:
            return _Cholesky(lower, whitened, dual, float(near.values[0]) / size, kept=d)
        if (found := near.below(limit, floor)) is not None:
            N, values = found
            if shift > floor:
                lower = _cholesky(_plus_projector(make(), N))
            if lower is not None:
                # Off the near-null directions, L L^T is R up to the shift.
                rest = _solve_triangular(lower, U - N @ (N.T @ U), transposed=False)
                N, faint = _weighed(N, values, floor, rounding, A, U, rest, resolve, chance)
                # Deflation is by the span of N, which a rotation inside it leaves alone.
                whitened = xp.concat([rest, (N.T @ U) * faint.weights[:, None]], axis=0)
                rcond = max(float(values[0]) / size, 0.0)
                return _Deflated(
                    lower, N, faint.weights, whitened, rcond, d - faint.dropped, faint.dropped, faint.hidden
                )
    return _by_eigenvalues(make(), A, U, eps, rounding, resolve, chance)


def _by_eigenvalues(
    R: Array, A: Array, U: Array, eps: float, rounding: Host, resolve: Resolve | None, chance: float
) -> Whitening:
    xp = namespace(R)
    d = R.shape[0]
    values, vectors = xp.linalg.eigh(R)
    top = float(values[-1])
    floor = summation_floor(d, eps, top)
    limit = max(floor, min(float(rounding.max()), FAINT) ** 2)
    low = int((values <= limit).sum())
    rest, weights = vectors[:, low:], 1.0 / xp.sqrt(values[low:])
    whitened = (rest.T @ U) * weights[:, None]
    N, faint = _weighed(vectors[:, :low], values[:low], floor, rounding, A, U, whitened, resolve, chance)
    return _Basis(
        xp.concat([N, rest], axis=1),
        xp.concat([faint.weights, weights]),
        xp.concat([(N.T @ U) * faint.weights[:, None], whitened], axis=0),
        max(float(values[0]) / top, 0.0),
        d - faint.dropped,
        faint.dropped,
        faint.hidden,
        "eigen",
    )


def whiten_rows(G: Array, A: Array, U: Array, rounding: Host, shrinkage: float = 0.0) -> Whitening:
    """The same for R = G^T G given by m < d rows G (m, d), in O(m^2 d): no d x d matrix.

    With `shrinkage` a it is a factor of (1 - a) R + a I on the span of the rows, where all correlations A are.
    """
    xp = namespace(G)
    d = G.shape[1]
    values, Q = xp.linalg.eigh(G @ G.T)
    top = max(float(values[-1]), 0.0)
    clear = values > summation_floor(G.shape[0], EPS64, top)
    variances = values[clear]
    W = (G.T @ Q[:, clear]) / xp.sqrt(variances)
    # What is below the resolution of the product is looked at in the rows themselves.
    rest = G.T @ Q[:, ~clear]
    for _ in range(2):
        rest = rest - W @ (W.T @ rest)
    N, s, _ = xp.linalg.svd(rest, full_matrices=False) if rest.shape[1] else (rest, values[:0], None)
    real = s > EPS64 * float(np.sqrt(d)) * max(top, 1.0) ** 0.5
    N, s = N[:, real], s[real]
    if shrinkage > 0.0:
        vectors = xp.concat([N, W], axis=1)
        weights = 1.0 / xp.sqrt((1.0 - shrinkage) * xp.concat([s * s, variances]) + shrinkage)
        whitened = (vectors.T @ U) * weights[:, None]
        return _Basis(vectors, weights, whitened, shrinkage / (top + shrinkage), d, 0, 0.0, "rows")
    weights = 1.0 / xp.sqrt(variances)
    whitened = (W.T @ U) * weights[:, None]
    N, faint = _weighed(N, s * s, 0.0, rounding, A, U, whitened, None)
    kept = int(W.shape[1] + N.shape[1]) - faint.dropped
    return _Basis(
        xp.concat([N, W], axis=1),
        xp.concat([faint.weights, weights]),
        xp.concat([(N.T @ U) * faint.weights[:, None], whitened], axis=0),
        0.0,
        kept,
        d - kept,
        faint.hidden,
        "rows",
    )


@dataclass(frozen=True)
class _Faint:
    weights: Array  # (f,)
    dropped: int
    hidden: float


def _weighed(
    N: Array,
    values: Array,
    floor: float,
    rounding: Host,
    A: Array,
    U: Array,
    rest: Array,
    resolve: Resolve | None,
    chance: float = 0.0,
) -> tuple[Array, _Faint]:
    """The weights of near-null directions N (d, f) of variances `values` (f,); N comes back rotated if it was resolved.

    `rest` is U whitened in all other directions.

    A direction below the summation floor has hardly any variance, but what there is may still be the concept: it stays,
    at the floor, unless its correlation with the concept is a summation error too. Directions that hold rounding errors
    are left alone if the edit hardly grows without them, or if they follow the concept no better than noise does by chance.
    """
    xp = namespace(N)
    if N.shape[1] == 0:
        return N, _Faint(values, 0, 0.0)
    floors = xp.full_like(values, floor)
    if resolve is not None:
        values, rotation = resolve(N)
        N = N @ rotation
    errors = xp.sqrt(xp.sum((N * convert(rounding, N)[:, None]) ** 2, axis=0))  # what rounding of the input produces
    if resolve is not None:  # the rows were asked: sums no longer limit what can be seen
        floors = (errors / ROUNDINGS) ** 2 * 1e-4 + (64.0 * EPS64) ** 2
    bound = xp.where(errors < FAINT, errors, xp.full_like(errors, FAINT))
    concept_norm = xp.sqrt(xp.sum((N.T @ A) ** 2, axis=1))
    low = ~counts(values, floors, 0.0 * bound)
    silent = low & (concept_norm <= correlation_floor(*A.shape))
    weights = xp.where(silent, xp.zeros_like(values), 1.0 / xp.sqrt(xp.where(low, floors, values)))
    rounding_level = ~counts(values, 0.0 * floors, bound)
    noise = rounding_level & (concept_norm * weights <= chance)
    left_alone = _dispensable(N, weights, rounding_level, noise, U, rest)
    weights = xp.where(left_alone, xp.zeros_like(weights), weights)
    # An unresolved direction varies at least by what rounding does and by what of the concept shows in it.
    least_spread = xp.where(concept_norm > errors / ROUNDINGS, concept_norm, errors / ROUNDINGS)
    seen = concept_norm / xp.where(least_spread > 0, least_spread, xp.ones_like(least_spread))
    hidden = float(xp.max(xp.where(low & ~silent & ~left_alone, seen, xp.zeros_like(seen))))
    return N, _Faint(weights, int(xp.sum(xp.astype(low | left_alone, xp.int64))), hidden)


def _dispensable(N: Array, weights: Array, rounding_level: Array, noise: Array, U: Array, rest: Array) -> Array:
    """(f,) which directions at rounding level can be left alone: without them the edit grows by EDIT_GROWTH at most, or,
    where they are `noise` that follows the concept by chance, to ten times what is then a small edit.

    The output of a LayerNorm has such a direction. To read a concept there takes weights above 1e5, and the next rounding
    undoes it. But what is erased may be there and nowhere else (what an earlier erasure left of another concept, a small
    difference of two copies), and erasing it by other directions would cost them dearly. The leverage of a direction is
    the share of the whitened concept that is lost without it.
    """
    xp = namespace(N)
    if U.shape[1] == 0 or not bool(xp.any(rounding_level)):
        return rounding_level & False
    faint = (N.T @ U) * weights[:, None]
    Q, _ = xp.linalg.qr(xp.concat([faint, rest], axis=0))
    leverage = xp.sum(Q[: N.shape[1]] ** 2, axis=1)
    by_chance = noise & (leverage <= 0.9)
    out = rounding_level & ~by_chance & (leverage <= leverage_bound())
    together = float(xp.sum(xp.where(out, leverage, xp.zeros_like(leverage))))
    return by_chance | out if together <= 2 * leverage_bound() else by_chance


@dataclass(frozen=True)
class _Smallest:
    """The smallest eigenvalues of a matrix, ascending, with their vectors and how exact those are."""

    values: np.ndarray[Any, Any]  # (b,)
    vectors: Array  # (d, b)
    residuals: np.ndarray[Any, Any]  # (b,)

    def below(self, limit: float, floor: float) -> tuple[Array, Array] | None:
        """The directions with eigenvalues up to `limit`; None unless they are few, exact and set apart."""
        f = int((self.values <= limit).sum())
        if f == 0 or f > MOST_NEAR_NULL or f >= self.values.shape[0]:
            return None
        apart = float(self.values[f])
        if apart < 16.0 * limit or float(self.residuals[:f].max()) > min(floor, EXACT * apart):
            return None
        return self.vectors[:, :f], convert(self.values[:f], self.vectors)


def _smallest(
    lower: Array, shift: float, U: Array, limit: float, floor: float
) -> tuple[_Smallest | None, Array, Array]:
    """Smallest eigenvalues of L L^T - shift I, by inverse iteration with a block of vectors; L^-1 U and L^-T L^-1 U beside.

    One round shows an eigenvalue that is far below the others. More are made only if it finds one near `limit` that is
    not exact yet.
    """
    xp = namespace(lower)
    r = U.shape[1]
    x = _probes_like(lower)
    both = _solve_triangular(lower, xp.concat([U, x], axis=1), transposed=False)
    whitened = both[:, :r]
    both = _solve_triangular(lower, both, transposed=True)
    dual, x = both[:, :r], both[:, r:]
    near = None
    for number in range(3):
        if number:
            x = _solve_triangular(lower, _solve_triangular(lower, x, transposed=False), transposed=True)
        x = xp.linalg.qr(x)[0]
        # Through the factor: the matrix itself was used up.
        image = _lower_times(lower, _lower_times(lower, x, transposed=True), transposed=False) - shift * x
        small = host(x.T @ image)
        if not np.isfinite(small).all():
            return None, whitened, dual
        values, rotation = np.linalg.eigh(small)
        if values[0] > 30.0 * limit:  # only the first value is asked for
            return _Smallest(values, x, values), whitened, dual
        turn = convert(rotation, lower)
        x, image = x @ turn, image @ turn
        off = image - x * convert(values, lower)[None, :]
        near = _Smallest(values, x, host(xp.sqrt(xp.sum(off * off, axis=0))))
        if near.below(limit, floor) is not None:
            break
    return near, whitened, dual


def _probes_like(lower: Array) -> Array:
    """Probes where the factor is; on a device they are kept, since a copy takes longer than their use."""
    d, where = int(lower.shape[0]), describe_device(lower)
    if is_numpy(lower):
        return _probes(d)
    if (d, where) not in _kept_probes:
        _kept_probes.clear()
        _kept_probes[d, where] = convert(_probes(d), lower)
    return _kept_probes[d, where]


_kept_probes: dict[tuple[int, str], Array] = {}


@lru_cache(maxsize=4)
def _probes(d: int) -> np.ndarray[Any, Any]:
    """(d, b) random directions of about unit length; the same every time."""
    probes: np.ndarray[Any, Any] = np.random.default_rng(0).standard_normal((d, min(MOST_NEAR_NULL + 1, d)))
    return probes / np.float64(np.sqrt(d))


def _plus_diagonal(R: Array, shift: float) -> Array:
    if is_numpy(R):
        R.reshape(-1)[:: R.shape[0] + 1] += shift
        return R
    if is_torch(R):
        R.diagonal().add_(shift)
        return R
    xp = namespace(R)
    return R + shift * xp.eye(R.shape[0], dtype=R.dtype, device=R.device)


def _plus_projector(R: Array, N: Array) -> Array:
    R += N @ N.T
    return R


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

    x, info = dtrtrs(lower, B, lower=1, trans=1 if transposed else 0)
    return x if info == 0 else np.full_like(x, np.inf)  # an exact zero on the diagonal


def _lower_times(lower: Array, B: Array, transposed: bool) -> Array:
    """L B or L^T B, reading the lower triangle alone."""
    if not is_numpy(lower):  # there the other triangle is zero
        return (lower.T if transposed else lower) @ B
    from scipy.linalg.blas import dtrmm

    return dtrmm(1.0, lower, B, side=0, lower=1, trans_a=1 if transposed else 0)
