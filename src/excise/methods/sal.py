"""SAL (spectral attribute removal) and mean projection: orthogonal projection off the span of Cov(X, Z).

Both guard where the rank is full, and are the same map; they move x further than LEACE does, because they take no
account of the correlations between features. No bias, as in the paper.
"""

from __future__ import annotations

from dataclasses import replace

from excise.erasers.affine import AffineEraser
from excise.errors import ExciseError
from excise.methods.checks import (
    check_strength,
    check_whole,
    describe,
    require_concept,
    warn_all_erased,
    warn_few_rows,
    warn_rank_zero,
)
from excise.methods.geometry import affine_eraser, correlations
from excise.moments.moments import Moments
from excise.numerics.arrays import host, namespace
from excise.numerics.linalg import basis

__all__ = ["mean_projection", "sal"]


def sal(m: Moments, rank: int | None = None, strength: float = 1.0) -> AffineEraser:
    """r(x) = x - U U^T x with U the left singular vectors of Sxz; all of them unless `rank` says how many.

    The guarantee holds up to the conditioning of the features' scales: U is orthonormal in the units of X.

    Raises:
        ConceptError: one class only, or labels that do not vary.
        InputError: fewer than two rows.
        ExciseError: `rank` is not between 1 and the rank of Sxz.

    >>> import numpy as np
    >>> from excise import Moments
    >>> X = np.array([[1.0, 2.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, -2.0]] * 5)
    >>> sal(Moments().update(X, [1, -1, 1, -1] * 5)).P.round(12).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    check_strength(strength)
    require_concept(m)
    D = m.std_x
    directions, _ = basis(correlations(m, D))  # the rank, decided without units
    full = directions.shape[1]
    if rank is not None:
        check_whole("rank", rank, 1)
    if rank is not None and rank > full:
        raise ExciseError(f"rank must be between 1 and {full}, the rank of the cross-covariance, got {rank}")
    xp = namespace(D)
    if full == 0:
        warn_rank_zero()
        U = directions
    elif rank is None or rank == full:
        U, _ = xp.linalg.qr(directions * D[:, None])
    else:
        U = xp.linalg.svd(m.cov_xz, full_matrices=False)[0][:, :rank]
    warn_few_rows(m, shrinkage="does not apply")
    warn_all_erased(U.shape[1], m)
    about = describe(m, "sal", strength=strength, rank_of_cross_covariance=full, guards=rank in (None, full))
    about["singular_values"] = host(xp.linalg.svdvals(m.cov_xz)).tolist()
    return affine_eraser(m, U, strength * U, xp.zeros_like(m.mean_x), about)


def mean_projection(m: Moments, strength: float = 1.0) -> AffineEraser:
    """Projection off the span of the differences of the class means: the same map as full-rank SAL."""
    eraser = sal(m, strength=strength)
    return replace(eraser, info={**eraser.info, "method": "mean_projection"})
