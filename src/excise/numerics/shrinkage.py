"""Shrinkage of a correlation matrix towards the identity: pure functions of its norms and of n.

They change how small an edit is on new data, never whether it guards. LEACE applies them to the correlation matrix,
so that the units of the features do not matter.
"""

from __future__ import annotations

from typing import Literal

from excise.errors import ExciseError
from excise.numerics.arrays import Array, namespace

__all__ = ["FEW_ROWS", "Shrinkage", "choose_shrinkage", "intensity", "shrink"]

Shrinkage = Literal["auto", "none", "oas", "optimal"]
FEW_ROWS = 10.0  # per feature: with fewer, "auto" shrinks


def choose_shrinkage(method: Shrinkage, rows: float, d: int) -> Shrinkage:
    """What "auto" stands for: "oas" where there are fewer than FEW_ROWS rows per feature, else "none".

    Raises:
        ExciseError: an unknown name.
    """
    if method not in ("auto", "none", "oas", "optimal"):
        raise ExciseError(f"shrinkage must be 'auto', 'none', 'oas' or 'optimal', got {method!r}")
    if method != "auto":
        return method
    return "oas" if rows < FEW_ROWS * d else "none"


def shrink(S: Array, n: float, method: Shrinkage) -> tuple[Array, float]:
    """(1 - a) S + a m I with m the mean variance, and the intensity a in [0, 1].

    >>> import numpy as np
    >>> shrunk, a = shrink(np.diag([1.0, 3.0]), n=100, method="oas")
    >>> round(a, 4), np.trace(shrunk).round(12)
    (0.1287, np.float64(4.0))
    """
    d = int(S.shape[0])
    method = choose_shrinkage(method, n, d)
    if method == "none":
        return S, 0.0
    xp = namespace(S)
    trace = float(xp.linalg.trace(S))
    a = intensity(trace, float(xp.sum(S * S)), d, n, method)
    return (1.0 - a) * S + a * trace / d * xp.eye(d, dtype=S.dtype, device=S.device), a


def intensity(trace: float, square: float, d: int, n: float, method: Shrinkage) -> float:
    """How far to shrink, between 0 and 1, from the trace and the squared Frobenius norm of the d x d matrix.

    "oas": oracle approximating shrinkage (Chen, Wiesel, Eldar and Hero 2010, eq. 23, as scikit-learn has it).
    "optimal": optimal linear shrinkage (Bodnar, Gupta and Parolya 2014), towards the identity.
    """
    if method == "none":
        return 0.0
    spherical = trace**2 / d  # ||m I||_F^2 with m = trace / d
    if square - spherical <= 1e-14 * square:
        return 1.0  # the matrix is a multiple of the identity already
    if method == "oas":
        # alpha = mean of S_ij^2, mu = mean of S_ii
        alpha, mu = square / d**2, trace / d
        return min(1.0, (alpha + mu**2) / ((n + 1.0) * (alpha - mu**2 / d)))
    return min(1.0, (trace**2 / n) / (square - spherical))
