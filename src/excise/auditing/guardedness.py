"""The paper's conditions for a guarded concept, each computed in a way of its own, so that each checks the others.

All are statements about the audited rows. They are zero in exact arithmetic; here they must be zero to the last digits
that the rows hold, and no larger than noise would be by chance where rounding is not small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.auditing.audit_data import AuditData
from excise.auditing.directions import Whitened, standard_norm, whitened
from excise.auditing.linear import (
    BITS,
    Logistic,
    best_logistic,
    constant_loss,
    fits_in_memory,
    least_squares,
)
from excise.auditing.passes import FirstPass, SecondPass, first_pass, second_pass
from excise.moments.moments import Moments
from excise.numerics.precision import ALL_BUT_EMPTIED, chance_correlation, leak_bound

__all__ = ["Condition", "Evidence", "Guardedness", "gather_evidence", "guardedness"]


NEAR_THE_CONSTANT = 1e-3  # bits, up to which the second order of the logistic loss describes it


@dataclass(frozen=True)
class Condition:
    """One condition: its value before and after, and what rounding may leave of it."""

    name: str
    meaning: str
    before: float | None
    after: float
    tolerance: float
    holds: bool
    note: str = ""


@dataclass(frozen=True)
class Guardedness:
    guarded: bool
    resolution: float  # correlations below this cannot be told from the rounding of the rows
    conditions: list[Condition]
    disagreement: str | None
    constant_loss: float | None  # bits
    v_information_before: float | None  # bits, best linear model on the audited rows
    v_information: float | None
    canonical_before: list[float]
    canonical: list[float]
    first_direction: list[float]  # (d,) of the largest canonical correlation before
    emptied: int  # features that vary before and are constant after
    nothing_left: bool  # all of them


@dataclass(frozen=True)
class Evidence:
    """All that two walks over the rows and two logistic regressions found."""

    first: FirstPass
    second: SecondPass
    white: Whitened
    white_before: Whitened
    logistic: Logistic | None
    logistic_before: Logistic | None
    norm: float  # of the edit, in units of the features' spreads
    columns: int  # rank of the concept


def gather_evidence(data: AuditData, quick: bool, seed: int) -> Evidence:
    g = first_pass(data)
    white = whitened(g.after, g.scale, data.eps if data.edited else None)
    white_before = whitened(g.before, g.scale)
    columns = _rank(g.after)
    codes, k = data.target.codes, data.target.k
    before = after = None
    if codes is not None:
        before = best_logistic(data.before, codes, k, white_before, seed)
        if not data.edited:
            after = before
        elif fits_in_memory(data.n, white):
            after = best_logistic(data.after, codes, k, white, seed)
    W = _scores(data, g, white, before, seed)
    found = second_pass(data, g, white, white_before, W, with_triangle=not quick)
    if codes is not None and after is None and _gradient_gain(data, found) > NEAR_THE_CONSTANT:
        after = best_logistic(data.after, codes, k, white, seed)
    norm = standard_norm(data.eraser, g.scale) if data.edited else 1.0
    return Evidence(g, found, white, white_before, after, before, norm, columns)


def _gradient_gain(data: AuditData, found: SecondPass) -> float:
    """Bits that a logistic model gains on the constant, to second order: half of the squared correlations."""
    counts = np.bincount(data.target.codes, minlength=data.target.k)
    mean = found.white_sums / np.sqrt(np.maximum(counts, 1.0))[:, None] / np.sqrt(data.n)
    return float(0.5 * BITS * (mean**2).sum())


def _rank(m: Moments) -> int:
    if m.statistics.s_zz is None:
        return max(int((np.asarray(m.mean_z) > 0).sum()) - 1, 1)
    return max(int(np.linalg.matrix_rank(np.asarray(m.cov_zz))), 1)


def _scores(data: AuditData, g: FirstPass, white: Whitened, probe: Logistic | None, seed: int) -> Any:
    """(d, w) linear scores of unit variance before: principal directions, random ones, and the probe fitted before."""
    random = np.random.default_rng(seed).standard_normal((data.d, 4)) / g.scale[:, None]
    W = np.concatenate([white.basis[:, ::-1][:, :4], random], axis=1)
    if probe is not None:
        W = np.concatenate([W, probe.direction], axis=1)
    size = np.sqrt(np.einsum("ij,ij->j", W, np.asarray(g.before.cov_xx) @ W))
    return W[:, size > 0] / size[size > 0] if (size > 0).any() else np.zeros((data.d, 1))


def guardedness(data: AuditData, e: Evidence) -> Guardedness:
    """Do the conditions hold, and do they agree?"""
    g, n, codes = e.first, data.n, data.target.codes
    noise = leak_bound(data.eps, e.norm, g.size, g.scale)  # (d,)
    chance = chance_correlation(n, e.columns, data.d)
    # A direction of spread s shows rounding as a correlation of at most noise / s, and never more than by chance.
    allowed = np.minimum(np.sqrt(np.mean(noise**2)) / e.white.spread, chance)  # (r,)
    out = [_scaled_covariance(data, e, chance), _canonical(e, allowed)]
    if e.second.triangle is not None:
        out.append(_least_squares(data, e, allowed, chance))
    constant = information = information_before = None
    if codes is not None:
        share = _least_share(codes)
        constant = constant_loss(codes) * BITS
        out.insert(1, _class_means(g, noise, share, n))
        logistic = _logistic(data, e, allowed)
        out += [logistic, _linear_scores(data, e, noise, share)]
        information, information_before = logistic.after, logistic.before
    holds = [c.holds for c in out]
    varied, varies = (np.asarray(m.var_x) > 0 for m in (g.before, g.after))
    emptied = int((varied & ~varies).sum())
    return Guardedness(
        all(holds),
        float(min(noise.max(), chance)),
        out,
        _disagreement(out, data.dtype),
        constant,
        information_before,
        information,
        _first(e.white_before.canonical, e.columns),
        _first(e.white.canonical, e.columns),
        [float(v) for v in e.white_before.first],
        emptied,
        bool(varied.any()) and not varies.any(),
    )


def _disagreement(conditions: list[Condition], dtype: str) -> str | None:
    yes, no = ([c.name for c in conditions if c.holds is value] for value in (True, False))
    if not yes or not no:
        return None
    return (
        f"the conditions are equivalent in exact arithmetic, but here {', '.join(yes)} hold{'s' if len(yes) == 1 else ''} "
        f"up to rounding and {', '.join(no)} do{'es' if len(no) == 1 else ''} not: what is left is near the limit of "
        f"{dtype}"
    )


def _first(values: Any, columns: int) -> list[float]:
    padded = np.concatenate([values, np.zeros(max(0, columns - len(values)))])
    return [float(v) for v in padded[:columns]]


def _least_share(codes: Any) -> float:
    counts = np.bincount(codes)
    return float(counts[counts > 0].min() / counts.sum())


def _scaled_covariance(data: AuditData, e: Evidence, chance: float) -> Condition:
    g = e.first
    # A feature that the edit all but emptied counts in its own spread: whoever standardises can read it.
    spread = np.sqrt(np.asarray(g.after.var_x))
    scale = np.where((spread > 0) & (spread < ALL_BUT_EMPTIED * g.scale), spread, g.scale) if data.edited else g.scale

    def largest(m: Moments, scale: Any) -> Any:
        spread_z = np.sqrt(np.asarray(m.var_z))
        used = spread_z > 0
        return np.abs(np.asarray(m.cov_xz)[:, used] / spread_z[used] / scale[:, None]).max(axis=1)

    values, tolerance = largest(g.after, scale), np.minimum(leak_bound(data.eps, e.norm, g.size, scale), chance)
    worst = int(np.argmax(values / tolerance))
    return Condition(
        "cross-covariance",
        "largest |Cov(x, z)| of a feature, in standard deviations before (after, where the edit emptied a feature)",
        float(largest(g.before, g.scale).max()),
        float(values[worst]),
        float(tolerance[worst]),
        bool((values <= tolerance).all()),
    )


def _class_means(g: FirstPass, noise: Any, share: float, n: int) -> Condition:
    # A mean of few rows repeats what rounding left in the covariance, divided by the share of its class.
    values = g.gap / g.scale
    tolerance = np.minimum(noise, chance_correlation(n, 1, len(noise))) / np.sqrt(share)
    worst = int(np.argmax(values / tolerance))
    return Condition(
        "class means",
        "largest difference between two class means, in standard deviations of the feature before",
        float((g.gap_before / g.scale).max()),
        float(values[worst]),
        float(tolerance[worst]),
        bool((values <= tolerance).all()),
    )


def _canonical(e: Evidence, allowed: Any) -> Condition:
    each = np.linalg.norm(e.white.correlations, axis=1)  # (r,) correlation of each direction with the concept
    return Condition(
        "canonical correlation",
        "largest correlation between a linear score of x and one of z",
        float(e.white_before.canonical.max(initial=0.0)),
        float(e.white.canonical.max(initial=0.0)),
        float(np.sqrt((allowed**2).sum())),
        bool((each <= allowed).all()),
    )


def _least_squares(data: AuditData, e: Evidence, allowed: Any, chance: float) -> Condition:
    after = least_squares(e.second.triangle, data.n, data.d, e.white.floor)
    before = least_squares(e.second.triangle_before, data.n, data.d, e.white_before.floor) if data.edited else after
    noise = max(0, after.directions - len(allowed))  # directions at the floor, which a covariance does not show
    tolerance = float((allowed**2).sum() + noise * chance**2)
    return Condition(
        "least squares",
        "share of z's variance that the best linear model explains, by QR of the rows",
        before.share,
        after.share,
        tolerance,
        after.share <= tolerance,
    )


def _logistic(data: AuditData, e: Evidence, allowed: Any) -> Condition:
    """What the best logistic model gains, in bits; of rows that do not fit into memory, to second order."""
    assert e.logistic_before is not None
    codes = data.target.codes
    tolerance = float(BITS * e.columns * (allowed**2).sum() + 1e-12)
    notes = []

    def gain(fitted: Logistic) -> float:
        return (constant_loss(codes) - fitted.loss) * BITS

    before = gain(e.logistic_before)
    if e.logistic is not None:
        after = gain(e.logistic)
        fits = [("before", e.logistic_before), ("after", e.logistic)][0 if data.edited else 1 :]
        notes += [
            f"{when}: stopped before convergence, so there is at least this much" for when, f in fits if not f.converged
        ]
    else:
        after = _gradient_gain(data, e.second)
        notes.append("after: from the gradient at the constant, over all rows")
    notes += [
        f"{when}: fitted on {fitted.rows:,} rows drawn at random"
        for when, fitted in (("before", e.logistic_before), ("after", e.logistic))
        if fitted is not None and fitted.rows < data.n
    ]
    return Condition(
        "logistic loss",
        "what the best logistic model gains on the constant, bits per row",
        before,
        after,
        tolerance,
        after <= tolerance,
        "; ".join(notes),
    )


def _linear_scores(data: AuditData, e: Evidence, noise: Any, share: float) -> Condition:
    """Class means of scores x.w, summed row by row."""
    W, found = e.second.scores, e.second
    tolerance = np.sqrt(((noise * e.first.scale)[:, None] ** 2 * W**2).sum(axis=0)) / np.sqrt(share) * np.sqrt(data.d)
    tolerance = np.minimum(tolerance, chance_correlation(data.n, 1, data.d) / np.sqrt(share))
    tolerance = np.maximum(tolerance, 1e-300)
    worst = int(np.argmax(found.score_gaps / tolerance))
    return Condition(
        "linear scores",
        f"largest difference of class means over {W.shape[1]} linear scores, in standard deviations of the score before",
        float(found.score_gaps_before.max()),
        float(found.score_gaps[worst]),
        float(tolerance[worst]),
        bool((found.score_gaps <= tolerance).all()),
    )
