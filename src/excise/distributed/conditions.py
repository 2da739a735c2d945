"""Is the concept gone, judged from moments alone: the part of the audit that adds up over machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.auditing.directions import standard_norm, unit_scale, whitened
from excise.auditing.guardedness import Condition
from excise.data.gathering import Gathered, Recipe
from excise.distributed.dask_collections import Columns, blocks_of, first_concept
from excise.distributed.reducing import reduce_parts
from excise.moments.moments import Moments
from excise.numerics.precision import ALL_BUT_EMPTIED, chance_correlation, leak_bound

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
    before, after = total.before.main, total.after.main
    return judge(before, after, standard_norm(eraser, unit_scale(before, after)))


def judge(before: Moments, after: Moments, norm: float = 1.0) -> list[Condition]:
    """Conditions from moments of the same rows before and after an edit of this norm."""
    scale = unit_scale(before, after)
    s = after.statistics
    spread = np.sqrt(np.asarray(after.var_x))
    size = np.hypot(np.asarray(after.mean_x), spread)
    eps = max(s.unit_roundoff, 2.0**-53)
    chance = chance_correlation(int(after.rows), _rank(after), len(scale))
    # A feature that was all but emptied is judged in its own spread.
    own = np.where((spread > 0) & (spread < ALL_BUT_EMPTIED * scale), spread, scale)
    values = _largest(after, own)
    tolerance = np.minimum(leak_bound(eps, norm, size, own), chance)
    worst = int(np.argmax(values / tolerance))
    white = whitened(after, scale, eps)
    allowed = np.minimum(np.sqrt(np.mean(leak_bound(eps, norm, size, scale) ** 2)) / white.spread, chance)
    each = np.linalg.norm(white.correlations, axis=1)
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
            float(white.canonical.max(initial=0.0)),
            float(np.sqrt((allowed**2).sum())),
            bool((each <= allowed).all()),
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
