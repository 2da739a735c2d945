"""Is the concept gone, judged from moments alone: the part of the audit that adds up over machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.auditing.directions import judge_faint, unit_scale, whitened
from excise.auditing.guardedness import Condition
from excise.data.gathering import Gathered, Recipe
from excise.distributed.dask_collections import Columns, blocks_of, first_concept
from excise.distributed.reducing import reduce_parts
from excise.moments.moments import Moments
from excise.numerics.precision import FAINT, chance_correlation, rounding_share

__all__ = ["conditions", "judge"]


@dataclass
class BeforeAndAfter:
    """Moments of the same rows before and after an edit."""

    before: Gathered
    after: Gathered

    def __add__(self, other: BeforeAndAfter) -> BeforeAndAfter:
        return BeforeAndAfter(self.before + other.before, self.after + other.after)


def both_of_block(x: Any, labels: Any, recipe: Recipe, eraser: Any) -> BeforeAndAfter:
    """What a worker does with one block of rows."""
    before, after = recipe.start(), recipe.start()
    if len(x):
        before.update(x, labels)
        after.update(x if eraser is None else eraser(x, labels), labels)
    before.at_hand = after.at_hand = None
    return BeforeAndAfter(before, after)


def conditions(
    X: Any,
    z: Any = None,
    eraser: Any = None,
    features: Columns = None,
    concept: Columns = None,
    kind: Any = None,
    client: Any = None,
) -> list[Condition]:
    """The conditions of a guarded concept that can be read off moments, over all rows of a Dask collection.

    Covariances of single features with the concept, and the largest canonical correlation. `excise.audit` has more of
    them, with probes and figures for unseen rows, for a sample that fits into one machine.

    Args:
        eraser: what is judged; None for the rows as they are.
        X, z, features, concept, kind, client: as for `excise.distributed.fit`.
    """
    pairs = blocks_of(X, z, features, concept)
    recipe = Recipe("moments", first_concept(pairs, kind))
    total = reduce_parts(both_of_block, [(x, labels, recipe, eraser) for x, labels in pairs], client)
    return judge(total.before.main, total.after.main)


def judge(before: Moments, after: Moments) -> list[Condition]:
    """Conditions from moments of the same rows before and after."""
    scale = unit_scale(before, after)
    spread = np.sqrt(np.asarray(after.var_x))
    size = np.sqrt(np.asarray(after.mean_x) ** 2 + np.asarray(after.var_x))
    eps = max(after.statistics.roundoff, 2.0**-53)
    columns = _rank(after)
    chance = chance_correlation(int(after.rows), columns, len(scale))
    own = np.where((spread > 0) & (spread < 10 * FAINT * scale), spread, scale)  # an emptied feature, in its own spread
    values = _largest(after, own)
    tolerance = np.minimum(rounding_share(eps, size, own), chance)
    worst = int(np.argmax(values / tolerance))
    white = whitened(after, scale, eps * size / scale)
    noise = rounding_share(eps, size, scale)
    allowed = np.minimum(np.sqrt(np.mean(noise**2)) / white.spread, chance)
    each = np.linalg.norm(white.correlations, axis=1)
    left = max(1.0 - float((white.correlations**2).sum(axis=0).max(initial=0.0)), 0.0)
    faint = judge_faint(white.faint_correlations**2, white.faint_roundings, int(after.rows), len(white.spread), left)
    clear = bool((each <= allowed).all())
    largest = float(white.canonical.max(initial=0.0))
    return [
        Condition(
            "cross-covariance",
            "largest |Cov(x, z)| of a feature, in units of the standard deviations",
            float(_largest(before, scale).max()),
            float(values[worst]),
            float(tolerance[worst]),
            bool((values <= tolerance).all()),
        ),
        Condition(
            "canonical correlation",
            "largest correlation between a linear score of x and one of z",
            float(whitened(before, scale).canonical.max(initial=0.0)),
            largest if faint.excused else max(largest, float(np.sqrt(faint.share))),
            float(np.sqrt((allowed**2).sum())),
            clear and faint.excused,
            "" if faint.excused else faint.note,
        ),
    ]


def _rank(m: Moments) -> int:
    if m.statistics.s_zz is None:  # one block of classes
        return max(int((np.asarray(m.mean_z) > 0).sum()) - 1, 1)
    return max(int(np.linalg.matrix_rank(np.asarray(m.cov_zz))), 1)


def _largest(m: Moments, scale: Any) -> Any:
    spread = np.sqrt(np.asarray(m.var_z))
    used = spread > 0
    return np.abs(np.asarray(m.cov_xz)[:, used] / spread[used] / scale[:, None]).max(axis=1)
