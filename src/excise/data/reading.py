"""X and z from files, in batches that can be started again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from excise.data.arrays import ArraySource, open_array
from excise.data.parquet import ParquetFrame, ParquetMatrix, open_parquet
from excise.errors import ExciseError, InputError
from excise.moments.moments import Moments

__all__ = ["Table", "aligned", "open_table"]

BATCH_BYTES = 2**26
SUFFIXES = (".npy", ".npz", ".parquet")


class Source(Protocol):
    n: int

    def batches(self, rows: int) -> Iterator[Any]: ...


@dataclass(frozen=True)
class Table:
    """Features and, where given, labels of the same rows.

    >>> import numpy as np, tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> np.save(folder / "x.npy", np.arange(8.0).reshape(4, 2)); np.save(folder / "z.npy", np.array([0, 1, 0, 1]))
    >>> table = open_table(folder / "x.npy", folder / "z.npy")
    >>> table.n, table.d, [X.shape for X, z in table.batches(3)], table.moments().n
    (4, 2, [(3, 2), (1, 2)], 4.0)
    """

    x: Source
    z: Source | None
    d: int

    @property
    def n(self) -> int:
        return self.x.n

    @property
    def batch_rows(self) -> int:
        return max(BATCH_BYTES // (4 * self.d), 256)

    def batches(self, rows: int | None = None) -> Iterator[tuple[Any, Any]]:
        """(X, z) for all rows, in order; z is None where there are no labels."""
        rows = rows or self.batch_rows
        if self.z is None:
            for X in self.x.batches(rows):
                yield X, None
        else:
            yield from aligned(self.x.batches(rows), self.z.batches(rows))

    def moments(self, m: Moments | None = None, progress: Any = None) -> Moments:
        """Gather Moments over all batches; `progress(rows)` is called after each."""
        m = Moments() if m is None else m
        for X, z in self.batches():
            m.update(X, z)
            if progress is not None:
                progress(len(X))
        return m


def aligned(left: Iterator[Any], right: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """Pairs of equal length from two streams of batches whose borders differ (Parquet breaks at row groups)."""
    a = b = None
    while True:
        a = next(left, None) if a is None or len(a) == 0 else a
        b = next(right, None) if b is None or len(b) == 0 else b
        if a is None or b is None:
            return
        rows = min(len(a), len(b))
        yield a[:rows], b[:rows]
        a, b = a[rows:], b[rows:]


def open_table(
    x: str | os.PathLike[str],
    z: str | os.PathLike[str] | None = None,
    features: Sequence[str] | None = None,
    concept: Sequence[str] | None = None,
) -> Table:
    """Open a file of features and, optionally, the labels of its rows.

    Args:
        x: .npy (memory-mapped), .npz or .parquet.
        z: a file of labels; where it is left out, the labels are `concept` columns of x.
        features: the columns (Parquet) or the array (.npz) that hold the features.
        concept: the columns (Parquet) or the array (.npz) that hold the labels.

    Raises:
        FileNotFoundError, InputError, FileFormatError: before any row is read.
    """
    path = _existing(x)
    names = list(concept or [])
    if path.suffix == ".parquet":
        xs: Source = ParquetMatrix(path, list(features) if features else None, names if z is None else [])
        d = _parquet_width(xs)
    else:
        xs = open_array(path, _one_name(path, features, "features"), "X")
        if xs.array.ndim < 2 or 0 in xs.array.shape:
            raise InputError(f"{path} has shape {xs.array.shape}: features must be (n, d)")
        d = int(xs.array.shape[-1])
    zs = None if z is None and not names else _labels(_existing(z) if z is not None else path, names)
    if zs is not None and zs.n != xs.n:
        raise InputError(f"{x} has {xs.n} rows, {z or x} has {zs.n} labels: pass one label per row")
    if xs.n == 0:
        raise InputError(f"{x} has no rows")
    return Table(xs, zs, d)


def _labels(path: Path, names: list[str]) -> Source:
    if path.suffix == ".parquet":
        columns = names or list(open_parquet(path).schema_arrow.names)
        return ParquetFrame(path, columns)
    source: ArraySource = open_array(path, _one_name(path, names, "labels"), "z")
    return source


def _one_name(path: Path, names: Sequence[str] | None, what: str) -> str | None:
    """The array of a .npz file by its name; a .npy file has no names."""
    if not names:
        return None
    if path.suffix == ".npy":
        raise InputError(
            f"{path} is one array without names, so {', '.join(names)} cannot be chosen from it: pass the {what} as a file of their own"
        )
    if len(names) > 1:
        raise InputError(
            f"{path}: the {what} must be one array, got {', '.join(names)}; stack them, or use Parquet for several columns"
        )
    return names[0]


def _parquet_width(source: Any) -> int:
    first = next(source.batches(1), None)
    return 0 if first is None else int(first.shape[1])


def _existing(path: str | os.PathLike[str]) -> Path:
    found = Path(path)
    if not found.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    if found.suffix not in SUFFIXES:
        raise ExciseError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}")
    return found
