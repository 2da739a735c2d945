"""Features as people hold them: arrays of any library, or data frames of any library (through narwhals).

`read_features` is the one door. It gives an array, the names of the columns where there are any, and a way back to the
kind of object that came in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.errors import InputError
from excise.numerics.arrays import Array, check_features, restore_like

__all__ = ["Features", "is_frame", "read_features"]


@dataclass(frozen=True)
class Features:
    """What came in, as an array."""

    values: Array  # (..., d): the array itself, or (n, d) NumPy from a data frame
    names: tuple[str, ...] | None  # of the columns of a data frame
    restore: Callable[[Array], Any]  # an array of the same shape -> the kind of object that came in


def is_frame(X: Any) -> bool:
    """Whether X is a data frame, of whatever library."""
    if isinstance(X, (np.ndarray, list, tuple)):
        return False
    return (hasattr(X, "columns") and hasattr(X, "dtypes")) or hasattr(X, "__dataframe__") or hasattr(X, "column_names")


def read_features(X: Any, what: str = "X", names: Sequence[str] | None = None) -> Features:
    """X as an array (..., d) of numbers; integers become float64.

    Args:
        X: an array, a list of rows, or a data frame (pandas, polars, pyarrow...).
        what: its name, for messages.
        names: the columns of a data frame to take, in this order; all of them unless given. Other columns are left as
            they are. Arrays have no names and are taken as they come.

    Raises:
        InputError: not a real dense array, or a frame with columns that are missing, not numbers, or have gaps.
    """
    if not is_frame(X):
        values = check_features(X, what)
        return Features(values, None, lambda out: restore_like(out, values))
    import narwhals as nw

    try:
        frame = nw.from_native(X, eager_only=True)
    except TypeError:
        raise InputError(
            f"{what} is a {type(X).__module__.split('.')[0]} {type(X).__name__}, whose rows are not in memory: collect it "
            f"first, or pass its batches to Moments.update",
            code="lazy-frame",
        ) from None
    chosen = _chosen(frame.columns, what, names)
    values = _matrix(frame, chosen, what)

    def restore(out: Array) -> Any:
        new = [
            nw.new_series(name, np.ascontiguousarray(out[:, j]), backend=frame.implementation)
            for j, name in enumerate(chosen)
        ]
        if frame.implementation.is_pandas_like():  # the caller's index
            new = [nw.maybe_set_index(series, index=nw.maybe_get_index(frame)) for series in new]
        return frame.with_columns(*new).to_native()

    # Numbers as column names are positions, as in scikit-learn: pandas makes them up where nobody named the columns.
    named = all(isinstance(name, str) for name in chosen)
    return Features(values, tuple(chosen) if named else None, restore)


def _chosen(columns: Sequence[str], what: str, names: Sequence[str] | None) -> list[str]:
    if len(set(columns)) != len(columns):
        twice = next(name for name in columns if list(columns).count(name) > 1)
        raise InputError(f"{what} has two columns called {twice!r}: rename one of them")
    if names is None:
        return list(columns)
    missing = [name for name in names if name not in columns]
    if missing:
        raise InputError(
            f"{what} lacks {len(missing)} of the {len(names)} features that were fitted, e.g. {missing[0]!r}; it has "
            f"{', '.join(map(repr, list(columns)[:8]))}{', ...' if len(columns) > 8 else ''}",
            code="missing-feature",
        )
    return list(names)


def _matrix(frame: Any, names: list[str], what: str) -> np.ndarray[Any, Any]:
    import narwhals as nw

    by_name = {column.name: column for column in frame.iter_columns()}
    columns = [by_name[name] for name in names]
    if not columns:
        raise InputError(f"{what} is a data frame without columns: there are no features", code="feature-shape")
    text = [c for c in columns if not (c.dtype.is_numeric() or c.dtype == nw.Boolean)]
    if text:
        shown = ", ".join(f"{c.name!r} ({c.dtype})" for c in text[:4])
        raise InputError(
            f"{what} has {len(text)} column(s) that are not numbers: {shown}. Drop them, encode them as numbers (e.g. "
            f"one-hot), or name them as the concept",
            code="text-column",
        )
    gaps = [f"{c.name!r} ({int(c.null_count())})" for c in columns if int(c.null_count())]
    if gaps:
        raise InputError(f"{what} has missing values in {', '.join(gaps[:4])}: drop or impute them", code="not-finite")
    values = [c.to_numpy() for c in columns]
    narrow = {column.dtype for column in values} == {np.dtype(np.float32)}
    return np.column_stack([np.asarray(c, dtype=np.float32 if narrow else np.float64) for c in values])
