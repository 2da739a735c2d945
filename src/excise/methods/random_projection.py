"""The control: projection off a random subspace. What it does to a model is what any erasure of that rank does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from excise.erasers.affine import AffineEraser
from excise.errors import ExciseError
from excise.files import versions
from excise.methods.checks import check_strength, require_concept
from excise.methods.geometry import concept_rank
from excise.moments.moments import Moments

__all__ = ["random_like", "random_projection"]


def random_projection(d: int, rank: int, seed: int, strength: float = 1.0) -> AffineEraser:
    """r(x) = x - U U^T x with U (d, rank) uniformly random, orthonormal; the same for the same seed.

    >>> e = random_projection(8, 3, seed=0)
    >>> e.rank, bool(np.allclose(e.P @ e.P, e.P))
    (3, True)
    """
    check_strength(strength)
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


def random_like(m: Moments, rank: int | None = None, seed: int = 0, strength: float = 1.0) -> AffineEraser:
    """A random projection of the rank that LEACE would remove, unless told otherwise: the control of an experiment."""
    require_concept(m)
    assert m.d is not None
    eraser = random_projection(m.d, min(m.d, concept_rank(m) if rank is None else rank), seed, strength)
    return replace(eraser, concept=m.concept, feature_names=m.feature_names)
