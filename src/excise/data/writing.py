"""Erased features to files: written beside the target and renamed when whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from excise.data.parquet import ParquetMatrix, open_parquet, to_matrix
from excise.data.reading import Table, aligned
from excise.errors import ExciseError
from excise.files import replacing

__all__ = ["apply_to_file"]


def apply_to_file(
    transform: Callable[[Any, Any], Any],
    table: Table,
    target: str | os.PathLike[str],
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write transform(X, z) for every batch of `table` to a .npy or .parquet file.

    Parquet from Parquet keeps all other columns. The target appears only when it is whole.

    Raises:
        ExciseError: the target is of another format, or its folder does not exist.
    """
    path = Path(target)
    writers = {".npy": _write_npy, ".parquet": _write_parquet}
    if path.suffix not in writers:
        raise ExciseError(f"cannot write {path}: expected a file that ends in {' or '.join(writers)}")
    if path.suffix == ".parquet" and not isinstance(table.x, ParquetMatrix) and table.x.array.ndim != 2:  # type: ignore[attr-defined]
        raise ExciseError(f"cannot write {path}: the features have more than two dimensions; write a .npy file")
    with replacing(path) as temporary:
        writers[path.suffix](transform, table, temporary, progress or (lambda rows: None))


def _write_npy(transform: Any, table: Table, path: Path, progress: Callable[[int], None]) -> None:
    out: Any = None
    at = 0
    for X, z in table.batches():
        erased = transform(X, z)
        if out is None:
            out = np.lib.format.open_memmap(path, mode="w+", dtype=erased.dtype, shape=(table.n, *erased.shape[1:]))
        out[at : at + len(erased)] = erased
        at += len(erased)
        progress(len(erased))
    out.flush()


def _write_parquet(transform: Any, table: Table, path: Path, progress: Callable[[int], None]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer: Any = None
    try:
        for X, z, batch in _with_other_columns(table):
            erased = transform(X, z)
            out = pa.table({"x": _lists(erased)}) if batch is None else _replaced(batch, table.x, erased)
            writer = writer or pq.ParquetWriter(path, out.schema, compression="zstd")
            writer.write_table(out)
            progress(len(erased))
    finally:
        if writer is not None:
            writer.close()


def _with_other_columns(table: Table) -> Iterator[tuple[Any, Any, Any]]:
    """X, z and, from Parquet, the table with all columns of the same rows."""
    import pyarrow as pa

    source = table.x
    if not isinstance(source, ParquetMatrix):
        yield from ((X, z, None) for X, z in table.batches())
        return
    whole = (pa.Table.from_batches([b]) for b in open_parquet(source.path).iter_batches(batch_size=table.batch_rows))
    pairs = ((b, None) for b in whole) if table.z is None else aligned(whole, table.z.batches(table.batch_rows))
    for batch, z in pairs:
        yield to_matrix(batch, source.columns, source.path), z, batch


def _lists(values: Any) -> Any:
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).reshape(-1)), values.shape[1])


def _replaced(batch: Any, source: Any, erased: Any) -> Any:
    """The table with its feature column(s) replaced, in place and under their names."""
    import pyarrow as pa
    import pyarrow.types as t

    columns: list[str] = source.columns
    one_list = len(columns) == 1 and not (
        t.is_floating(batch.schema.field(columns[0]).type) or t.is_integer(batch.schema.field(columns[0]).type)
    )
    for j, name in enumerate(columns):
        values = _lists(erased) if one_list else pa.array(erased[:, j])
        batch = batch.set_column(batch.schema.get_field_index(name), name, values)
    return batch
