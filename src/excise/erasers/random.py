"""The random control: at every forward pass a fresh random subspace, the same at all sites, of the rank that LEACE removes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from excise import files
from excise.erasers.affine import AffineEraser
from excise.numerics.arrays import Array

__all__ = ["RandomEraser", "random_basis"]


@dataclass(frozen=True, eq=False)
class RandomEraser:
    """r(x) = x - U U^T x with U (d, rank) random and orthonormal, another one at every draw.

    Erasers of the same width and seed share their subspaces: at one draw the lower rank has the first columns of the
    higher.

    >>> e, wider = RandomEraser(d=8, rank=2, seed=0), RandomEraser(d=8, rank=3, seed=0)
    >>> bool(np.allclose(e.drawn(0).left, wider.drawn(0).left[:, :2])), bool(np.allclose(e.drawn(0).left, e.drawn(1).left))
    (True, False)
    """

    d: int
    rank: int
    seed: int
    strength: float = 1.0
    info: dict[str, Any] = field(default_factory=dict)

    needs_labels = False
    concept = None
    feature_names = None

    def drawn(self, number: int) -> AffineEraser:
        """The eraser of one forward pass."""
        U = random_basis(self.d, self.rank, (self.seed, number))
        return AffineEraser(U, self.strength * U, np.zeros(self.d), self.info)

    def __call__(
        self,
        X: Any,
        z: Any = None,
        *,
        rounding: str = "nearest",
        rounding_seed: int | None = None,
        seed: Any = None,
        draw: int = 0,
    ) -> Any:
        """Project X off the subspace of `draw`; everything else as for `AffineEraser`."""
        return self.drawn(draw)(X, rounding=rounding, rounding_seed=rounding_seed, seed=seed)

    def to(self, device: Any = None, dtype: Any = None) -> RandomEraser:
        """Itself: it holds no arrays."""
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what is needed to draw again: no array is."""
        about = {name: getattr(self, name) for name in ("d", "rank", "seed", "strength", "info")}
        files.write(path, "RandomEraser", {}, about)

    @staticmethod
    def from_stored(arrays: dict[str, Array], about: dict[str, Any]) -> RandomEraser:
        return RandomEraser(**about)


@lru_cache(maxsize=8)
def random_basis(d: int, rank: int, seed: Any) -> Array:
    """(d, rank) uniformly random, orthonormal. The first columns do not depend on how many there are."""
    U, T = np.linalg.qr(np.random.default_rng(seed).standard_normal((rank, d)).T)
    return U * np.where(np.diag(T) < 0, -1.0, 1.0)  # the sign makes the distribution uniform
