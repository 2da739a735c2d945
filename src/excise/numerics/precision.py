"""Every tolerance of excise, and the one rule of what counts as rounding.

The rule: **a direction counts only if its variance exceeds what summation and the rounding of the input can produce.**
`counts` states it; whitening, the audit and least squares ask it. All matrices are free of units (features are
divided by their standard deviations first), so a tolerance means the same for metres and for micrometres.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = [
    "CLEARLY",
    "CONSTANT_RTOL",
    "EDIT_GROWTH",
    "EMPTIED",
    "EPS32",
    "EPS64",
    "FAINT",
    "HIDDEN",
    "INFEASIBLE",
    "LAST_DIGIT",
    "NEGLIGIBLE",
    "ROUNDINGS",
    "SAME_LEVEL",
    "SMALLEST_SQUARE",
    "UNEQUAL",
    "UNIT_ROUNDOFF",
    "chance_correlation",
    "correlation_floor",
    "counts",
    "leverage_bound",
    "rounding_share",
    "summation_floor",
    "unit_roundoff",
]

EPS64, EPS32 = float(np.finfo(np.float64).eps), float(np.finfo(np.float32).eps)
UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

# What rounding of the input can do to a direction.
ROUNDINGS = 8.0  # a direction whose spread is below this many roundings of its features holds rounding errors (what a
# LayerNorm leaves varies by two or three); but never above
FAINT = 1e-5  # of the features' spread: more is a signal, however coarse the digits are
LAST_DIGIT = 2.0  # an audit excuses what an edit left of the concept in directions of at most this many roundings,
CLEARLY = 0.5  # unless they explain this share of what is left to explain: that much is not left by rounding
EDIT_GROWTH = 1.25  # such a direction is left alone if the edit grows by no more than this factor without it

# Subspaces and ranks.
INFEASIBLE = 1e-7  # sines of angles, and shares, below this: two subspaces meet
SAME_LEVEL = 1e-13  # eigenvalues in [0, 1] that differ by less are one
NEGLIGIBLE = 1e-9  # of the largest: directions that are added to a basis must be longer
CONSTANT_RTOL = 1e-12  # spread of a feature, relative to the average, below which it counts as constant
EMPTIED = 1e-9  # a feature of whose spread less than this would be left comes out as one constant
SMALLEST_SQUARE = 1e-290  # sums of squares below this have lost digits

# What is worth a warning.
UNEQUAL = 1e-6  # relative differences of covariances above this
HIDDEN = 0.05  # canonical correlations above this in directions that the arithmetic cannot resolve


def summation_floor(d: int, eps: float, top: float) -> float:
    """Eigenvalues of a d x d correlation matrix below this are summation errors.

    Entries are at most 1 and carry errors of `eps`, which add up like noise; the eigensolver adds its own, relative to the
    largest eigenvalue `top`.
    """
    return 8.0 * eps * float(np.sqrt(d)) + 8.0 * EPS64 * top


def correlation_floor(d: int, k: int) -> float:
    """Singular values of a d x k matrix of correlations, summed in float64, below this are summation errors."""
    return 32.0 * EPS64 * float(np.sqrt(d * k))


def counts(variance: Any, summation: Any, rounding: Any) -> Any:
    """The rule: whether a direction of this variance counts.

    Args:
        variance: of the direction.
        summation: the variance that errors of the sums can produce.
        rounding: the standard deviation that the rounding of the input can produce.
    """
    return (variance > summation) & (variance > rounding * rounding)


def leverage_bound() -> float:
    """The leverage of a direction that may be left alone: without leverage h the least edit grows by 1 / (1 - h)."""
    return 1.0 - 1.0 / EDIT_GROWTH


def unit_roundoff(values: Any, dtype: str) -> float:
    """Unit roundoff of the digits that are really there: float64 that holds float32 numbers has that of float32."""
    eps = UNIT_ROUNDOFF.get(dtype, UNIT_ROUNDOFF["float64"])
    wide = np.asarray(values, dtype=np.float64)
    if eps < UNIT_ROUNDOFF["float32"] and (wide != np.round(wide)).any():
        with np.errstate(over="ignore"):
            if np.array_equal(wide, wide.astype(np.float32)):
                return UNIT_ROUNDOFF["float32"]
    return eps


def rounding_share(eps: float, size: Any, spread: Any) -> Any:
    """What rounding to `eps` of numbers of this size can do to a covariance, in units of the spread.

    Each number is off by at most eps times its size; the factor covers the sums and products before it.
    """
    return 64.0 * eps * (1.0 + size / np.where(spread > 0, spread, np.inf))


def chance_correlation(n: int, columns: int, looks: int) -> float:
    """The correlation with `columns` others that n rows of pure noise stay below, over many looks, 999 times in 1000."""
    from scipy.special import chdtri

    return float(min(1.0, np.sqrt(chdtri(max(columns, 1), 1e-3 / max(looks, 1)) / n)))
