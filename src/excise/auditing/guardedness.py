"""The paper's conditions for a guarded concept, each computed in a way of its own, so that each checks the others.

All are statements about the audited rows. They are zero in exact arithmetic; here they must be zero to the last digits
that the rows hold, and no larger than noise would be by chance where rounding is not small. Faint directions that hold
nothing but rounding errors are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.auditing.audit_data import AuditData
from excise.auditing.linear import (
    BITS,
    Logistic,
    Whitened,
    best_logistic,
    constant_loss,
    least_squares_r2,
    unit_scale,
    whitened,
)
from excise.moments.moments import Moments
from excise.numerics.precision import FAINT, ROUNDINGS, chance_correlation, rounding_share

__all__ = ["Condition", "Guardedness", "gather", "guardedness"]


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
    constant_loss: float | None  # nats
    v_information_before: float | None  # bits, best linear model on the audited rows
    v_information: float | None
    canonical_before: list[float]
    canonical: list[float]
    first_direction: list[float]  # (d,) of the greatest canonical correlation before


@dataclass(frozen=True)
class AuditMoments:
    """Moments before and after, and class means summed directly."""

    before: Moments
    after: Moments
    scale: Any  # (d,) spread of the features before
    size: Any  # (d,) root mean square after: what rounding is relative to
    gap_before: Any  # (d,) greatest difference of class means, or None
    gap: Any


def gather(data: AuditData) -> AuditMoments:
    """One pass over the data."""
    before, after = Moments(), Moments()
    k = data.target.k
    sums, sums_before = np.zeros((k, data.d)), np.zeros((k, data.d))
    shift = data.before(slice(0, min(data.n, 256))).mean(axis=0)
    squares = np.zeros(data.d)
    codes = data.target.codes
    for part in data.batches(3):
        labels = data.labels(part)
        before.update(np.array(data.X[part]), labels)
        raw = data.raw_after(part)
        after.update(raw, labels)
        x = np.asarray(raw, dtype=np.float64)
        squares += (x**2).sum(axis=0)
        if codes is not None:
            _add_class_sums(sums, x - shift, codes[part])
            _add_class_sums(sums_before, data.before(part) - shift, codes[part])
    size = np.sqrt(squares / data.n)
    gaps = [None, None]
    if codes is not None:
        counts = np.bincount(codes, minlength=k)
        present = counts > 0
        gaps = [np.ptp(s[present] / counts[present][:, None], axis=0) for s in (sums_before, sums)]
    return AuditMoments(before, after, unit_scale(before, after), size, gaps[0], gaps[1])


def _add_class_sums(sums: Any, x: Any, codes: Any) -> None:
    for c in np.unique(codes):
        sums[c] += x[codes == c].sum(axis=0)


def guardedness(data: AuditData, g: AuditMoments, quick: bool, seed: int) -> Guardedness:
    """Do the conditions hold, and do they agree?"""
    target, n = data.target, data.n
    columns = max(int(np.linalg.matrix_rank(np.asarray(g.after.cov_zz))), 1)
    noise = rounding_share(data.eps, g.size, g.scale)  # (d,)
    chance = chance_correlation(n, columns, data.d)
    rounding = ROUNDINGS * data.eps * g.size / g.scale if data.edited else np.zeros(data.d)
    white, white_before = whitened(g.after, g.scale, rounding), whitened(g.before, g.scale)
    # A direction of spread s shows rounding as a correlation of at most noise / s, and never more than by chance.
    allowed = np.minimum(np.sqrt(np.mean(noise**2)) / white.spread, chance)  # (r,)
    slices = list(data.batches(2))
    share_z = _least_share(target)
    out = [
        _scaled_covariance(data, g, chance),
        _canonical(white, white_before, allowed),
    ]
    if not quick:
        out.append(_least_squares(data, g, slices, rounding, allowed, chance))
    information = information_before = None
    if target.codes is not None:
        out.insert(1, _class_means(g, noise, share_z, n))
        fitted = best_logistic(data.after, slices, target.codes, target.k, white)
        fitted_before = (
            best_logistic(data.before, slices, target.codes, target.k, white_before) if data.edited else fitted
        )
        constant = constant_loss(target.codes)
        information, information_before = ((constant - f.loss) * BITS for f in (fitted, fitted_before))
        out.append(_logistic(information_before, information, fitted, fitted_before, allowed, columns, data.edited))
        out.append(_scores(data, g, white, fitted_before, slices, noise, share_z, seed))
    holds = [c.holds for c in out]
    disagreement = None
    if any(holds) and not all(holds):
        yes, no = ([c.name for c in out if c.holds is value] for value in (True, False))
        disagreement = (
            f"the conditions are equivalent in exact arithmetic, but here {', '.join(yes)} "
            f"hold{'s' if len(yes) == 1 else ''} to rounding and {', '.join(no)} do{'es' if len(no) == 1 else ''} not: "
            f"what is left is near the limit of the dtype ({data.dtype})"
        )
    return Guardedness(
        all(holds),
        float(min(noise.max(), chance)),
        out,
        disagreement,
        constant_loss(target.codes) if target.codes is not None else None,
        information_before,
        information,
        _first(white_before.canonical, columns),
        _first(white.canonical, columns),
        [float(v) for v in white_before.first],
    )


def _first(values: Any, columns: int) -> list[float]:
    padded = np.concatenate([values, np.zeros(max(0, columns - len(values)))])
    return [float(v) for v in padded[:columns]]


def _least_share(target: Any) -> float:
    if target.codes is None:
        return 1.0
    counts = np.bincount(target.codes)
    return float(counts[counts > 0].min() / counts.sum())


def _scaled_covariance(data: AuditData, g: AuditMoments, chance: float) -> Condition:
    # A feature that the edit all but emptied counts in its own spread: whoever standardises can read it.
    spread = np.sqrt(np.asarray(g.after.var_x))
    scale = np.where((spread > 0) & (spread < 10 * FAINT * g.scale), spread, g.scale) if data.edited else g.scale

    def greatest(m: Moments, scale: Any) -> Any:
        spread_z = np.sqrt(np.diagonal(np.asarray(m.cov_zz)))
        used = spread_z > 0
        return np.abs(np.asarray(m.cov_xz)[:, used] / spread_z[used] / scale[:, None]).max(axis=1)

    values, tolerance = greatest(g.after, scale), np.minimum(rounding_share(data.eps, g.size, scale), chance)
    worst = int(np.argmax(values / tolerance))
    return Condition(
        "cross-covariance",
        "greatest |Cov(x, z)| of a feature, in units of the spreads before (after, where the edit emptied a feature)",
        float(greatest(g.before, g.scale).max()),
        float(values[worst]),
        float(tolerance[worst]),
        bool((values <= tolerance).all()),
    )


def _class_means(g: AuditMoments, noise: Any, share: float, n: int) -> Condition:
    # A mean of few rows repeats what rounding left in the covariance, divided by the share of its class.
    values = g.gap / g.scale
    tolerance = np.minimum(noise, chance_correlation(n, 1, len(noise))) / np.sqrt(share)
    worst = int(np.argmax(values / tolerance))
    return Condition(
        "class means",
        "greatest difference between two class means, in spreads of the feature before",
        float((g.gap_before / g.scale).max()),
        float(values[worst]),
        float(tolerance[worst]),
        bool((values <= tolerance).all()),
    )


def _canonical(white: Whitened, before: Whitened, allowed: Any) -> Condition:
    each = np.linalg.norm(white.correlations, axis=1)  # (r,) correlation of each direction with the concept
    total = float(np.sqrt((allowed**2).sum()))
    value = float(white.canonical.max(initial=0.0))
    return Condition(
        "canonical correlation",
        "greatest correlation between a linear score of x and one of z",
        float(before.canonical.max(initial=0.0)),
        value,
        total,
        bool((each <= allowed).all()),
    )


def _least_squares(
    data: AuditData, g: AuditMoments, slices: list[slice], rounding: Any, allowed: Any, chance: float
) -> Condition:
    values = data.target.values
    before, seen = least_squares_r2(data.before, slices, values, g.scale)
    if data.edited:
        after, seen = least_squares_r2(data.after, slices, values, g.scale, rounding)
    else:
        after = before
    noise = max(0, seen - len(allowed))  # directions of rounding noise, which a covariance does not show
    tolerance = float((allowed**2).sum() + noise * chance**2)
    return Condition(
        "least squares",
        "share of z's variance that the best linear model explains, by QR of the rows",
        before,
        after,
        tolerance,
        after <= tolerance,
    )


def _logistic(
    before: float, after: float, fitted: Logistic, fitted_before: Logistic, allowed: Any, columns: int, edited: bool
) -> Condition:
    # Near the constant the loss falls by half of the squared correlations.
    tolerance = float(BITS * columns * (allowed**2).sum() + 1e-12)
    said = [
        f"{when}: stopped before convergence, so there is at least this much"
        for when, model in (("before", fitted_before), ("after", fitted))
        if not model.converged and (edited or when == "after")
    ]
    return Condition(
        "logistic loss",
        "what the best logistic model gains on the constant, bits per row",
        before,
        after,
        tolerance,
        after <= tolerance,
        "; ".join(said),
    )


def _scores(
    data: AuditData,
    g: AuditMoments,
    white: Whitened,
    probe: Logistic,
    slices: list[slice],
    noise: Any,
    share: float,
    seed: int,
) -> Condition:
    """Class means of scores x.w, summed row by row: principal directions, random ones, and the probe fitted before."""
    codes, k = data.target.codes, data.target.k
    random = np.random.default_rng(seed).standard_normal((data.d, 4)) / g.scale[:, None]
    top = white.basis[:, ::-1][:, :4]
    W = np.concatenate([top, random, probe.direction], axis=1)
    size = np.sqrt(np.einsum("ij,ij->j", W, np.asarray(g.before.cov_xx) @ W))
    W = W[:, size > 0] / size[size > 0] if (size > 0).any() else np.zeros((data.d, 1))
    counts = np.bincount(codes, minlength=k)
    means = {"before": np.zeros((k, W.shape[1])), "after": np.zeros((k, W.shape[1]))}
    for part in slices:
        _add_class_sums(means["after"], (data.after(part) - white.mean) @ W, codes[part])
        _add_class_sums(means["before"], (data.before(part) - white.mean) @ W, codes[part])
    gaps = {when: np.ptp(s[counts > 0] / counts[counts > 0][:, None], axis=0) for when, s in means.items()}
    tolerance = np.sqrt(((noise * g.scale)[:, None] ** 2 * W**2).sum(axis=0)) / np.sqrt(share) * np.sqrt(data.d)
    tolerance = np.minimum(tolerance, chance_correlation(data.n, 1, data.d) / np.sqrt(share))
    tolerance = np.maximum(tolerance, 1e-300)
    worst = int(np.argmax(gaps["after"] / tolerance))
    return Condition(
        "linear scores",
        f"greatest difference of class means over {W.shape[1]} linear scores, in spreads of the score before",
        float(gaps["before"].max()),
        float(gaps["after"][worst]),
        float(tolerance[worst]),
        bool((gaps["after"] <= tolerance).all()),
    )
