"""Labels on their way from files: an array, a table of columns, or a dict of arrays, cut and joined alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from excise.data.array_files import StoredArray
from excise.data.table_files import TableFile

__all__ = ["ArrayLabels", "LabelSource", "Puller", "TableLabels", "count", "cut", "join", "keep", "plain"]

PIECE = 2**16  # rows


def cut(labels: Any, begin: int, end: int) -> Any:
    if isinstance(labels, dict):
        return {name: part[begin:end] for name, part in labels.items()}
    return labels.slice(begin, end - begin) if hasattr(labels, "column_names") else labels[begin:end]


def count(labels: Any) -> int:
    return len(next(iter(labels.values()))) if isinstance(labels, dict) else len(labels)


def join(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, dict):
        return {name: np.concatenate([part[name] for part in parts]) for name in first}
    if hasattr(first, "column_names"):
        import pyarrow as pa

        return pa.concat_tables(parts, promote_options="permissive")
    return np.concatenate(parts)


def keep(labels: Any, good: np.ndarray[Any, Any]) -> Any:
    """The rows where `good` is True."""
    if labels is None:
        return None
    if isinstance(labels, dict):
        return {name: part[good] for name, part in labels.items()}
    return labels.filter(good) if hasattr(labels, "column_names") else labels[good]


def plain(labels: Any) -> Any:
    """As users pass them: one column as a column, several as a table or a dict."""
    if isinstance(labels, dict):
        return next(iter(labels.values())) if len(labels) == 1 else labels
    if hasattr(labels, "column_names") and labels.num_columns == 1:
        return labels.column(0)
    return labels


class LabelSource(Protocol):
    """The labels of one file."""

    @property
    def rows(self) -> int: ...

    def stream(self, begin: int, end: int | None) -> Iterator[Any]:
        """Labels of rows begin to end, in pieces."""
        ...


class TableLabels:
    def __init__(self, file: TableFile, columns: list[str]) -> None:
        self.file, self.columns = file, columns

    @property
    def rows(self) -> int:
        return self.file.rows

    def stream(self, begin: int, end: int | None) -> Iterator[Any]:
        import pyarrow as pa

        for batch in self.file.stream(self.columns, begin, end, PIECE):
            yield pa.Table.from_batches([batch]).select(self.columns)


class ArrayLabels:
    def __init__(self, arrays: dict[str, StoredArray]) -> None:
        self.arrays = arrays

    @property
    def rows(self) -> int:
        return next(iter(self.arrays.values())).shape[0]

    def stream(self, begin: int, end: int | None) -> Iterator[Any]:
        end = self.rows if end is None else end
        streams = [array.chunks(begin, end, PIECE) for array in self.arrays.values()]
        for parts in zip(*streams, strict=True):
            yield dict(zip(self.arrays, parts, strict=True)) if len(parts) > 1 else parts[0]


class Puller:
    """Labels of several files, one after the other, from row `begin` of all of them on, as many at a time as are asked for."""

    def __init__(self, sources: Sequence[LabelSource], begin: int) -> None:
        self._pieces = _from(sources, begin)
        self._rest: Any = None

    def take(self, rows: int) -> Any:
        """The next labels; fewer at the end, None after it."""
        parts: list[Any] = []
        while rows > 0:
            if self._rest is None:
                self._rest = next(self._pieces, None)
                if self._rest is None:
                    break
            size = count(self._rest)
            parts.append(cut(self._rest, 0, min(rows, size)))
            self._rest = cut(self._rest, rows, size) if size > rows else None
            rows -= count(parts[-1])
        return join(parts) if parts else None


def _from(sources: Sequence[LabelSource], begin: int) -> Iterator[Any]:
    for i, source in enumerate(sources):
        last = i == len(sources) - 1
        if not last and begin >= source.rows:
            begin -= source.rows
            continue
        yield from source.stream(begin, None)
        begin = 0
