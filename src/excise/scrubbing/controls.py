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

__all__ = ["RandomEraser"]


@dataclass(frozen=True, eq=False)
class RandomEraser:
    """r(x) = x - U U^T x with U (d, rank) random and orthonormal, another one at every draw.

    Erasers of the same width and seed share their subspaces: at one draw the lesser rank has the first columns of the
    greater.

    >>> e, wider = RandomEraser(d=8, rank=2, seed=0), RandomEraser(d=8, rank=3, seed=0)
    >>> bool(np.allclose(e.at(0).left, wider.at(0).left[:, :2])), bool(np.allclose(e.at(0).left, e.at(1).left))
    (True, False)
    """

    d: int
    rank: int
    seed: int
    strength: float = 1.0
    info: dict[str, Any] = field(default_factory=dict)

    def at(self, draw: int) -> AffineEraser:
        """The eraser of one forward pass."""
        U = _columns(self.d, self.rank, self.seed, draw)
        return AffineEraser(U, self.strength * U, np.zeros(self.d), self.info)

    def __call__(self, X: Array, draw: int = 0) -> Array:
        return self.at(draw)(X)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what is needed to draw again: no array is."""
        about = {name: getattr(self, name) for name in ("d", "rank", "seed", "strength", "info")}
        _files.write(path, "RandomEraser", {}, about)

    @staticmethod
    def from_stored(arrays: dict[str, Array], about: dict[str, Any]) -> RandomEraser:
        return RandomEraser(**about)


@lru_cache(maxsize=8)
def _columns(d: int, rank: int, seed: int, draw: int) -> Array:
    # Drawn column by column, so that the first ones do not depend on how many there are.
    U, T = np.linalg.qr(np.random.default_rng([seed, draw]).standard_normal((rank, d)).T)
    return U * np.where(np.diag(T) < 0, -1.0, 1.0)  # the sign makes the distribution uniform
