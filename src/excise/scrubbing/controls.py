"""The random control: at every forward pass a fresh random subspace, the same at all sites, of the rank that LEACE removes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from excise import _files
from excise._array import Array
from excise.eraser import AffineEraser
from excise.methods.random_projection import random_projection

__all__ = ["RandomEraser"]


@dataclass(frozen=True, eq=False)
class RandomEraser:
    """r(x) = x - U U^T x with U the first `rank` of `widest` random orthonormal columns; others at every draw.

    >>> e = RandomEraser(d=8, rank=2, widest=3, seed=0)
    >>> bool((e.at(0).left == e.at(0).left).all()), bool((e.at(0).left == e.at(1).left).any())
    (True, False)
    """

    d: int
    rank: int
    widest: int  # rank of the greatest eraser that shares these subspaces
    seed: int
    strength: float = 1.0
    info: dict[str, Any] = field(default_factory=dict)

    def at(self, draw: int) -> AffineEraser:
        """The eraser of one forward pass."""
        U = _columns(self.d, self.widest, self.seed, draw)[:, : self.rank]
        return AffineEraser(U, self.strength * U, np.zeros(self.d), self.info)

    def __call__(self, X: Array, draw: int = 0) -> Array:
        return self.at(draw)(X)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file that `excise.load` reads."""
        about = {name: getattr(self, name) for name in ("d", "rank", "widest", "seed", "strength", "info")}
        _files.write(path, "RandomEraser", {}, about)

    @staticmethod
    def from_stored(arrays: dict[str, Array], about: dict[str, Any]) -> RandomEraser:
        return RandomEraser(**about)


@lru_cache(maxsize=4)
def _columns(d: int, rank: int, seed: int, draw: int) -> Array:
    # One number from two: a seed of its own for every draw.
    return random_projection(d, rank, seed * 2**32 + draw).left
