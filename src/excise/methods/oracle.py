"""Oracle LEACE: the smallest edit of all, for those who have the labels when they apply it (Theorem F.1)."""

from __future__ import annotations

import numpy as np

from excise.erasers.oracle import OracleEraser
from excise.methods.checks import check_strength, describe, require_concept, warn_rank_zero
from excise.methods.geometry import functions_of_concept
from excise.moments.moments import Moments
from excise.numerics.arrays import convert, host
from excise.numerics.linalg import singular_values

__all__ = ["oracle"]


def oracle(m: Moments, strength: float = 1.0) -> OracleEraser:
    """r(x, z) = x - strength * Sxz Szz^+ (z - mean z): what is left of X after regressing it on Z, with the mean kept.

    It guards linearly, but it moves x by an amount that depends on the label: a nonlinear model may find the label
    *more* easily afterwards. A feature with few distinct values then gives the class away by its fraction.

    Args:
        m: moments of X and the concept; the d x d covariance is not needed.
        strength: 1 erases; less leaves so much of every covariance, as fairlearn's alpha does.

    Raises:
        ConceptError: one class only, or labels that do not vary.
        InputError: fewer than two rows.

    >>> import numpy as np
    >>> from excise import Moments
    >>> X, z = np.array([[0.0], [1.0], [10.0], [11.0]]), ["a", "a", "b", "b"]
    >>> oracle(Moments().update(X, z))(X, z).ravel().round(12).tolist()
    [5.0, 6.0, 5.0, 6.0]
    """
    check_strength(strength)
    require_concept(m)
    sizes = host(singular_values(m.whitened_cov_xz / m.std_x[:, None]))
    if not (sizes > 0).any():
        warn_rank_zero()
    emptied = functions_of_concept(m) if strength == 1.0 else np.zeros(0, dtype=np.int64)
    at = convert(emptied, m.mean_x)
    return OracleEraser(
        strength * m.regression,
        m.mean_z,
        m.concept,
        describe(m, "oracle", strength=strength, standardised_correlations=sizes.tolist()),
        m.feature_names,
        at if len(emptied) else None,
        m.mean_x[at] if len(emptied) else None,
    )
