"""Erased features to files: batch by batch, with reading, arithmetic and writing side by side.

A file appears when it is whole. Of a folder, files that were finished stay finished: a run that was stopped goes on.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import PurePosixPath
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from excise.data import outputs
from excise.data.array_writers import NpyWriter, NpzWriter, SafetensorsWriter
from excise.data.bad_rows import BadRows
from excise.data.rows import ArrayRows, TableRows
from excise.data.table import Batch, Part, Table
from excise.data.table_files import ArrowFile, ParquetFile
from excise.data.table_writers import ArrowWriter, CsvWriter, ParquetWriter
from excise.erasers.protocol import Eraser
from excise.errors import ExciseError, missing_extra

__all__ = ["Writer", "check_target", "erase_file", "groups_of", "open_writer"]

GROUP_BYTES = 400 * 10**6  # of a row group that is written in one piece: larger ones are split
Values = np.ndarray[Any, Any]


class Writer(Protocol):
    """One file that is being written."""

    def write(self, batch: Batch, erased: Values) -> None: ...
    def end_group(self) -> None:
        """The rows so far make a row group, in formats that have them."""
        ...

    def close(self, failed: bool) -> None: ...


def check_target(source: Any, target: str) -> None:
    """
    Raises:
        ExciseError: this kind of file cannot be made of that.
    """
    old, new = source.location.suffix, PurePosixPath(target).suffix.lower()
    allowed = {old, ".npy", ".parquet"} | ({".arrow", ".feather"} if isinstance(source, TableRows) else set())
    if new not in allowed:
        raise ExciseError(
            f"cannot write {target}: from a {old} file expected one that ends in {', '.join(sorted(allowed))}",
            code="file-format",
        )
    if new != old and isinstance(source, ArrayRows):
        if new == ".parquet" and len(source.x.shape) > 2:
            raise ExciseError(f"cannot write {target}: the features have more than two dimensions; write a .npy file")
        if source.x.bfloat16:
            raise ExciseError(f"cannot write {target}: only .safetensors files hold bfloat16", code="file-format")


def open_writer(source: Any, path: Any, suffix: str) -> Writer:
    if suffix == ".npy":
        return NpyWriter(path)
    if suffix == ".npz":
        return NpzWriter(path, source.x)
    if suffix == ".safetensors":
        return SafetensorsWriter(path, source.x)
    table = source if isinstance(source, TableRows) else None
    if suffix == ".csv":
        assert table is not None
        return CsvWriter(path, table)
    return ParquetWriter(path, table) if suffix == ".parquet" else ArrowWriter(path, table)


def groups_of(table: Table, file: int) -> tuple[list[Part], set[int | None]]:
    """The row groups of a file, and the rows at which row groups end that are to be written.

    Those of the source are kept; larger ones than memory should hold are cut, between two batches.
    """
    source: Any = table.sources[file]
    if not source.counted:
        return [Part(file, 0, None)], {None}
    starts = [0]
    width = max(1, source.row_bytes)
    if isinstance(source, TableRows) and isinstance(source.file, ParquetFile):
        starts = source.file.breaks or [0]
        size = sum(source.file.metadata.row_group(g).total_byte_size for g in range(len(starts)))
        width = max(width, size // max(1, source.rows))
    elif isinstance(source, TableRows) and isinstance(source.file, ArrowFile):
        starts = source.file.groups
    parts: list[Part] = []
    ends: set[int | None] = set()
    for begin, end in zip(starts, [*starts[1:], source.rows], strict=True):
        if end > begin:
            pieces = -(-(end - begin) * width // GROUP_BYTES)
            batches = -(-(end - begin) // (max(1, pieces) * table.batch_rows))  # of one piece
            parts.append(Part(file, begin, end))
            ends |= {*range(begin + batches * table.batch_rows, end, batches * table.batch_rows), end}
    return parts, ends


class _Background:
    """A writer in a thread of its own. Errors come out at the next call."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._work: queue.Queue[Any] = queue.Queue(maxsize=1)
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="excise-writing", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            job = self._work.get()
            if job is None:
                return
            if not self._failed:
                try:
                    job()
                except BaseException as error:
                    self._failed.append(error)

    def do(self, job: Callable[[], None]) -> None:
        if self._failed:
            raise self._failed[0]
        self._work.put(job)

    def __enter__(self) -> _Background:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._work.put(None)
        self._thread.join()
        failed = kind is not None or bool(self._failed)
        try:
            self._writer.close(failed)
        except BaseException:
            if not failed:
                raise
        if self._failed and kind is None:
            raise self._failed[0]


def erase_file(
    eraser: Eraser,
    table: Table,
    file: int,
    target: str,
    rounding: str = "nearest",
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> tuple[int, BadRows]:
    """Write the erased rows of one file of a table; the rows that were written, and those that were dropped.

    Raises:
        ExciseError: bad rows, or an edit that does not fit the dtype, with the file.
        OSError: the disk is full, and the like. Nothing is left at the target in either case, or the old file.
    """
    source: Any = table.sources[file]
    check_target(source, target)
    parts, ends = groups_of(table, file)
    written, bad = 0, BadRows()
    with outputs.writing(target) as path:
        writer = open_writer(source, path, PurePosixPath(target).suffix.lower())
        with _Background(writer) as background:
            for number, batch in enumerate(table.stream(parts)):
                erased = _erase(eraser, table, batch, rounding, (seed << 40) + (file << 20) + number)
                background.do(lambda batch=batch, erased=erased: writer.write(batch, erased))  # type: ignore[misc]
                if batch.begin + batch.count in ends:
                    background.do(writer.end_group)
                written += len(erased)
                bad += batch.bad
                if progress is not None:
                    progress(batch.count)
    return written, bad


def _erase(eraser: Eraser, table: Table, batch: Batch, rounding: str, seed: int) -> Values:
    source: Any = table.sources[batch.file]
    try:
        if isinstance(source, ArrayRows) and source.x.bfloat16:
            return _erase_bfloat16(eraser, batch, rounding, seed)
        return np.asarray(eraser(batch.X, batch.z, rounding=rounding, rounding_seed=seed))
    except ExciseError as error:
        if error.code in ("not-finite", "missing-labels"):
            raise table.refusal(batch.file) from None
        raise type(error)(f"{source.location}, rows {batch.begin} to {batch.begin + batch.count}: {error}") from None


def _erase_bfloat16(eraser: Eraser, batch: Batch, rounding: str, seed: int) -> Values:
    try:
        import torch
    except ModuleNotFoundError:
        raise missing_extra("erasing bfloat16 features needs PyTorch", "torch") from None
    X = torch.from_numpy(np.ascontiguousarray(batch.X)).to(torch.bfloat16)  # exact: it was widened from it
    out = eraser(X, batch.z, rounding=rounding, rounding_seed=seed)
    return np.asarray(out.view(torch.int16).numpy())
