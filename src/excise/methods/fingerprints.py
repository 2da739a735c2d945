"""Features on which an edit leaves fingerprints: those of few distinct values, and those that hardly ever vary.

A 0/1 feature plus a shift per class gives the class away by its fraction (oracle, quadratic). An indicator that fires in
a handful of rows is, after the edit, a copy of the erased score wherever it does not fire. Looked for in a sample of the
rows; only features that are constant there are counted over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from excise.errors import warn
from excise.numerics.arrays import Array, convert, host

__all__ = ["few_valued_features", "rare_features", "warn_fingerprints"]

SAMPLE = 256  # rows in which distinct values are counted
FEW_VALUES = 10  # distinct values in the sample up to which a feature is discrete
RARE_ROWS = 20  # features that vary in fewer rows are rare
LEAST_ROWS = 100  # in fewer rows nothing can be said


def _sample(rows: Array, size: int) -> Any:
    n = rows.shape[0]
    at = np.unique(np.linspace(0, n - 1, min(size, n)).astype(np.int64))
    return host(rows[convert(at, rows)]).astype(np.float64)


def few_valued_features(rows: Array) -> np.ndarray[Any, Any]:
    """Numbers of the features with at most FEW_VALUES distinct values, constants left out."""
    values = np.sort(_sample(rows, SAMPLE), axis=0)
    distinct = 1 + (np.diff(values, axis=0) > 0).sum(axis=0)
    return np.flatnonzero((distinct > 1) & (distinct <= FEW_VALUES))


def rare_features(rows: Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Numbers of the features that vary in fewer than RARE_ROWS rows, and in how many each does; constants left out."""
    sample = _sample(rows, 4 * SAMPLE)
    usual = np.sort(sample, axis=0)[len(sample) // 2]
    maybe = np.flatnonzero((sample != usual).sum(axis=0) < RARE_ROWS)
    if not len(maybe):
        return maybe, maybe
    varying = np.zeros(len(maybe), dtype=np.int64)
    at = convert(maybe, rows)
    for begin in range(0, rows.shape[0], step := max(1, 2**22 // len(maybe))):
        varying += (host(rows[begin : begin + step][:, at]).astype(np.float64) != usual[maybe]).sum(axis=0)
    rare = (varying > 0) & (varying < RARE_ROWS)
    return maybe[rare], varying[rare]


def warn_fingerprints(rows: Array, labels_to_apply: bool, method: str, names: Sequence[str] | None) -> None:
    """Say which features of these rows (n, d) an edit would leave fingerprints on."""
    if rows.shape[0] < LEAST_ROWS:
        return
    if labels_to_apply:
        few = few_valued_features(rows)
        if len(few):
            warn(
                f"{len(few)} feature(s) have few distinct values ({_shown(few, names)}): {method} shifts each class by an "
                f"amount of its own, so the fraction of such a value gives the class away to trees and look-ups; use leace, "
                f"condition_on, or leave them out",
                code="discrete-features",
            )
    rare, varying = rare_features(rows)
    if len(rare):
        warn(
            f"{len(rare)} feature(s) vary in fewer than {RARE_ROWS} rows ({_shown(rare, names)}; {int(varying.min())} to "
            f"{int(varying.max())} rows): in new rows where they do not vary, the edit leaves a copy of the concept in them; "
            f"drop them, pool rare categories, or encode them otherwise",
            code="rare-features",
        )


def _shown(features: Any, names: Sequence[str] | None) -> str:
    shown = [repr(names[int(i)]) if names is not None else str(int(i)) for i in features[:4]]
    return ", ".join(shown) + (", ..." if len(features) > 4 else "")
