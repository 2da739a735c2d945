"""SAL (spectral attribute removal) and mean projection: orthogonal projection off the span of Cov(X, Z).

Both guard where the rank is full, and are the same map; they move x further than LEACE does, because they take no
account of the correlations between features. No bias, as in the paper.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from excise.concepts.labels import name_order
from excise.erasers.affine import AffineEraser
from excise.errors import ConceptError, ExciseError
from excise.methods.checks import (
    check_strength,
    check_whole,
    describe,
    json_names,
    require_concept,
    warn_all_erased,
    warn_few_rows,
    warn_rank_zero,
)
from excise.methods.geometry import affine_eraser, correlations
from excise.moments.moments import Moments
from excise.numerics.arrays import Array, host, namespace
from excise.numerics.correlation import basis

__all__ = ["diff_in_means", "mean_projection", "sal"]


def sal(m: Moments, rank: int | None = None, strength: float = 1.0, reference: Any = None) -> AffineEraser:
    """r(x) = x - U U^T (x - c) with U the left singular vectors of Sxz; all of them unless `rank` says how many.

    The guarantee holds up to the conditioning of the features' scales: U is orthonormal in the units of X.

    Args:
        m: moments of X and the concept; the d x d covariance is not needed.
        rank: how many singular vectors.
        strength: 1 erases, 0 changes nothing.
        reference: a class whose mean is c: every row is moved to where that class is (affine concept editing, ACE). None:
            c = 0, as in the paper.

    Raises:
        ConceptError: one class only, labels that do not vary, or no such reference class.
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
    directions = basis(correlations(m, D))[0]  # the rank, decided without units
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
    if reference is None:
        return affine_eraser(m, U, strength * U, xp.zeros_like(m.mean_x), about)
    about["reference"] = json_names([reference])[0]
    return affine_eraser(m, U, strength * U, class_mean(m, reference), about)


def mean_projection(m: Moments, strength: float = 1.0, reference: Any = None) -> AffineEraser:
    """Projection off the span of the differences of the class means: the same map as full-rank SAL."""
    eraser = sal(m, strength=strength, reference=reference)
    return replace(eraser, info={**eraser.info, "method": "mean_projection"})


def diff_in_means(m: Moments, strength: float = 1.0, reference: Any = None) -> AffineEraser:
    """r(x) = x - v v^T x with v the normalised difference of the two class means: directional ablation.

    This is what the work on refusal directions calls difference in means; `mean_projection` under the name that is
    looked for. With `reference` the rows keep that class's mean along v: affine concept editing (ACE). With more than two
    classes it projects off the span of all differences.

    >>> import numpy as np
    >>> from excise import Moments
    >>> X = np.array([[1.0, 0.0], [3.0, 0.0], [1.0, 2.0], [3.0, 2.0]] * 5)
    >>> m = Moments().update(X, ["harmless", "harmful"] * 10)
    >>> diff_in_means(m, reference="harmless")(np.array([3.0, 7.0])).tolist()
    [1.0, 7.0]
    """
    eraser = sal(m, strength=strength, reference=reference)
    return replace(eraser, info={**eraser.info, "method": "diff_in_means"})


def class_mean(m: Moments, name: Any) -> Array:
    """(d,) mean of one class.

    Raises:
        ConceptError: the concept is not one column of classes, or has no such class.
    """
    if not m.concept.is_one_categorical:
        raise ConceptError(f"reference= names a class, but the concept is {m.concept.kind} of {m.concept.k} columns")
    names = [name_order(one) for one in m.concept.names]
    if name_order(name) not in names or float(m.mean_z[names.index(name_order(name))]) <= 0:
        raise ConceptError(f"reference {name!r} is not a class; there are {', '.join(map(repr, m.concept.names[:8]))}")
    return m.mean_x + m.regression[:, names.index(name_order(name))]
