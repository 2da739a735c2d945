"""Features of one file, in batches: with the labels of the same rows where these are in the file too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from excise.data.array_files import StoredArray
from excise.data.locations import Location
from excise.data.matrix import FeatureColumns
from excise.data.parquet_pages import NotPlain, PageRows
from excise.data.table_files import ParquetFile, TableFile

__all__ = ["ArrayRows", "Buffers", "FeatureSource", "RawBatch", "TableRows"]

PIECE_BYTES = 3 * 2**19  # what Arrow decodes at once: it fits the cache, and larger pieces took a third more time
PIECE_BYTES_OF_COLUMNS = 2**24  # many columns cost a little each, however few the rows

Values = np.ndarray[Any, Any]


def _nothing() -> None:
    return None


@dataclass
class RawBatch:
    """Rows as they are in the file, with what is wrong with some of them."""

    begin: int  # row of the file
    count: int
    X: Values  # (count, ..., d)
    found: dict[str, Values]  # reason -> (count,) bool
    labels: Any = None
    task: Any = None
    table: Any = None  # all other columns, where they are wanted
    done: Callable[[], None] = field(default=_nothing)  # X is not needed any more


class Buffers:
    """Room for batches that is used again: memory fresh from the system costs as much time as reading."""

    def __init__(self, again: bool) -> None:
        self.again = again
        self._free: list[Values] = []

    def take(self, rows: int, make: Callable[[], Values]) -> Values:
        while self._free:
            buffer = self._free.pop()
            if len(buffer) >= rows:
                return buffer
        return make()

    def give_back(self, buffer: Values) -> None:
        if self.again:
            self._free.append(buffer)


class FeatureSource(Protocol):
    """The features of one file."""

    @property
    def location(self) -> Location: ...
    @property
    def rows(self) -> int: ...
    @property
    def counted(self) -> bool:
        """Whether `rows` costs nothing to ask for."""
        ...

    @property
    def breaks(self) -> list[int] | None: ...
    @property
    def d(self) -> int: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...

    def batches(self, begin: int, end: int | None, rows: int, buffers: Buffers) -> Iterator[RawBatch]: ...


class TableRows:
    """From columns of a table."""

    def __init__(
        self, file: TableFile, features: list[str], labels: list[str], task: list[str], everything: bool
    ) -> None:
        self.file, self.labels, self.task, self.everything = file, labels, task, everything
        self.features = FeatureColumns(file.schema, features)
        if self.features.d is None:
            for batch in file.stream(features, 0, None, 1024):
                self.features.learn_width(batch)
                if self.features.d is not None:
                    break
        self.features.d = self.features.d or 0
        names = list(file.schema.names) if everything else list(dict.fromkeys([*labels, *task]))
        self.others = [name for name in names if name not in features]
        self.columns = [*features, *self.others]

    @property
    def location(self) -> Location:
        return self.file.location

    @property
    def rows(self) -> int:
        return self.file.rows

    @property
    def counted(self) -> bool:
        return self.file.location.suffix != ".csv"

    @property
    def breaks(self) -> list[int] | None:
        return self.file.breaks

    @property
    def d(self) -> int:
        return self.features.d or 0

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.features.dtype

    @property
    def row_bytes(self) -> int:
        return self.d * self.features.dtype.itemsize

    def batches(self, begin: int, end: int | None, rows: int, buffers: Buffers) -> Iterator[RawBatch]:
        if isinstance(self.file, ParquetFile) and self.features.is_list:
            plain = self.file.list_rows(self.features.names[0], self.d, begin)
            if plain is not None:
                end = self.rows if end is None else end
                for batch in self._plain_batches(plain, begin, end, rows, buffers):
                    yield batch
                    begin = batch.begin + batch.count
        if end is None or begin < end:
            yield from self._arrow_batches(begin, end, rows, buffers)

    def _plain_batches(self, plain: PageRows, begin: int, end: int, rows: int, buffers: Buffers) -> Iterator[RawBatch]:
        """Batches up to the first that is not stored plainly."""
        room = min(rows, end - begin)
        others = _Others(self.file.stream(self.others, begin, end, room)) if self.others else None
        while begin < end:
            count = min(room, end - begin)
            buffer = buffers.take(room, lambda: self.features.buffer(room))
            try:
                plain.fill(buffer[:count])
            except NotPlain:
                buffers.give_back(buffer)
                return
            table = None if others is None else others.take(count)
            yield self._raw(begin, buffer[:count], {}, table, partial(buffers.give_back, buffer))
            begin += count

    def _raw(self, begin: int, X: Values, found: dict[str, Values], table: Any, done: Callable[[], None]) -> RawBatch:
        return RawBatch(
            begin,
            len(X),
            X,
            found,
            table.select(self.labels) if table is not None and self.labels else None,
            table.select(self.task) if table is not None and self.task else None,
            table if self.everything else None,
            done,
        )

    def _arrow_batches(self, begin: int, end: int | None, rows: int, buffers: Buffers) -> Iterator[RawBatch]:
        room = rows if end is None else min(rows, end - begin)
        limit = PIECE_BYTES_OF_COLUMNS if self.features.column_major else PIECE_BYTES
        piece = min(rows, max(1, limit // max(1, self.row_bytes)))
        started = _Assembly(self, begin, room, buffers)
        for batch in self.file.stream(self.columns, begin, end, piece):
            at = 0
            while at < len(batch):
                part = batch.slice(at, room - started.filled)
                started.add(part)
                at += len(part)
                if started.filled == room:
                    yield started.finish()
                    started = _Assembly(self, started.begin + room, room, buffers)
        if started.filled:
            yield started.finish()


class _Assembly:
    """One batch, put together from small pieces."""

    def __init__(self, source: TableRows, begin: int, room: int, buffers: Buffers) -> None:
        self.source, self.begin, self.room, self.buffers = source, begin, room, buffers
        self.filled = 0
        self.buffer: Values | None = None
        self.found: dict[str, Values] = {}
        self.pieces: list[Any] = []

    def add(self, piece: Any) -> None:
        if self.buffer is None:
            self.buffer = self.buffers.take(self.room, lambda: self.source.features.buffer(self.room))
        end = self.filled + len(piece)
        for reason, flags in self.source.features.fill(piece, self.buffer[self.filled : end]).items():
            self.found.setdefault(reason, np.zeros(self.room, dtype=bool))[self.filled : end] = flags
        if self.source.others:
            self.pieces.append(piece.select(self.source.others))
        self.filled = end

    def finish(self) -> RawBatch:
        import pyarrow as pa

        buffer, filled = self.buffer, self.filled
        assert buffer is not None
        table = pa.Table.from_batches(self.pieces) if self.pieces else None
        found = {reason: flags[:filled] for reason, flags in self.found.items()}
        return self.source._raw(self.begin, buffer[:filled], found, table, lambda: self.buffers.give_back(buffer))


class _Others:
    """Columns beside the features, as many rows at a time as are asked for."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._left: list[Any] = []

    def take(self, rows: int) -> Any:
        import pyarrow as pa

        taken: list[Any] = []
        while rows:
            batch = self._left.pop() if self._left else next(self._batches)
            if len(batch) > rows:
                self._left.append(batch.slice(rows))
                batch = batch.slice(0, rows)
            taken.append(batch)
            rows -= len(batch)
        return pa.Table.from_batches(taken)


class ArrayRows:
    """From an array (n, ..., d)."""

    breaks = None
    counted = True

    def __init__(self, x: StoredArray, labels: dict[str, StoredArray], task: dict[str, StoredArray]) -> None:
        self.x, self.labels, self.task = x, labels, task

    @property
    def location(self) -> Location:
        return self.x.location

    @property
    def rows(self) -> int:
        return self.x.shape[0]

    @property
    def d(self) -> int:
        return self.x.shape[-1]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32) if self.x.bfloat16 else self.x.dtype

    @property
    def row_bytes(self) -> int:
        return math.prod(self.x.shape[1:]) * self.dtype.itemsize

    def batches(self, begin: int, end: int | None, rows: int, buffers: Buffers) -> Iterator[RawBatch]:
        end = self.rows if end is None else end
        labels = [array.chunks(begin, end, rows) for array in (*self.labels.values(), *self.task.values())]
        for X in self.x.chunks(begin, end, rows):
            beside = [next(stream) for stream in labels]
            z = dict(zip(self.labels, beside, strict=False)) or None
            y = dict(zip(self.task, beside[len(self.labels) :], strict=True)) or None
            values = _widened(X) if self.x.bfloat16 else X

            def done(part: Values = X) -> None:
                self.x.release(part)

            yield RawBatch(begin, len(X), values, {}, z, y, None, done)
            begin += len(X)


def _widened(X: Values) -> Values:
    """bfloat16, kept as 16-bit integers, as float32: the same numbers."""
    return (X.astype(np.uint32) << 16).view(np.float32)
