"""Writers of tables: the feature columns are replaced in their places, everything else is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from excise.data.columns import is_list, storage_type
from excise.data.rows import TableRows
from excise.data.table import Batch

__all__ = ["ArrowWriter", "CsvWriter", "ParquetWriter", "erased_table"]

Values = np.ndarray[Any, Any]
CODECS = {"UNCOMPRESSED": "none", "LZ4_RAW": "lz4"}


def erased_table(source: TableRows | None, others: Any, erased: Values) -> Any:
    """A table of the erased features (n, d) and the other columns, in the order of the source.

    Features that came as arrays become one column "x" of lists.
    """
    import pyarrow as pa

    if source is None:
        return pa.table({"x": _lists(erased, pa.list_(pa.from_numpy_dtype(erased.dtype), erased.shape[1]))})
    schema = source.file.schema
    columns, fields = [], []
    place = {name: j for j, name in enumerate(source.features.names)}
    for field in schema:
        if field.name not in place:
            columns.append(others.column(field.name))
            fields.append(others.schema.field(field.name))
        elif source.features.is_list:
            kind = _float_list(field.type, erased.dtype)
            columns.append(_lists(erased, kind))
            fields.append(field.with_type(kind))
        else:
            columns.append(pa.array(np.ascontiguousarray(erased[:, place[field.name]])))
            fields.append(field.with_type(columns[-1].type))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, metadata=schema.metadata))


def _float_list(kind: Any, dtype: np.dtype[Any]) -> Any:
    """The type of a column of lists; lists of whole numbers become lists of floats."""
    import pyarrow as pa
    import pyarrow.types as t

    inner, value = storage_type(kind), pa.from_numpy_dtype(dtype)
    if inner.value_type == value:
        return kind
    field = inner.value_field.with_type(value)
    if t.is_fixed_size_list(inner):
        return pa.list_(field, inner.list_size)
    return pa.large_list(field) if t.is_large_list(inner) else pa.list_(field)


def _lists(values: Values, kind: Any) -> Any:
    import pyarrow as pa
    import pyarrow.types as t

    assert is_list(kind)
    inner = storage_type(kind)
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    n, d = values.shape
    if t.is_fixed_size_list(inner):
        out = pa.FixedSizeListArray.from_arrays(flat, type=inner)
    else:
        make = pa.LargeListArray if t.is_large_list(inner) else pa.ListArray
        offsets = np.arange(0, n * d + 1, d, dtype=np.int64 if t.is_large_list(inner) else np.int32)
        out = make.from_arrays(pa.array(offsets), flat, type=inner)
    return pa.ExtensionArray.from_storage(kind, out) if inner is not kind and inner != kind else out


class ParquetWriter:
    """Row groups, codecs, encodings and metadata as in the source, as far as pyarrow can write them."""

    def __init__(self, path: Path, source: TableRows | None) -> None:
        self.path, self.source = path, source
        self._writer: Any = None
        self._pieces: list[Any] = []

    def write(self, batch: Batch, erased: Values) -> None:
        self._pieces.append(erased_table(self.source, batch.table, erased))

    def end_group(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pieces = [piece for piece in self._pieces if len(piece)]
        if self._writer is None and self._pieces:
            options = _options(self.source) if self.source is not None else {"compression": "zstd"}
            self._writer = pq.ParquetWriter(self.path, self._pieces[0].schema, **options)
        self._pieces = []
        if pieces:
            whole = pa.concat_tables(pieces)
            self._writer.write_table(whole, row_group_size=len(whole))

    def close(self, failed: bool) -> None:
        if not failed:
            self.end_group()
        if self._writer is not None:
            self._writer.close()


def _options(source: TableRows) -> dict[str, Any]:
    """How the source was written, by its first row group."""
    metadata = getattr(source.file, "metadata", None)
    if metadata is None or not metadata.num_row_groups:
        return {"compression": "zstd"}
    first = metadata.row_group(0)
    columns = [first.column(j) for j in range(first.num_columns)]
    features = {c.path_in_schema for c in columns if c.path_in_schema.split(".")[0] in set(source.features.names)}
    split = [c.path_in_schema for c in columns if "BYTE_STREAM_SPLIT" in c.encodings]
    # Erased features hardly ever repeat: a dictionary of them would be built and thrown away.
    dictionary = [c.path_in_schema for c in columns if c.has_dictionary_page and c.path_in_schema not in features]
    return {
        "compression": {c.path_in_schema: CODECS.get(c.compression, c.compression.lower()) for c in columns},
        "use_dictionary": [name for name in dictionary if name not in split] or False,
        "use_byte_stream_split": split or False,
        "version": metadata.format_version if metadata.format_version in ("1.0", "2.4", "2.6") else "2.6",
    }


class ArrowWriter:
    """Arrow's own format, with the same record batches; a stream stays a stream. Feather files are compressed by LZ4."""

    def __init__(self, path: Path, source: TableRows | None) -> None:
        self.path, self.source = path, source
        self._writer: Any = None
        self._pieces: list[Any] = []

    def write(self, batch: Batch, erased: Values) -> None:
        self._pieces.append(erased_table(self.source, batch.table, erased))

    def end_group(self) -> None:
        import pyarrow as pa

        if not self._pieces:
            return
        if self._writer is None:
            stream = self.source is not None and getattr(self.source.file, "is_stream", False)
            options = pa.ipc.IpcWriteOptions(compression="lz4" if self.path.suffix == ".feather" else None)
            make = pa.ipc.new_stream if stream else pa.ipc.new_file
            self._writer = make(str(self.path), self._pieces[0].schema, options=options)
        whole = pa.concat_tables(self._pieces).combine_chunks()
        self._pieces = []
        self._writer.write_table(whole)

    def close(self, failed: bool) -> None:
        if not failed:
            self.end_group()
        if self._writer is not None:
            self._writer.close()


class CsvWriter:
    def __init__(self, path: Path, source: TableRows) -> None:
        self.path, self.source = path, source
        self._writer: Any = None

    def write(self, batch: Batch, erased: Values) -> None:
        from pyarrow import csv

        table = erased_table(self.source, batch.table, erased)
        if self._writer is None:
            self._writer = csv.CSVWriter(str(self.path), table.schema)
        self._writer.write_table(table)

    def end_group(self) -> None:
        return None

    def close(self, failed: bool) -> None:
        if self._writer is not None:
            self._writer.close()
