"""Writers of array files: rows are appended as they come; all other arrays of a file stay as they were."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from excise.data.array_files import StoredArray
from excise.data.table import Batch
from excise.errors import ExciseError

__all__ = ["NpyWriter", "NpzWriter", "SafetensorsWriter"]

HEADER = 128  # bytes, whatever the number of rows will be
Values = np.ndarray[Any, Any]


def _header(dtype: np.dtype[Any], shape: tuple[int, ...], size: int) -> bytes:
    """A .npy header of exactly `size` bytes."""
    about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    text = repr(about).encode("latin1")
    room = size - 10 - 1
    if len(text) > room:
        raise ExciseError(f"an array of shape {shape} does not fit into the header of a .npy file")
    return b"\x93NUMPY\x01\x00" + (size - 10).to_bytes(2, "little") + text.ljust(room) + b"\n"


class NpyWriter:
    """The number of rows is put into the header at the end."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 (closed in close)
        self._rows = 0
        self._like: tuple[np.dtype[Any], tuple[int, ...]] | None = None

    def write(self, batch: Batch, erased: Values) -> None:
        if self._like is None:
            self._like = erased.dtype, erased.shape[1:]
            self._file.write(b"\0" * HEADER)
        self._file.write(np.ascontiguousarray(erased).reshape(-1).view(np.uint8).data)
        self._rows += len(erased)

    def end_group(self) -> None:
        return None

    def close(self, failed: bool) -> None:
        try:
            if not failed and self._like is not None:
                self._file.seek(0)
                self._file.write(_header(self._like[0], (self._rows, *self._like[1]), HEADER))
        finally:
            self._file.close()


def _refuse_drops(batch: Batch, array: StoredArray) -> None:
    if batch.bad.count:
        raise ExciseError(
            f"{array.location}: rows cannot be dropped from one of several arrays ({batch.bad.describe()}): write a .npy "
            f"file, or mend the rows",
            code="bad-rows",
        )


class NpzWriter:
    """An archive with the same members; that of the features is new."""

    def __init__(self, path: Path, array: StoredArray) -> None:
        self.array, self._rows = array, array.shape[0]
        self._source = array.location.open()
        self._old = zipfile.ZipFile(self._source)
        self._new = zipfile.ZipFile(path, "w")
        self._member: Any = None
        for entry in self._old.infolist():
            if entry.filename.removesuffix(".npy") != array.name:
                fresh = _entry(entry)
                with self._old.open(entry) as old, self._new.open(fresh, "w", force_zip64=True) as new:
                    shutil.copyfileobj(old, new, 2**20)

    def write(self, batch: Batch, erased: Values) -> None:
        _refuse_drops(batch, self.array)
        if self._member is None:
            names = {entry.filename.removesuffix(".npy"): entry for entry in self._old.infolist()}
            self._member = self._new.open(_entry(names[self.array.name]), "w", force_zip64=True)
            self._member.write(_header(erased.dtype, (self._rows, *erased.shape[1:]), HEADER))
        self._member.write(np.ascontiguousarray(erased).reshape(-1).view(np.uint8).data)

    def end_group(self) -> None:
        return None

    def close(self, failed: bool) -> None:
        if self._member is not None:
            self._member.close()
        self._new.close()
        self._old.close()
        self._source.close()


def _entry(old: zipfile.ZipInfo) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(old.filename, old.date_time)
    entry.compress_type = old.compress_type
    return entry


class SafetensorsWriter:
    """A copy of the file, in which the numbers of one tensor are overwritten."""

    def __init__(self, path: Path, array: StoredArray) -> None:
        if array.dtype.kind not in "f" and not array.bfloat16:
            raise ExciseError(
                f"{array.location}: tensor {array.name!r} holds {array.dtype}, and erased features are floats: write a .npy "
                f"file"
            )
        self.array = array
        with array.location.open() as source, open(path, "wb") as copy:
            shutil.copyfileobj(source, copy, 2**20)
        self._file = open(path, "r+b")  # noqa: SIM115 (closed in close)
        self._file.seek(array.offset)

    def write(self, batch: Batch, erased: Values) -> None:
        _refuse_drops(batch, self.array)
        self._file.write(np.ascontiguousarray(erased).reshape(-1).view(np.uint8).data)

    def end_group(self) -> None:
        return None

    def close(self, failed: bool) -> None:
        self._file.close()
