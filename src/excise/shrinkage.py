"""Shrinkage of a covariance towards a multiple of the identity: pure functions of the matrix and n.

They change how small an edit is on new data, never whether it guards. LEACE applies them to the correlation matrix,
so that the units of the features do not matter.
"""

from __future__ import annotations

from typing import Literal

from excise._array import Array, namespace
from excise.errors import ExciseError

__all__ = ["Shrinkage", "intensity", "shrink"]

Shrinkage = Literal["none", "oas", "optimal"]


def shrink(S: Array, n: float, method: Shrinkage) -> tuple[Array, float]:
    """(1 - a) S + a m I with m the mean variance, and the intensity a in [0, 1].

    >>> import numpy as np
    >>> shrunk, a = shrink(np.diag([1.0, 3.0]), n=100, method="oas")
    >>> round(a, 4), np.trace(shrunk).round(12)
    (0.1287, np.float64(4.0))
    """
    if method == "none":
        return S, 0.0
    if method not in ("oas", "optimal"):
        raise ExciseError(f"shrinkage must be 'none', 'oas' or 'optimal', got {method!r}")
    a = intensity(S, n, method)
    xp = namespace(S)
    d = S.shape[0]
    target = a * xp.linalg.trace(S) / d
    return (1.0 - a) * S + target * xp.eye(d, dtype=S.dtype, device=S.device), a


def intensity(S: Array, n: float, method: Shrinkage) -> float:
    """How far to shrink, between 0 and 1.

    "oas": oracle approximating shrinkage (Chen, Wiesel, Eldar and Hero 2010, eq. 23, as scikit-learn has it).
    "optimal": optimal linear shrinkage (Bodnar, Gupta and Parolya 2014), towards the identity.
    """
    xp = namespace(S)
    d = int(S.shape[0])
    trace = float(xp.linalg.trace(S))
    square = float(xp.sum(S * S))  # ||S||_F^2
    spherical = trace**2 / d  # ||m I||_F^2 with m = trace / d
    if square - spherical <= 1e-14 * square:
        return 1.0  # S is a multiple of the identity already
    if method == "oas":
        # alpha = mean of S_ij^2, mu = mean of S_ii
        alpha, mu = square / d**2, trace / d
        return min(1.0, (alpha + mu**2) / ((n + 1.0) * (alpha - mu**2 / d)))
    return min(1.0, (trace**2 / n) / (square - spherical))
