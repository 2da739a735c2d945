"""Parquet as a source of rows: features are one list column or many numeric columns, the concept is columns by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from excise.errors import ExciseError, FileFormatError, InputError

__all__ = ["ParquetFrame", "ParquetMatrix", "feature_columns", "open_parquet", "to_matrix"]


def open_parquet(path: Path) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ExciseError("reading Parquet needs pyarrow: pip install 'excise[data]'") from None
    try:
        return pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise FileFormatError(f"{path} is not a whole Parquet file ({error})") from None


def _require(file: Any, path: Path, columns: list[str]) -> None:
    missing = [name for name in columns if name not in file.schema_arrow.names]
    if missing:
        raise InputError(f"{path} has no column {missing[0]!r}; it has {', '.join(file.schema_arrow.names)}")


def feature_columns(file: Any, path: Path, asked: list[str] | None, concept: list[str]) -> list[str]:
    """The columns that are features: those asked for, else the one list column, else all numbers but the concept.

    Raises:
        InputError: there are none, or it is not clear which.
    """
    import pyarrow.types as t

    if asked:
        _require(file, path, asked)
        return asked
    fields = [field for field in file.schema_arrow if field.name not in concept]
    lists = [f.name for f in fields if t.is_list(f.type) or t.is_fixed_size_list(f.type) or t.is_large_list(f.type)]
    if len(lists) == 1:
        return lists
    if len(lists) > 1:
        raise InputError(f"{path} has several list columns ({', '.join(lists)}): say which one holds the features")
    numbers = [f.name for f in fields if t.is_floating(f.type) or t.is_integer(f.type)]
    if not numbers:
        raise InputError(
            f"{path} has no numeric columns and no list column; it has {', '.join(file.schema_arrow.names)}"
        )
    return numbers


def to_matrix(table: Any, columns: list[str], path: Path) -> np.ndarray[Any, Any]:
    """(n, d) from one list column or from many numeric columns of a table.

    Raises:
        InputError: nulls, or lists of unequal length.
    """
    import pyarrow as pa
    import pyarrow.types as t

    chunks = [table.column(name).combine_chunks() for name in columns]
    nulls = [f"{name} ({column.null_count})" for name, column in zip(columns, chunks, strict=True) if column.null_count]
    if nulls:
        raise InputError(f"{path} has missing values in {', '.join(nulls[:5])}: drop or impute those rows")
    first = chunks[0]
    if isinstance(first, pa.ChunkedArray):  # a table of no rows
        first = first.combine_chunks() if first.num_chunks else pa.array([], first.type)
    if not (t.is_list(first.type) or t.is_large_list(first.type) or t.is_fixed_size_list(first.type)):
        return np.column_stack([column.to_numpy(zero_copy_only=False) for column in chunks])
    if len(columns) > 1:
        raise InputError(f"{path}: pass one list column, or many numeric columns, not {', '.join(columns)}")
    values = first.flatten()
    if values.null_count:
        raise InputError(f"{path}: column {columns[0]!r} has {values.null_count} missing numbers inside its lists")
    lengths = np.unique(first.value_lengths().to_numpy(zero_copy_only=False)) if len(first) else np.zeros(1)
    if len(lengths) > 1:
        raise InputError(f"{path}: the lists of column {columns[0]!r} have from {lengths[0]} to {lengths[-1]} entries")
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(first), -1)


class ParquetMatrix:
    """Features of a Parquet file, in batches of (rows, d)."""

    def __init__(self, path: Path, columns: list[str] | None, concept: list[str]) -> None:
        self.path = path
        file = open_parquet(path)
        self.columns = feature_columns(file, path, columns, concept)
        self.n = int(file.metadata.num_rows)

    def batches(self, rows: int) -> Iterator[Any]:
        import pyarrow as pa

        for batch in open_parquet(self.path).iter_batches(batch_size=rows, columns=self.columns):
            yield to_matrix(pa.Table.from_batches([batch]), self.columns, self.path)


class ParquetFrame:
    """Concept columns of a Parquet file, in batches: a frame, or a single column as a series."""

    def __init__(self, path: Path, columns: list[str]) -> None:
        self.path = path
        file = open_parquet(path)
        _require(file, path, columns)
        self.columns = columns
        self.n = int(file.metadata.num_rows)

    def batches(self, rows: int) -> Iterator[Any]:
        import pyarrow as pa

        for batch in open_parquet(self.path).iter_batches(batch_size=rows, columns=self.columns):
            table = pa.Table.from_batches([batch]).select(self.columns)
            yield table.column(0) if len(self.columns) == 1 else table
