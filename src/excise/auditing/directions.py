"""Directions of the audited rows: those that clearly vary, and faint ones that rounding alone could have made.

A faint direction is never simply left out. What it says of the concept, beyond what the clear ones say, is held against
chance: so many directions of noise explain a share of the labels that follows a beta distribution. An edit in finite
digits may leave traces in the last digit, which are excused; but not in directions that vary by more than that, and not
if they explain most of what there is to explain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.moments.moments import Moments
from excise.numerics.linalg import scales
from excise.numerics.precision import CLEARLY, EPS64, FAINT, LAST_DIGIT, ROUNDINGS, counts, summation_floor

__all__ = ["Faint", "Whitened", "judge_faint", "unit_scale", "whitened"]


@dataclass(frozen=True)
class Whitened:
    """(x - mean) @ basis has unit covariance on its directions; `spread` is their standard deviation in units of `scale`.

    `correlations` (r, q): of each direction with the whitened concept; its singular values are the canonical
    correlations. `faint_` are the same of the faint directions.
    """

    mean: Any  # (d,)
    basis: Any  # (d, r)
    spread: Any  # (r,)
    correlations: Any  # (r, q)
    faint_spread: Any  # (f,)
    faint_roundings: Any  # (f,) how many roundings of its features each varies by
    faint_correlations: Any  # (f, q)

    @property
    def canonical(self) -> Any:
        if min(self.correlations.shape) == 0:
            return np.zeros(0)
        return np.minimum(np.linalg.svd(self.correlations, compute_uv=False), 1.0)

    @property
    def first(self) -> Any:
        """(d,) the direction of the largest canonical correlation."""
        if min(self.correlations.shape) == 0:
            return np.eye(len(self.mean))[0]
        return self.basis @ np.linalg.svd(self.correlations, full_matrices=False)[0][:, 0]


def whitened(m: Moments, scale: Any, rounding: Any = None) -> Whitened:
    """Directions of X, in units of `scale` (d,), that vary by more than float64 sums are off.

    `rounding` (d,) is what one rounding does to each feature, in the same units; None if the rows were not rounded.
    """
    R = np.asarray(m.cov_xx) / scale[:, None] / scale[None, :]
    values, vectors = np.linalg.eigh((R + R.T) / 2)
    floor = summation_floor(len(scale), max(EPS64, float(m.eps_xx)), float(max(values[-1], 0.0)))
    seen = values > floor
    values, vectors = values[seen], vectors[:, seen]
    units = one_rounding(vectors.T, rounding)
    clear = counts(values, floor, np.minimum(ROUNDINGS * units, FAINT))
    spread = np.sqrt(values)
    basis = vectors / spread / scale[:, None]
    correlations = basis.T @ np.asarray(m.whitened_cov_xz)
    roundings = spread / np.where(units > 0, units, np.inf)
    return Whitened(
        np.asarray(m.mean_x),
        basis[:, clear],
        spread[clear],
        correlations[clear],
        spread[~clear],
        roundings[~clear],
        correlations[~clear],
    )


def one_rounding(directions: Any, rounding: Any) -> Any:
    """(r,) what one rounding of the features does to each of the directions (r, d)."""
    return np.zeros(len(directions)) if rounding is None else np.linalg.norm(directions * rounding, axis=1)


@dataclass(frozen=True)
class Faint:
    """What faint directions say of the concept beyond the clear ones."""

    count: int
    share: float  # of what is left to explain, for the column of labels that they explain best
    by_chance: float  # the share that noise stays below 999 times in 1000
    excused: bool  # it is no more than chance, or what the last digit can leave
    note: str = ""


def judge_faint(explained: Any, roundings: Any, n: int, clear: int, left: float) -> Faint:
    """Is what faint directions explain more than rounding can have left?

    Args:
        explained: (f, q) squared correlations of each faint direction with each column of the whitened labels.
        roundings: (f,) how many roundings each of them varies by.
        n: rows.
        clear: number of clear directions.
        left: the share of the labels that the clear ones do not explain.
    """
    from scipy.special import betaincinv

    f = len(roundings)
    if f == 0:
        return Faint(0, 0.0, 0.0, True)
    share = float(min(1.0, explained.sum(axis=0).max() / max(left, EPS64)))
    free = n - 1 - clear  # dimensions in which the labels can still lie
    if free - f < 1:
        return Faint(f, share, 1.0, True, "as many directions as rows: they would explain any labels")
    level = 1e-3 / explained.shape[1]
    by_chance = float(betaincinv(f / 2.0, (free - f) / 2.0, 1.0 - level))
    if share <= by_chance:
        return Faint(f, share, by_chance, True)
    last_digit = bool((roundings <= LAST_DIGIT).all()) and share < CLEARLY
    note = (
        f"{f} direction(s) that vary by no more than {roundings.max():.2g} roundings explain {share:.2g} of the labels"
    )
    return Faint(f, share, by_chance, last_digit, note)


def unit_scale(m: Moments, other: Moments) -> Any:
    """(d,) standard deviations of the features before; of those that were constant, that after."""
    before, after = np.asarray(m.var_x), np.asarray(other.var_x)
    return np.asarray(scales(np.where(before > 0, before, after)))
