"""Scatter: the sum of centred products of the features, sum_i w_i (x_i - mean)(x_i - mean)^T, as far as it is kept.

Three forms. Where there are fewer rows than features, the centred rows themselves hold all of it in less memory, and
joining two parts only adds the rows of the other and one row for the difference of the means. Otherwise it is the
d x d matrix, or its diagonal alone for methods that need no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from excise.numerics.arrays import Array, convert, namespace

__all__ = ["MatrixScatter", "RowScatter", "Scatter", "VarianceScatter", "read_scatter"]

MOST_BLOCKS = 64


class Scatter(Protocol):
    """All forms can be joined with their own kind, scaled, moved and stored."""

    @property
    def name(self) -> str:
        """Of the array in a file."""
        ...

    def diagonal(self) -> Array: ...
    def matrix(self) -> Array: ...
    def times(self, V: Array) -> Array:
        """S @ V"""
        ...

    def join(self, other: Any, weight: float, dx: Array) -> Scatter:
        """The scatter of both parts; weight * dx dx^T is that of their means."""
        ...

    def scaled(self, factor: float) -> Scatter: ...
    def to(self, like: Array) -> Scatter: ...
    def stored(self) -> Array:
        """What a file holds of it."""
        ...


@dataclass(frozen=True)
class MatrixScatter:
    S: Array  # (d, d)
    name: str = "s_xx"

    def diagonal(self) -> Array:
        return namespace(self.S).linalg.diagonal(self.S)

    def matrix(self) -> Array:
        return self.S

    def times(self, V: Array) -> Array:
        return self.S @ V

    def join(self, other: Any, weight: float, dx: Array) -> Scatter:
        return MatrixScatter(self.S + other.matrix() + weight * dx[:, None] * dx[None, :])

    def scaled(self, factor: float) -> Scatter:
        return MatrixScatter(self.S * factor)

    def to(self, like: Array) -> Scatter:
        return MatrixScatter(convert(self.S, like))

    def stored(self) -> Array:
        return self.S


@dataclass(frozen=True)
class VarianceScatter:
    """The diagonal alone."""

    s: Array  # (d,)
    name: str = "s_xx"

    def diagonal(self) -> Array:
        return self.s

    def matrix(self) -> Array:
        raise TypeError("only the variances were kept")

    def times(self, V: Array) -> Array:
        raise TypeError("only the variances were kept")

    def join(self, other: Any, weight: float, dx: Array) -> Scatter:
        return VarianceScatter(self.s + other.s + weight * dx * dx)

    def scaled(self, factor: float) -> Scatter:
        return VarianceScatter(self.s * factor)

    def to(self, like: Array) -> Scatter:
        return VarianceScatter(convert(self.s, like))

    def stored(self) -> Array:
        return self.s


@dataclass(frozen=True)
class RowScatter:
    """F^T F with fewer rows F than features; F is kept in blocks, as it came."""

    blocks: tuple[Array, ...]  # each (m, d): centred rows, times the roots of their weights
    name: str = "rows"

    def rows(self) -> Array:
        """F (m, d)"""
        return self.blocks[0] if len(self.blocks) == 1 else namespace(self.blocks[0]).concat(list(self.blocks), axis=0)

    @property
    def count(self) -> int:
        return sum(int(block.shape[0]) for block in self.blocks)

    def diagonal(self) -> Array:
        F = self.rows()
        return namespace(F).sum(F * F, axis=0)

    def matrix(self) -> Array:
        F = self.rows()
        return F.T @ F

    def times(self, V: Array) -> Array:
        F = self.rows()
        return F.T @ (F @ V)

    def join(self, other: Any, weight: float, dx: Array) -> Scatter:
        if not isinstance(other, RowScatter) or self.count + other.count + 1 >= dx.shape[0]:
            return MatrixScatter(self.matrix()).join(other, weight, dx)
        blocks = (*self.blocks, *other.blocks, float(np.sqrt(weight)) * dx[None, :])
        return RowScatter(blocks if len(blocks) <= MOST_BLOCKS else (RowScatter(blocks).rows(),))

    def scaled(self, factor: float) -> Scatter:
        return RowScatter(tuple(block * float(np.sqrt(factor)) for block in self.blocks))

    def to(self, like: Array) -> Scatter:
        return RowScatter(tuple(convert(block, like) for block in self.blocks))

    def stored(self) -> Array:
        """A triangular factor, which has the same F^T F: the rows themselves are never written."""
        return namespace(self.blocks[0]).linalg.qr(self.rows())[1]


def read_scatter(arrays: dict[str, Array]) -> Scatter:
    """From the array of a file."""
    if "rows" in arrays:
        return RowScatter((arrays["rows"],))
    s = arrays["s_xx"]
    return MatrixScatter(s) if s.ndim == 2 else VarianceScatter(s)
