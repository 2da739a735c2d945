"""Moments -> features without units, the concept's directions in them, a factor of R; and back to an eraser.

With D the standard deviations of X and A = D^-1 Sxz (in units of z's standard deviations), U is an orthonormal basis of
A's columns and R the correlation matrix of X.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from excise.erasers.affine import AffineEraser
from excise.moments.moments import Moments
from excise.numerics.arrays import Array, convert, host, namespace
from excise.numerics.correlation import (
    Factor,
    RowsFactor,
    Shrinkage,
    basis,
    choose_shrinkage,
    factor,
    factor_rows,
    intensity,
    scales,
)
from excise.numerics.linalg import singular_values
from excise.numerics.precision import EMPTIED, EPS64, EXACT, RIDGE_FACTOR, RIDGE_SUMS

__all__ = ["Geometry", "affine_eraser", "concept_rank", "correlations", "functions_of_concept", "geometry"]


@dataclass(frozen=True)
class Geometry:
    m: Moments
    D: Array  # (d,) standard deviations of the features
    A: Array  # (d, k) correlations of the features with the columns of the concept
    U: Array  # (d, r) orthonormal, colsp(U) = colsp(A)
    shrinkage: Shrinkage  # as it was chosen

    @cached_property
    def F(self) -> Factor:
        m, how = self.m, self.shrinkage
        assert m.d is not None
        d, rows = m.d, m.effective_rows

        def shrink(trace: float, square: float) -> float:
            return intensity(trace, square, d, rows, how)

        G = m.standardised_rows
        if G is not None:
            return factor_rows(G, m.correlation_matrix, m.delta, m.kish, None if how == "none" else shrink)
        return factor(m.correlation_matrix, m.delta, m.kish, m.eps_xx, shrink)

    def canonical(self) -> list[float] | None:
        """Canonical correlations of X and Z in the sample; None if R was shrunk, which gives no such thing."""
        if self.F.intensity:
            return None
        r = int(self.U.shape[1])
        if r == 0:
            return []
        if isinstance(self.F, RowsFactor):  # without the d x d factor
            squares = np.linalg.eigvalsh(host(self.cross.T @ self.F.solve(self.cross)))[::-1]
            found = np.sqrt(np.maximum(squares, 0.0))
        else:
            found = host(singular_values(self.F.half(self.cross)))
        return np.minimum(found[:r], 1.0).tolist()  # type: ignore[no-any-return]

    @cached_property
    def cross(self) -> Array:
        """(d, k) covariances of X and Z, with X in standard deviations and Z whitened."""
        B = self.m.whitened_cov_xz / self.D[:, None]
        return self.U @ (self.U.T @ B)

    def functions_of_features(self) -> int:
        """How many directions of the concept are linear functions of X: 1 - R^2 is rounding, less what the ridge takes."""
        X = self.F.solve(self.cross)
        taken = X.T @ (X * (self.F.multiplier * self.F.ridge)[:, None])
        explained = np.linalg.eigvalsh(host(self.cross.T @ X + taken))
        return int((1.0 - explained <= EXACT).sum())

    def about(self) -> dict[str, Any]:
        """For `info`: what was added to the diagonal of R."""
        return {
            "shrinkage": self.shrinkage,
            "shrinkage_intensity": self.F.intensity,
            "ridge": self.F.multiplier * float(namespace(self.D).max(self.F.ridge)),
            "ridge_multiplier": self.F.multiplier,
        }


def correlations(m: Moments, D: Array) -> Array:
    """(d, k) correlations of the features with the columns of the concept; free of all units.

    Not whitened: if two columns are almost the same, their small difference is still a direction.
    """
    xp = namespace(D)
    varies = xp.astype(convert(m.var_x, D) > 0, D.dtype)  # a constant feature has no correlations, only rounding
    return convert(m.cov_xz, D) * (varies / D)[:, None] / scales(convert(m.var_z, D))[None, :]


def concept_rank(m: Moments) -> int:
    """Rank of the cross-covariance, decided without units: how many dimensions LEACE and SAL remove."""
    return int(basis(correlations(m, m.std_x))[0].shape[1])


def geometry(m: Moments, shrinkage: Shrinkage = "none") -> Geometry:
    """The features without units, and the directions of the concept."""
    assert m.d is not None
    A = correlations(m, m.std_x)
    return Geometry(m, m.std_x, A, basis(A)[0], choose_shrinkage(shrinkage, m.effective_rows, m.d))


def functions_of_concept(m: Moments) -> Any:
    """Features (numbers, ascending) that are a function of the concept and of nothing else, as its own one-hot columns.

    Their unexplained share of variance is below what the sums let one know (the ridge of exact digits).
    """
    var = m.statistics.host_var_x
    explained = host(namespace(m.mean_x).sum(m.whitened_cov_xz**2, axis=1))
    left = 1.0 - explained / np.where(var > 0, var, np.inf)
    known = (RIDGE_SUMS + RIDGE_FACTOR) * float(np.sqrt(len(var))) * EPS64
    return np.flatnonzero((left <= known) & (var > 0))


def affine_eraser(
    m: Moments,
    left: Array,
    right: Array,
    center: Array,
    info: dict[str, Any],
    components: Array | None = None,
    emptied: Any = None,
) -> AffineEraser:
    """The eraser of a method, with the names of `m` and the features that it empties (`emptied`: those known to be)."""
    found = None
    if info.get("strength", 1.0) == 1.0:
        known = _emptied(left, right, convert(m.std_x, left))
        if emptied is not None:
            known = np.union1d(known, emptied)
        found = convert(known.astype(np.int64), left) if len(known) else None
    return AffineEraser(left, right, center, info, components, m.concept, m.feature_names, False, found)


def _emptied(left: Array, right: Array, D: Array) -> Any:
    """Features whose row of P = I - left right^T vanishes, in units of the features' standard deviations."""
    U, V = left / D[:, None], right * D[:, None]
    if U.shape[1] == 0:
        return np.zeros(0, dtype=np.int64)
    xp = namespace(U)
    squared = 1.0 - 2.0 * xp.sum(U * V, axis=1) + xp.sum((U @ (V.T @ V)) * U, axis=1)
    near = np.flatnonzero(host(squared) < 1e-6)
    if not len(near):
        return near
    rows = -host(U)[near] @ host(V).T
    rows[np.arange(len(near)), near] += 1.0
    return near[np.linalg.norm(rows, axis=1) <= EMPTIED]
