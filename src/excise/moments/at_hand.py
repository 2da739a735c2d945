"""Rows that are still at hand while an eraser is solved: they see what their covariance cannot.

A covariance resolves spreads down to 1e-8 of the features' (the root of machine epsilon), the rows down to 1e-15. So
`fit`, which has the rows, lets the solver ask them about the few directions and features where that matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.concepts.encoded import Encoded
from excise.numerics.arrays import Array, convert, host, namespace

__all__ = ["AtHand"]

NUMBERS_AT_ONCE = 2**22


@dataclass(frozen=True)
class AtHand:
    """Rows (n, d) with their labels and weights. Nothing of them is kept in an eraser or a file."""

    rows: Array
    labels: Encoded
    weight: np.ndarray[Any, Any] | None

    def resolve(self, N: Array, mean: Array, scale: Array) -> tuple[Array, Array]:
        """Variances (f,) and a rotation (f, f): of the standardised rows in the span of the directions N (d, f).

        By QR of the projected rows beside a column of ones, so that they are centred without being squared.
        """
        xp = namespace(N)
        directions = N / scale[:, None]
        triangle = xp.zeros((0, N.shape[1] + 1), dtype=N.dtype, device=N.device)
        for x, root in self._chunks(N):
            y = (x - mean[None, :]) @ directions
            block = xp.concat([root[:, None], y * root[:, None]], axis=1)
            triangle = xp.linalg.qr(xp.concat([triangle, block], axis=0))[1]
        total = float(np.sum(np.ones(self.rows.shape[0]) if self.weight is None else self.weight))
        _, s, rotation = xp.linalg.svd(triangle[1:, 1:], full_matrices=False)
        f = N.shape[1]
        if s.shape[0] < f:  # fewer rows than directions
            s = xp.concat([s, xp.zeros(f - s.shape[0], dtype=s.dtype, device=s.device)])
            rotation = xp.linalg.qr(rotation.T, mode="complete")[0].T
        return s * s / total, rotation.T

    def unexplained(self, features: Any, coefficients: Array, mean_x: Array, mean_z: Array) -> Any:
        """Standard deviation of x - mean_x - coefficients (z - mean_z) over the rows, for some features (m,); NumPy."""
        at = convert(features, self.rows)
        C, mean = host(coefficients)[features], host(mean_x)[features]
        squares, total = np.zeros(len(features)), 0.0
        step = max(1, NUMBERS_AT_ONCE // max(len(features), self.labels.k, 1))
        for begin in range(0, self.rows.shape[0], step):
            x = host(self.rows[begin : begin + step][:, at]).astype(np.float64)
            w = np.ones(len(x)) if self.weight is None else self.weight[begin : begin + step]
            if self.labels.codes is not None:
                said = (C - (C @ host(mean_z))[:, None]).T[self.labels.codes[begin : begin + step]]
            else:
                assert self.labels.matrix is not None
                said = (self.labels.matrix[begin : begin + step] - host(mean_z)) @ C.T
            squares += w @ (x - mean - said) ** 2
            total += float(w.sum())
        return np.sqrt(squares / total)

    def _chunks(self, like: Array) -> Iterator[tuple[Array, Array]]:
        """(rows in float64, roots of their weights), where `like` is."""
        xp = namespace(like)
        step = max(like.shape[1] + 1, NUMBERS_AT_ONCE // self.rows.shape[1])
        for begin in range(0, self.rows.shape[0], step):
            x = convert(self.rows[begin : begin + step], like, "float64")
            if self.weight is None:
                yield x, xp.ones(x.shape[0], dtype=like.dtype, device=like.device)
            else:
                yield x, xp.sqrt(convert(self.weight[begin : begin + step], like))
