"""What the closed-form methods start from: features without units, the concept's directions in them, a whitening.

With D the standard deviations of X and A = D^-1 Sxz (in units of z's standard deviations), U is an orthonormal basis of
A's columns, and F F^T is the correlation matrix of X, possibly shrunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.erasers.affine import AffineEraser
from excise.moments.moments import Moments
from excise.numerics.arrays import Array, convert, host, namespace
from excise.numerics.linalg import basis, scales
from excise.numerics.precision import EMPTIED, EPS64, chance_correlation
from excise.numerics.shrinkage import Shrinkage, choose_shrinkage, intensity, shrink
from excise.numerics.whitening import Whitening, whiten_matrix, whiten_rows

__all__ = ["Geometry", "affine_eraser", "concept_rank", "correlations", "functions_of_concept", "geometry"]


@dataclass(frozen=True)
class Geometry:
    D: Array  # (d,) standard deviations of the features
    A: Array  # (d, k) correlations of the features with the columns of the concept
    U: Array  # (d, r) orthonormal, colsp(U) = colsp(A)
    F: Whitening
    shrinkage: Shrinkage  # what was done
    intensity: float


def correlations(m: Moments, D: Array) -> Array:
    """(d, k) correlations of the features with the columns of the concept; free of all units.

    Not whitened: where two columns are almost the same, their small difference is still a direction.
    """
    return convert(m.cov_xz, D) / D[:, None] / scales(convert(m.var_z, D))[None, :]


def concept_rank(m: Moments) -> int:
    """Rank of the cross-covariance, decided without units: how many dimensions LEACE and SAL remove."""
    return int(basis(correlations(m, m.std_x))[0].shape[1])


def geometry(m: Moments, shrinkage: Shrinkage = "none", beside: Array | None = None) -> Geometry:
    """Factor the correlation matrix of X for the concept of `m`; `beside` (d, j) are further columns that must count."""
    assert m.d is not None
    D = m.std_x
    A = correlations(m, D)
    U = basis(A)[0]
    columns = A if beside is None else namespace(A).concat([A, beside], axis=1)
    rows = m.effective_rows
    method = choose_shrinkage(shrinkage, rows, m.d)
    G = m.standardised_rows
    at_hand = m.at_hand
    if G is not None:
        K = G @ G.T
        xp = namespace(K)
        a = intensity(float(xp.linalg.trace(K)), float(xp.sum(K * K)), m.d, rows, method)
        F = whiten_rows(G, columns, U, m.rounding, a)
    else:
        R, a = shrink(m.correlation_matrix(), rows, method)
        made = [R]
        del R

        def make() -> Array:
            return made.pop() if made else shrink(m.correlation_matrix(), rows, method)[0]

        resolve = None
        if at_hand is not None and a == 0.0:
            resolve = lambda N: at_hand.resolve(N, m.mean_x, D)  # noqa: E731
        chance = chance_correlation(int(rows), int(columns.shape[1]), 1)
        F = whiten_matrix(make, columns, U, m.eps_xx, m.rounding, resolve, chance)
    return Geometry(D, A, U, F, method, a)


def functions_of_concept(m: Moments) -> Any:
    """Features (numbers, ascending) that are a function of the concept and of nothing else, as its own one-hot columns."""
    var = m.statistics.host_var_x
    explained = host(namespace(m.mean_x).sum(m.whitened_cov_xz**2, axis=1))
    left = 1.0 - explained / np.where(var > 0, var, np.inf)
    if m.at_hand is None:
        return np.flatnonzero(left <= 64.0 * EPS64)
    candidates = np.flatnonzero(left <= 1e-12)
    if not len(candidates):
        return candidates
    spread = m.at_hand.unexplained(candidates, m.regression, m.mean_x, m.mean_z)
    return candidates[spread <= EMPTIED * np.sqrt(var[candidates])]


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
