"""Arrow's columns -> rows of numbers, and what is wrong with the rows that are none."""

from __future__ import annotations

from typing import Any

import numpy as np

from excise.data.columns import is_list, storage_type
from excise.errors import InputError

__all__ = ["MISSING_LABEL", "MISSING_ROW", "NOT_FINITE", "FeatureColumns", "label_flags", "not_finite_flags"]

MISSING_ROW = "missing features"
NOT_FINITE = "features that are NaN or infinite"
MISSING_LABEL = "a missing label"

Flags = np.ndarray[Any, Any]  # (n,) bool


class FeatureColumns:
    """One list column, or many numeric columns, as a matrix (n, d)."""

    def __init__(self, schema: Any, names: list[str]) -> None:
        import pyarrow as pa
        import pyarrow.types as t

        self.names = names
        kind = storage_type(schema.field(names[0]).type)
        self.is_list = is_list(kind)
        self.d: int | None = len(names)
        if self.is_list:
            self.d = int(kind.list_size) if t.is_fixed_size_list(kind) else None  # else by the first row
        types = [kind.value_type] if self.is_list else [schema.field(name).type for name in names]
        floats = {pa.float16(): np.float16, pa.float32(): np.float32}
        self.dtype: np.dtype[Any] = np.dtype(floats.get(types[0], np.float64) if len(set(types)) == 1 else np.float64)
        self.column_major = not self.is_list

    def buffer(self, rows: int) -> np.ndarray[Any, Any]:
        """Room for rows. Columns of a table go into columns that lie in one piece, as they come."""
        assert self.d is not None
        return np.empty((rows, self.d), self.dtype, order="F" if self.column_major else "C")

    def learn_width(self, batch: Any) -> None:
        """Lists of no fixed size have the length of the first of them."""
        if self.d is None:
            lengths = _lists(batch.column(self.names[0])).value_lengths().drop_null()
            self.d = int(lengths[0].as_py()) if len(lengths) else None
            if self.d == 0:
                raise InputError(f"the first list of column {self.names[0]!r} is empty: there are no features")

    def fill(self, batch: Any, out: np.ndarray[Any, Any]) -> dict[str, Flags]:
        """Put the rows of a record batch into `out` (n, d); the reasons why some of them are none, if any are."""
        if self.is_list:
            return self._fill_lists(_lists(batch.column(self.names[0])), out)
        found = np.zeros(len(batch), dtype=bool)
        for j, name in enumerate(self.names):
            column = batch.column(name)
            if column.null_count:
                found |= column.is_null().to_numpy(zero_copy_only=False)
                column = column.fill_null(0)
            out[:, j] = column.to_numpy(zero_copy_only=False)
        return {MISSING_ROW: found} if found.any() else {}

    def _fill_lists(self, column: Any, out: np.ndarray[Any, Any]) -> dict[str, Flags]:
        import pyarrow.types as t

        n = len(column)
        fixed = t.is_fixed_size_list(column.type)
        if column.null_count == 0 and (fixed or _all_of_length(column, self.d)):
            values = column.flatten()
            if values.null_count == 0:
                out[...] = values.to_numpy(zero_copy_only=False).reshape(n, -1)
                return {}
        missing = column.is_null().to_numpy(zero_copy_only=False)
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        other = ~missing & (lengths != self.d)
        holes = np.zeros(n, dtype=bool)
        out[...] = 0
        good = np.flatnonzero(~missing & ~other)
        if len(good):
            values = column.take(_indices(good)).flatten()
            gaps = values.is_null().to_numpy(zero_copy_only=False).reshape(len(good), -1).any(axis=1)
            holes[good] = gaps
            out[good] = values.fill_null(0).to_numpy(zero_copy_only=False).reshape(len(good), -1)
        short = f"other than {self.d} features"
        found = {MISSING_ROW: missing | holes, short: other}
        return {reason: flags for reason, flags in found.items() if flags.any()}


def _indices(rows: Any) -> Any:
    import pyarrow as pa

    return pa.array(rows)


def _lists(column: Any) -> Any:
    import pyarrow as pa

    return column.storage if isinstance(column, pa.ExtensionArray) else column


def _all_of_length(column: Any, d: int | None) -> bool:
    offsets = column.offsets.to_numpy(zero_copy_only=False)
    return bool((np.diff(offsets) == d).all())


def not_finite_flags(X: np.ndarray[Any, Any]) -> dict[str, Flags]:
    """Rows (n, ..., d) with NaN or infinity. A sum is several times faster than a look at each number."""
    with np.errstate(over="ignore", invalid="ignore"):
        if X.dtype.kind != "f" or np.isfinite(X.sum(dtype=np.float64)):
            return {}
    bad = ~np.isfinite(X).reshape(len(X), -1).all(axis=1)
    return {NOT_FINITE: bad} if bad.any() else {}


def label_flags(labels: Any) -> dict[str, Flags]:
    """Rows without a label: null or NaN, in any of the columns."""
    if labels is None:
        return {}
    if isinstance(labels, dict):
        parts = [label_flags(part).get(MISSING_LABEL) for part in labels.values()]
    elif hasattr(labels, "column_names"):
        parts = [_missing_in(labels.column(name)) for name in labels.column_names]
    elif labels.dtype.kind == "f":
        bad = np.isnan(labels).reshape(len(labels), -1).any(axis=1)
        parts = [bad if bad.any() else None]
    else:
        parts = []
    found = [part for part in parts if part is not None]
    return {MISSING_LABEL: np.logical_or.reduce(found)} if found else {}


def _missing_in(column: Any) -> Flags | None:
    import pyarrow.compute as pc
    import pyarrow.types as t

    if not column.null_count and not t.is_floating(column.type):
        return None
    missing = np.asarray(pc.is_null(column, nan_is_null=True).to_numpy())
    return missing if missing.any() else None
