"""Files of named columns (Parquet, Arrow, Feather, CSV), all read alike: a few thousand rows at a time, wanted columns alone.

Parquet is read page by page with small buffers, so that a row group of any size costs the same memory. (The scanner of
pyarrow.dataset holds whole row groups: 3 GB where pyarrow wrote the file with its default settings and d = 768.)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate
from typing import Any, Protocol

from excise.data.locations import Location
from excise.data.mapped import MappedFile
from excise.data.parquet_pages import PageRows, list_pages
from excise.errors import ExciseError, FileFormatError, InputError, missing_extra

__all__ = ["ArrowFile", "CsvFile", "ParquetFile", "TableFile", "open_table_file", "require_pyarrow"]

BUFFER = 2**18  # bytes that are read at once from a Parquet file
CSV_BLOCK = 2**24


class TableFile(Protocol):
    """One file of columns."""

    location: Location

    @property
    def schema(self) -> Any:
        """pyarrow's, with the metadata of the file."""
        ...

    @property
    def rows(self) -> int:
        """How many there are; CSV is read through to know."""
        ...

    @property
    def breaks(self) -> list[int] | None:
        """Rows at which reading can start at no cost; None where that is anywhere."""
        ...

    def stream(self, columns: list[str], begin: int, end: int | None, rows: int) -> Iterator[Any]:
        """Record batches of at most `rows` rows that hold these columns of rows begin to end; `end` may be open."""
        ...


def require_pyarrow(what: str) -> None:
    """
    Raises:
        ExciseError: pyarrow is not installed.
    """
    try:
        import pyarrow  # noqa: F401
    except ModuleNotFoundError:
        raise missing_extra(f"reading {what} needs pyarrow", "data") from None


@contextmanager
def _reading(location: Location, kind: str) -> Iterator[None]:
    """pyarrow's errors as ours, with the name of the file."""
    import pyarrow as pa

    try:
        yield
    except (ExciseError, FileNotFoundError):
        raise
    except (pa.ArrowException, OSError, EOFError, ValueError, OverflowError) as error:  # names that are no text, too
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileFormatError(f"{location} is not a whole {kind} file ({first})", code="cut-off") from None


def open_table_file(location: Location) -> TableFile:
    """
    Raises:
        FileFormatError: it is cut off, or not what its name says.
        InputError: two columns have one name.
    """
    require_pyarrow(location.path)
    opened: TableFile
    if location.suffix == ".parquet":
        opened = ParquetFile(location)
    elif location.suffix == ".csv":
        opened = CsvFile(location)
    else:
        opened = ArrowFile(location)
    with _reading(location, "Parquet" if location.suffix == ".parquet" else "Arrow"):
        names = opened.schema.names
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{location} has two columns called {twice!r}: rename one of them")
    return opened


def _cut(batches: Iterator[Any], skip: int, count: int | None) -> Iterator[Any]:
    """The batches without their first `skip` rows, `count` rows in all.

    Arrow takes offsets and codes of a file on trust, and reading by wrong ones leaves its memory: so they are checked.
    """
    for batch in batches:
        batch.validate(full=True)
        if skip >= len(batch):
            skip -= len(batch)
            continue
        batch, skip = batch.slice(skip), 0
        if count is not None:
            batch = batch.slice(0, count)
            count -= len(batch)
        if len(batch):
            yield batch
        if count == 0:
            return


class ParquetFile:
    def __init__(self, location: Location) -> None:
        self.location = location
        self.metadata: Any = None
        with _reading(location, "Parquet"):
            opened = self.open()
            self.metadata = opened.metadata
            self.schema: Any = opened.schema_arrow
        starts = [0]
        for group in range(self.metadata.num_row_groups):
            starts.append(starts[-1] + self.metadata.row_group(group).num_rows)
        self._starts = starts  # of the row groups, and the end

    def open(self) -> Any:
        """As pyarrow knows it; each has a position of its own."""
        import pyarrow.parquet as pq

        source: Any = self.location.path if self.location.is_local else self.location.open()
        return pq.ParquetFile(source, metadata=self.metadata, pre_buffer=False, buffer_size=BUFFER)

    def list_rows(self, column: str, d: int, begin: int) -> PageRows | None:
        """Lists of d floats of a local file from row `begin` on, without Arrow, if they are stored plainly."""
        if not self.location.is_local:
            return None
        pages = list_pages(self.metadata, self.metadata.schema, column, d)
        return None if pages is None else PageRows(pages, MappedFile(self.location.path), begin)

    @property
    def rows(self) -> int:
        return self._starts[-1]

    @property
    def breaks(self) -> list[int]:
        return self._starts[:-1]

    def stream(self, columns: list[str], begin: int, end: int | None, rows: int) -> Iterator[Any]:
        end = self.rows if end is None else end
        if end <= begin:
            return
        groups = list(range(bisect_right(self._starts, begin) - 1, bisect_left(self._starts, end)))
        with _reading(self.location, "Parquet"), self.open() as opened:
            batches = opened.iter_batches(rows, groups, columns, use_threads=len(columns) > 8)
            yield from _cut(batches, begin - self._starts[groups[0]], end - begin)


class ArrowFile:
    """Arrow's own format, as a file or as a stream (Feather, and what Hugging Face `datasets` writes)."""

    breaks = None

    def __init__(self, location: Location) -> None:
        self.location = location
        with location.open() as file:
            self.is_stream = file.read(6) != b"ARROW1"
        self._map = MappedFile(location.path) if location.is_local else None
        with _reading(location, "Arrow"), self._open(None) as reader:
            self.schema: Any = reader.schema

    @contextmanager
    def _open(self, columns: list[str] | None) -> Iterator[Any]:
        import pyarrow as pa

        included = None if columns is None else [self.schema.names.index(name) for name in columns]
        options = pa.ipc.IpcReadOptions(included_fields=included, use_threads=False)
        open_reader = pa.ipc.open_stream if self.is_stream else pa.ipc.open_file
        if self._map is not None:
            yield open_reader(pa.BufferReader(pa.py_buffer(self._map.map)), options=options)
            return
        with self.location.open() as file:
            yield open_reader(file, options=options)

    def _batches(self, columns: list[str]) -> Iterator[Any]:
        with self._open(columns) as reader:
            if self.is_stream:
                yield from reader
            else:
                yield from (reader.get_batch(i) for i in range(reader.num_record_batches))

    @cached_property
    def _lengths(self) -> list[int]:
        """Of the record batches, by the cheapest column."""
        if not self.schema.names:
            return []
        cheap = min(self.schema, key=lambda field: (field.type.num_fields, str(field.type))).name
        with _reading(self.location, "Arrow"):
            return [len(batch) for batch in self._batches([cheap])]

    @property
    def rows(self) -> int:
        return sum(self._lengths)

    @property
    def groups(self) -> list[int]:
        """The first row of each record batch."""
        return [0, *accumulate(self._lengths)][:-1]

    def stream(self, columns: list[str], begin: int, end: int | None, rows: int) -> Iterator[Any]:
        with _reading(self.location, "Arrow"):
            whole = (batch.select(columns) for batch in self._batches(columns))
            count = None if end is None else end - begin
            if count == 0:
                return
            for batch in _cut(whole, begin, count):
                for at in range(0, len(batch), rows):
                    yield batch.slice(at, rows)
                    if self._map is not None:
                        self._map.release_all()


class CsvFile:
    """Comma-separated values with a header. `as_text` are columns to read as they are written."""

    breaks = None

    def __init__(self, location: Location, as_text: frozenset[str] = frozenset()) -> None:
        self.location, self.as_text = location, as_text
        with _reading(location, "CSV"), self._open(None) as reader:
            self.schema: Any = reader.schema

    @contextmanager
    def _open(self, columns: list[str] | None) -> Iterator[Any]:
        import pyarrow as pa
        from pyarrow import csv

        types: dict[str, Any] = dict.fromkeys(self.as_text, pa.string())
        if columns is not None:  # a column of whole numbers may hold others further down
            types |= {f.name: pa.float64() for f in self.schema if f.type == pa.int64() and f.name in self._numbers}
        with (
            self.location.open() as file,
            csv.open_csv(
                file,
                read_options=csv.ReadOptions(block_size=CSV_BLOCK, use_threads=False),
                convert_options=csv.ConvertOptions(column_types=types, include_columns=columns or []),
            ) as reader,
        ):
            yield reader

    _numbers: frozenset[str] = frozenset()

    def with_columns(self, numbers: list[str], as_text: list[str]) -> CsvFile:
        """The same file with columns that are read as floats, or as text, whatever the first rows look like."""
        out = CsvFile(self.location, frozenset(as_text))
        out._numbers = frozenset(numbers)
        return out

    @cached_property
    def rows(self) -> int:
        if not self.schema.names:
            return 0
        return sum(len(batch) for batch in self.stream([self.schema.names[0]], 0, None, 2**20))

    def stream(self, columns: list[str], begin: int, end: int | None, rows: int) -> Iterator[Any]:
        with _reading(self.location, "CSV"), self._open(columns) as reader:
            for batch in _cut(iter(reader), begin, None if end is None else end - begin):
                for at in range(0, len(batch), rows):
                    yield batch.slice(at, rows)
