"""LEACE for unit vectors: the concept is gone after every row was divided by its length.

Cov(r(x)/|r(x)|, z) = 0 reads E[w r(x) (z - mean z)^T] = 0 with w = 1/|r(x)|, which is linear in r for given w. With
h = (x - mean, 1), S = E[h h^T] and A = E[w h (z - mean z)^T], the affine map closest to the identity that satisfies it is
r(x) = x - E[x w (z - mean z)^T] (A^T S^-1 A)^-1 A^T S^-1 h. A map whose own lengths are the w that it was made from is a
fixed point, and it guards: E[r/|r| (z - mean z)^T] = 0. Here it is looked for by Anderson's acceleration of w -> r -> w; S
is factored once, a round is one pass over the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.erasers.affine import AffineEraser
from excise.errors import ConceptError, ExciseError, InputError
from excise.methods.checks import check_whole, describe, require_concept, warn_few_rows, warn_rank_zero
from excise.methods.geometry import geometry
from excise.methods.weighted_rows import Edit, WeightedRows, WeightedSums
from excise.moments.moments import Moments
from excise.numerics.arrays import Array, convert, host, namespace
from excise.numerics.chunks import small_products
from excise.numerics.correlation import Factor, Shrinkage, basis, force_dual, scales

__all__ = ["leace_for_unit_vectors", "shift_for"]

TARGET = 2e-14  # correlations with the concept that are left; rounding allows about 1e-15
ACCEPTED = 1e-10  # the most that may be left
NARROW = 1e-4  # above this, rounds over 16- and 32-bit rows may multiply in float32
NO_LENGTH = 1e-13  # a row of which less than this is left has no direction but that of its rounding errors
MEMORY = 5  # rounds that Anderson's acceleration looks back
QUICK, SLOW = 60, 200  # rounds with it, and without
SMOOTHING = 0.4  # by which the smoothing shrinks from stage to stage
LARGE_OFFSET = 8.0  # means beyond this many standard deviations are subtracted before products


@dataclass(frozen=True)
class Point:
    """What a round knows: the sums it started from, the edit made from them, and what that edit leaves."""

    A: np.ndarray[Any, Any]  # (d + 1, k), without units
    edit: Edit
    image: np.ndarray[
        Any, Any
    ]  # the sums under the weights of `edit`: equal to A at a fixed point, up to its columns' span
    residual: float
    length: float  # root mean square of |r|
    nearest: float  # the smallest |r| / |x|
    at: int  # its row


def leace_for_unit_vectors(
    m: Moments, rows: WeightedRows, shrinkage: Shrinkage = "auto", max_rounds: int = 1000
) -> AffineEraser:
    """r(x)/|r(x)| with r affine, as close to the identity as its own weights allow, and Cov(r/|r|, z) = 0.

    Args:
        m: moments of X and the concept.
        rows: the rows behind them, gone through once per round.
        shrinkage: as in leace.
        max_rounds: passes over the rows before giving up.

    Raises:
        ConceptError: fewer than two dimensions would be left, or the classes do not vary.
        InputError: a row of zeros, or one that is mapped to zero.
        ExciseError: it has not converged.
    """
    require_concept(m)
    check_whole("max_rounds", max_rounds, 1)
    assert m.d is not None
    with small_products(m.d):
        return _Search(m, rows, shrinkage, max_rounds).eraser()


class _Search:
    def __init__(self, m: Moments, rows: WeightedRows, shrinkage: Shrinkage, max_rounds: int) -> None:
        self.m, self.rows, self.most = m, rows, max_rounds
        self.g = geometry(m, shrinkage)
        self.rounds = 0
        self.units = host(scales(m.var_z))
        self.shifted = bool((host(rows.shift) != 0).any())
        self.columns = np.arange(m.k)
        if m.concept.is_one_categorical:  # the columns of the classes add up to zero: without the largest they do not
            self.columns = np.delete(self.columns, int(np.argmax(host(m.mean_z))))

    def eraser(self) -> AffineEraser:
        m = self.m
        A = self._first()
        if self._is_nothing(A):  # but their lengths may still know it
            A = self._round(A, 0.0, None, wide=True).image
        if self._is_nothing(A):
            warn_rank_zero()
            return self._result(None)
        varying = int((m.statistics.host_var_x > 0).sum())
        rank = self.g.U.shape[1]
        if varying - rank < 2:
            raise ConceptError(
                f"the concept takes {rank} of {varying} dimensions: unit vectors in what is left are all the same, up to "
                f"their sign; use fewer classes or more features, or erase without normalize",
                code="no-direction",
            )
        warn_few_rows(m, self.g.shrinkage)
        target = max(TARGET, 1e-4 * m.statistics.unit_roundoff)  # unit vectors are rounded to the dtype of X anyway
        point = self._anderson(A, 0.0, QUICK, target)
        if point.residual > ACCEPTED:
            point = min(point, self._plain(point.A, 0.0, SLOW, TARGET), key=lambda p: p.residual)
        if point.residual > ACCEPTED:
            point = min(point, self._by_smoothing(A), key=lambda p: p.residual)
        if point.residual > ACCEPTED:
            raise self._not_converged(point)
        if point.nearest <= NO_LENGTH:
            raise InputError(
                f"row {point.at} is mapped to zero by the edit: the direction of what is left is rounding error; drop it, or "
                f"erase without normalize",
                code="zero-row",
            )
        return self._result(point)

    def _is_nothing(self, A: Any) -> bool:
        return int(basis(A)[0].shape[1]) == 0

    def _first(self) -> Any:
        """LEACE's own: all weights equal."""
        m = self.m
        size = np.sqrt(host(m.var_x).sum() + (host(m.mean_x) ** 2).sum())
        self.root_mean_square = float(size)
        cross = host(m.cov_xz) / self.units
        return self._standardised(cross, np.zeros(m.k))

    def _by_smoothing(self, A: Any) -> Point:
        """From weights 1/sqrt(|r|^2 + s^2) with a large s, which are tame, to s = 0."""
        s = 1.0
        point = self._anderson(A, s, QUICK, 1e-8)
        while s > 1e-7 and self.rounds < self.most:
            s *= SMOOTHING
            point = self._anderson(point.A, s, QUICK, 1e-8)
            if point.residual > 1e-6:
                point = min(point, self._plain(point.A, s, QUICK, 1e-8), key=lambda p: p.residual)
        return self._anderson(point.A, 0.0, QUICK, TARGET)

    def _plain(self, A: Any, smoothing: float, rounds: int, target: float) -> Point:
        best = point = self._round(A, smoothing, None)
        for _ in range(rounds):
            if best.residual <= target or self.rounds >= self.most:
                break
            point = self._round(point.image, smoothing, point)
            best = min(best, point, key=lambda p: p.residual)
        return best

    def _anderson(self, A: Any, smoothing: float, rounds: int, target: float) -> Point:
        """Anderson's acceleration: the next A is the combination of the last images whose steps cancel best."""
        best = point = self._round(A, smoothing, None)
        starts: list[Any] = []
        images: list[Any] = []
        for _ in range(rounds):
            if best.residual <= target or self.rounds >= self.most:
                break
            if point.residual > 10.0 * best.residual and len(starts) > MEMORY:
                starts, images = [], []
            starts, images = [*starts, point.A.ravel()][-MEMORY - 1 :], [*images, point.image.ravel()][-MEMORY - 1 :]
            new = point.image
            if len(starts) > 1:
                steps = np.stack(images, axis=1) - np.stack(starts, axis=1)
                mix = np.linalg.lstsq(np.diff(steps, axis=1), steps[:, -1], rcond=1e-12)[0]
                new = (images[-1] - np.diff(np.stack(images, axis=1), axis=1) @ mix).reshape(A.shape)
            point = self._round(new, smoothing, point)
            best = min(best, point, key=lambda p: p.residual)
            if best.residual <= 1e-11 and point.residual > 0.5 * best.residual and point is not best:
                break  # rounding: no further round will be better
        return best

    def _round(self, A: Any, smoothing: float, before: Point | None, wide: bool = False) -> Point:
        edit = self._edit(A)
        length = self.root_mean_square if before is None else before.length
        self.rounds += 1
        narrow = not wide and (before is None or before.residual > NARROW)
        sums = self.rows.sums(edit, (smoothing * length) ** 2, narrow)
        residual = self._left(edit, sums)
        residual = max(residual, ACCEPTED * 10.0) if narrow else residual  # float32 cannot say that it is done
        return Point(
            A, edit, self._without_units(sums), residual, float(np.sqrt(sums.square / sums.rows)), sums.nearest, sums.at
        )

    def _without_units(self, sums: WeightedSums) -> Any:
        """(d + 1, k): E[w (x - mean) zc^T] in standard deviations, above E[w zc^T]."""
        ones = host(sums.by_column) / self.units / sums.total
        cross = host(sums.cross).T / self.units / sums.total
        if not self.shifted:
            cross = cross - host(self.m.mean_x)[:, None] * ones[None, :]
        return self._standardised(cross, ones)

    def _standardised(self, cross: Any, ones: Any) -> Any:
        D = host(self.g.D)
        cross = np.where(host(self.m.var_x)[:, None] > 0, cross / D[:, None], 0.0)
        return np.concatenate([cross, ones[None, :]], axis=0)[:, self.columns]

    def _edit(self, A: Any) -> Edit:
        m, F, D = self.m, self.g.F, self.g.D
        U = basis(convert(A, D))[0]
        V = _least_dual(F, U)
        left = D[:, None] * U[:-1] + m.mean_x[:, None] * U[-1:]
        right = V[:-1] / D[:, None]
        offset = V[-1]
        if not self.shifted:
            offset = offset - m.mean_x @ right
        return Edit(left, right, offset)

    def _left(self, edit: Edit, sums: WeightedSums) -> float:
        """Largest E[w r zc] / (E[w] std x std z): the correlations that unit vectors of this edit keep."""
        shift, left, right = host(self.rows.shift), host(edit.left), host(edit.right)
        ones, cross = host(sums.by_column), host(sums.cross).T
        kept = cross + shift[:, None] * ones[None, :] - left @ (right.T @ cross + np.outer(host(edit.offset), ones))
        spread = np.sqrt(host(self.m.var_x) + (host(self.m.var_x) == 0) * host(self.m.mean_x) ** 2)
        spread = np.where(spread > 0, spread, 1.0)
        return float(np.abs(kept / spread[:, None] / self.units / sums.total).max())

    def _result(self, point: Point | None) -> AffineEraser:
        m = self.m
        xp = namespace(m.mean_x)
        info = describe(
            m, "leace", affine=True, strength=1.0, **self.g.about(), normalize=True, rounds=self.rounds,
            residual=0.0 if point is None else point.residual,
        )  # fmt: skip
        if point is None:
            nothing = xp.zeros((m.d, 0), dtype=m.mean_x.dtype, device=m.mean_x.device)
            return AffineEraser(nothing, nothing, m.mean_x, info, None, m.concept, m.feature_names, True)
        edit = point.edit
        # x - left (right^T (x - center)): the center has right^T center = right^T shift - offset.
        V = host(edit.right * self.g.D[:, None])
        offset = host(edit.offset)
        if not self.shifted:
            offset = offset + host(m.mean_x) @ host(edit.right)
        step = np.linalg.lstsq(V.T, -offset, rcond=None)[0]
        if np.abs(V.T @ step + offset).max() > 1e-9 * max(np.abs(offset).max(), 1e-300):
            raise ExciseError(
                "the concept shows in the lengths of the rows alone: an affine edit would have to be a pure shift, which "
                "depends on rounding; erase without normalize, or add the length as a feature",
                code="not-converged",
            )
        center = m.mean_x + convert(step, m.mean_x) * self.g.D
        return AffineEraser(edit.left, edit.right, center, info, None, m.concept, m.feature_names, True)

    def _not_converged(self, point: Point) -> ExciseError:
        m = self.m
        hint = ""
        if m.concept.is_one_categorical:
            counts = host(m.mean_z) * m.n
            few = int(np.argmin(np.where(counts > 0, counts, np.inf)))
            hint = f" (the smallest class, {m.concept.names[few]!r}, has {counts[few]:g} rows)"
        return ExciseError(
            f"no affine edit was found whose unit vectors do not know the concept: after {self.rounds} rounds a correlation "
            f"of {point.residual:.2g} is left{hint}. Unit vectors of a class of very few rows cannot have the mean of all "
            f"others: merge or drop such classes, use more features, or erase without normalize",
            code="not-converged",
        )


def _least_dual(F: Factor, U: Array) -> Array:
    """V (d + 1, r) with V^T U = I and the least E |V^T h|^2: S^-1 U (U^T S^-1 U)^-1 with S = diag(F F^T, 1)."""
    return force_dual(namespace(U).concat([F.solve(U[:-1]), U[-1:]], axis=0), U)


def shift_for(m: Moments) -> Array:
    """The mean where offsets are large against spreads, else zeros."""
    large = bool(namespace(m.mean_x).any(abs(m.mean_x) > LARGE_OFFSET * m.std_x))
    return m.mean_x if large else namespace(m.mean_x).zeros_like(m.mean_x)
