"""Every tolerance of excise, each with its reason.

All matrices are free of units (features are divided by their standard deviations first), so a tolerance means the same for
metres and for micrometres.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = [
    "ALL_BUT_EMPTIED",
    "CONSTANT",
    "EMPTIED",
    "EPS32",
    "EPS64",
    "EXACT",
    "INFEASIBLE",
    "LEAK",
    "LEAK_OF_SUMS",
    "NEGLIGIBLE",
    "RIDGE_FACTOR",
    "RIDGE_GROWTH",
    "RIDGE_MOST",
    "RIDGE_SUMS",
    "SAME_LEVEL",
    "SMALLEST_SQUARE",
    "UNEQUAL",
    "UNIT_ROUNDOFF",
    "chance_correlation",
    "correlation_floor",
    "leak_bound",
    "summation_floor",
    "unit_roundoff",
]

EPS64, EPS32 = float(np.finfo(np.float64).eps), float(np.finfo(np.float32).eps)
UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

# The ridge: how well rounding lets a correlation matrix be known (`correlation.ridge`).
# Of a feature's variance: what varies by more is a signal, however coarse the digits. Without this limit, bfloat16 features
# (d = 200) cost up to 1.5 least edits.
RIDGE_MOST = 5e-5
RIDGE_SUMS = 2.0  # times eps sqrt(d): the errors of the sums (measured: up to 1.5 in float32, 2.5 in float64)
RIDGE_FACTOR = 8.0  # times the matrix's norm: the errors of the factorisation
RIDGE_GROWTH = 8.0  # a factorisation that fails is repeated with a ridge so many times larger
LEAK = 2.0  # roundings of the norm of an edit that it may leave of the concept (measured: 0.12)
LEAK_OF_SUMS = 64.0  # roundings in float64 that the sums behind a covariance may leave

# Subspaces and ranks.
EXACT = 1e-10  # 1 - R^2 up to which one thing is a linear function of others
INFEASIBLE = 1e-7  # sines of angles, and shares, below this: two subspaces meet
SAME_LEVEL = 1e-13  # eigenvalues in [0, 1] that differ by less are one
NEGLIGIBLE = 1e-9  # of the largest: directions that are added to a basis must be longer
CONSTANT = 8.0 * EPS64  # spread of a feature, relative to its root mean square, below which it is constant
ALL_BUT_EMPTIED = 1e-4  # of a feature's spread: what is left of it after an edit is judged in its own spread
EMPTIED = 1e-9  # a feature of whose spread less than this would be left comes out as one constant
SMALLEST_SQUARE = 1e-290  # sums of squares below this have lost digits

# What is worth a warning.
UNEQUAL = 1e-6  # relative differences of covariances above this


def summation_floor(d: int, eps: float, top: float) -> float:
    """Eigenvalues of a d x d correlation matrix below this are summation errors.

    Entries are at most 1 and carry errors of `eps`, which add up like noise; the eigensolver adds its own, relative to the
    largest eigenvalue `top`.
    """
    return 8.0 * eps * float(np.sqrt(d)) + 8.0 * EPS64 * top


def correlation_floor(d: int, k: int) -> float:
    """Singular values of a d x k matrix of correlations, summed in float64, below this are summation errors."""
    return 32.0 * EPS64 * float(np.sqrt(d * k))


def unit_roundoff(values: Any, dtype: str) -> float:
    """Unit roundoff of the digits that some values (n, d) of this dtype really have.

    float64 that holds float32 numbers was rounded to these, and float32 whose low 16 bits are zero to bfloat16. Whole
    numbers say nothing about digits. Integers and booleans were not rounded at all.
    """
    if dtype not in UNIT_ROUNDOFF:
        return 0.0
    eps = UNIT_ROUNDOFF[dtype]
    if eps > UNIT_ROUNDOFF["float32"]:
        return eps
    wide = np.asarray(values)
    if not (wide != np.round(wide)).any():
        return eps
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = np.asarray(wide, dtype=np.float32)
        if dtype == "float64" and not np.array_equal(wide, narrow, equal_nan=True):
            return eps
    coarse = not (np.ascontiguousarray(narrow).view(np.uint32) & 0xFFFF).any()
    return UNIT_ROUNDOFF["bfloat16"] if coarse else UNIT_ROUNDOFF["float32"]


def leak_bound(eps: float, norm: float, size: Any, spread: Any) -> Any:
    """What rounding can leave of the concept in a feature: a covariance, in units of the feature's spread.

    Args:
        eps: unit roundoff of the edited rows. Each number is off by at most eps times its size.
        norm: spectral norm of the edit in units of the features' spreads. It multiplies the rounding of the rows.
        size, spread: root mean square and standard deviation of the feature.
    """
    roundings = LEAK * eps * max(1.0, norm) + LEAK_OF_SUMS * UNIT_ROUNDOFF["float64"]
    return roundings * (1.0 + size / np.where(spread > 0, spread, np.inf))


def chance_correlation(n: int, columns: int, looks: int) -> float:
    """The correlation with `columns` others that n rows of pure noise stay below, over many looks, 999 times in 1000."""
    from scipy.special import chdtri

    return float(min(1.0, np.sqrt(chdtri(max(columns, 1), 1e-3 / max(looks, 1)) / n)))
