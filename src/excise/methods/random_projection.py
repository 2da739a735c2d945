"""The control: projection off a random subspace. What it does to a model is what any erasure of that rank does."""

from __future__ import annotations

import numpy as np

from excise._files import versions
from excise.eraser import AffineEraser
from excise.errors import ExciseError

__all__ = ["random_projection"]


def random_projection(d: int, rank: int, seed: int, strength: float = 1.0) -> AffineEraser:
    """r(x) = x - U U^T x with U (d, rank) uniformly random, orthonormal; the same for the same seed.

    >>> e = random_projection(8, 3, seed=0)
    >>> e.rank, bool(np.allclose(e.P @ e.P, e.P))
    (3, True)
    """
    if isinstance(strength, str) or not np.isfinite(strength):
        raise ExciseError(f"strength must be a finite number, got {strength!r}")
    if int(rank) != rank or not 0 <= rank <= d or d < 1:
        raise ExciseError(f"rank must be between 0 and d = {d}, got {rank}")
    U, T = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, rank)))
    U = U * np.where(np.diag(T) < 0, -1.0, 1.0)  # the sign makes the distribution uniform
    info = {
        "method": "random_projection",
        "d": d,
        "rank": rank,
        "seed": seed,
        "strength": strength,
        "versions": versions(),
    }
    return AffineEraser(U, strength * U, np.zeros(d), info)
