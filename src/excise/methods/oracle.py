"""Oracle LEACE: the smallest edit of all, for those who have the labels when they apply it (Theorem F.1)."""

from __future__ import annotations

from excise._array import host
from excise._linalg import inverse_root, scales, singular_values
from excise.eraser import OracleEraser
from excise.methods._common import describe, require_concept, warn_rank_zero
from excise.moments import Moments

__all__ = ["oracle"]


def oracle(m: Moments) -> OracleEraser:
    """r(x, z) = x - Sxz Szz^+ (z - mean z): what is left of X after regressing it on Z, with the mean kept.

    It guards linearly, but it moves x by an amount that depends on the label: a nonlinear model may find the label
    *more* easily afterwards.

    Raises:
        ConceptError: one class only, or labels that do not vary.
        InputError: fewer than two rows.

    >>> import numpy as np
    >>> from excise import Moments
    >>> X, z = np.array([[0.0], [1.0], [10.0], [11.0]]), ["a", "a", "b", "b"]
    >>> oracle(Moments().update(X, z))(X, z).ravel().round(12).tolist()
    [5.0, 6.0, 5.0, 6.0]
    """
    require_concept(m)
    T = inverse_root(m.cov_zz)  # (k, r): Szz^+ = T T^T
    correlations = m.cov_xz / scales(m.var_x)[:, None] @ T
    sizes = host(singular_values(correlations))
    if not (sizes > 0).any():
        warn_rank_zero()
    return OracleEraser(
        m.cov_xz @ T @ T.T,
        m.mean_z,
        m.concept,
        describe(m, "oracle", standardised_correlations=sizes.tolist()),
    )
