"""The Fantope {0 <= P <= I, tr P = q}: the convex hull of the orthogonal projectors of rank q, in which RLACE plays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.numerics.arrays import Array, convert, host, namespace
from excise.numerics.precision import SAME_LEVEL

__all__ = ["Fantope", "fantope_projection"]


@dataclass(frozen=True)
class Fantope:
    """A point P = rest * I + V diag(levels - rest) V^T of the Fantope.

    Mostly few levels differ from the rest, and then a step costs O(d) instead of O(d^3).
    """

    V: Array  # (d, p) orthonormal
    levels: Any  # (p,) eigenvalues along V
    rest: float  # eigenvalue of all other directions

    def times(self, x: Array) -> Array:
        return self.rest * x + (x @ self.V) * convert(self.levels - self.rest, x) @ self.V.T

    def step(self, A: Array, B: Array, q: int) -> Fantope:
        """The projection of P + (A B^T + B A^T) / 2 onto the Fantope of trace q: exact."""
        xp = namespace(A)
        d = A.shape[0]
        Q, _ = xp.linalg.qr(xp.concat([self.V, A, B], axis=1))
        v, a, b = Q.T @ self.V, Q.T @ A, Q.T @ B
        small = (v * convert(self.levels - self.rest, A)) @ v.T + (a @ b.T + b @ a.T) / 2
        values, vectors = xp.linalg.eigh((small + small.T) / 2)
        levels, others = host(values) + self.rest, d - Q.shape[1]
        t = _shift(np.append(levels, self.rest), np.append(np.ones(len(levels)), others), q)
        levels, rest = np.clip(levels - t, 0.0, 1.0), float(np.clip(self.rest - t, 0.0, 1.0))
        if not others:
            rest = 0.0  # all directions have a level of their own; those at zero need not be kept
        keep = np.flatnonzero(np.abs(levels - rest) > SAME_LEVEL)
        return Fantope(Q @ vectors[:, convert(keep, A)], levels[keep], rest)

    def dense(self) -> Array:
        xp = namespace(self.V)
        return self.times(xp.eye(self.V.shape[0], dtype=self.V.dtype, device=self.V.device))


def fantope_projection(A: Array, q: int) -> Array:
    """The nearest matrix to the symmetric A with eigenvalues in [0, 1] that sum to q: exact."""
    xp = namespace(A)
    values, vectors = xp.linalg.eigh((A + A.T) / 2)
    levels = host(values)
    return (vectors * convert(np.clip(levels - _shift(levels, np.ones(len(levels)), q), 0.0, 1.0), A)) @ vectors.T


def _shift(levels: Any, counts: Any, q: int) -> float:
    """t with sum of counts * clip(levels - t, 0, 1) = q.

    The sum falls in t and is linear between the points l and l - 1, so the line in between is solved.
    """
    points = np.unique(np.concatenate([levels, levels - 1.0]))
    sums = np.clip(levels[None, :] - points[:, None], 0.0, 1.0) @ counts
    i = int(np.searchsorted(-sums, -q))  # sums[i - 1] > q >= sums[i]
    if i == 0 or sums[i] == q:
        return float(points[i])
    return float(points[i - 1] + (sums[i - 1] - q) / (sums[i - 1] - sums[i]) * (points[i] - points[i - 1]))
