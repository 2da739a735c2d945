"""Files of named arrays (.npy, .npz, .safetensors): memory-mapped where the bytes lie as they are, streamed otherwise.

Nothing is ever unpickled, and nothing is allocated because a header says so: an array that is larger than its file is
refused before it is read.
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from excise.data.locations import Location
from excise.data.mapped import MappedFile
from excise.errors import ExciseError, FileFormatError

__all__ = ["SAFETENSORS_DTYPES", "StoredArray", "open_arrays", "read_safetensors_header"]

MOST_HEADER = 100_000_000  # bytes of a safetensors header, as in the library itself
SAFETENSORS_DTYPES = {
    **{f"F{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    **{f"I{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    "BOOL": np.dtype(np.bool_),
    "BF16": np.dtype("<u2"),  # the upper half of a float32
}


@dataclass(frozen=True)
class StoredArray:
    """An array in a file: its shape is known, its numbers are read when they are asked for."""

    location: Location
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int  # of the first number, in bytes from where `start` opens
    fortran: bool = False
    bfloat16: bool = False
    mapped: MappedFile | None = None
    start: Callable[[], AbstractContextManager[BinaryIO]] | None = None  # where the bytes cannot be mapped

    def whole(self) -> np.ndarray[Any, Any]:
        """All of it: a view of the map, or read."""
        if self.mapped is not None:
            return self.mapped.array(self.offset, self.dtype, self.shape, self.fortran)
        return np.concatenate(list(self.chunks(0, self.shape[0], max(1, self.shape[0]))))

    def chunks(self, begin: int, end: int, rows: int) -> Iterator[np.ndarray[Any, Any]]:
        """Rows begin to end, `rows` at a time.

        Raises:
            FileFormatError: the file ends before that.
        """
        if self.mapped is not None:
            array = self.whole()
            for at in range(begin, end, rows):
                part = array[at : min(at + rows, end)]
                self.mapped.touch(part)
                yield part
            return
        assert self.start is not None
        width = math.prod(self.shape[1:])
        with self.start() as file:
            _skip(file, self.offset + begin * width * self.dtype.itemsize)
            for at in range(begin, end, rows):
                count = (min(at + rows, end) - at) * width
                try:
                    data = file.read(count * self.dtype.itemsize)
                except (zipfile.BadZipFile, zlib.error, EOFError, OSError):
                    data = b""
                if len(data) < count * self.dtype.itemsize:
                    raise _not_whole(self.location)
                yield np.frombuffer(data, self.dtype).reshape(-1, *self.shape[1:])

    def release(self, part: np.ndarray[Any, Any]) -> None:
        if self.mapped is not None:
            self.mapped.release(part)


def _skip(file: BinaryIO, count: int) -> None:
    """Go on by `count` bytes, also where the only way is to read them."""
    while count > 0:
        count -= len(file.read(min(count, 2**20)) or b"\0" * count)


def open_arrays(location: Location) -> dict[str, StoredArray]:
    """The arrays of a file by name; the one of a .npy file is called "".

    Raises:
        FileFormatError: not such a file, cut off, or with arrays of Python objects.
    """
    try:
        if location.suffix == ".npy":
            return {"": _open_npy(location)}
        if location.suffix == ".npz":
            return _open_npz(location)
        return _open_safetensors(location)
    except (ExciseError, FileNotFoundError, PermissionError):
        raise
    except _HoldsObjects:
        raise FileFormatError(
            f"{location} holds pickled Python objects (dtype object), which excise never loads, because loading them can run "
            f"code. Save plain strings or numbers instead: np.save(path, z.astype(str))",
            code="python-objects",
        ) from None
    except Exception:  # whatever NumPy's, zip's and JSON's parsers raise on bytes that are something else
        raise _not_whole(location) from None


def _not_whole(location: Location) -> FileFormatError:
    kind = "safetensors" if location.suffix == ".safetensors" else "NumPy"
    return FileFormatError(f"{location} is not a whole {kind} file of numbers or strings", code="cut-off")


class _HoldsObjects(ValueError):
    """An array of pickled Python objects."""


def _npy_header(file: BinaryIO) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """dtype, shape, whether in Fortran's order, and the size of the header in bytes."""
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise _HoldsObjects
    if dtype.fields is not None or dtype.itemsize == 0:
        raise ValueError("an array of records")
    if not shape or any(length < 0 for length in shape):
        raise ValueError("not an array of rows")
    return dtype, tuple(shape), bool(fortran), file.tell()


def _open_npy(location: Location) -> StoredArray:
    with location.open() as file:
        dtype, shape, fortran, offset = _npy_header(file)
    if location.is_local:
        mapped = MappedFile(location.path)
        mapped.array(offset, dtype, shape, fortran)  # the file is long enough
        return StoredArray(location, "", dtype, shape, offset, fortran, mapped=mapped)
    if math.prod(shape) * dtype.itemsize > location.size - offset:
        raise _not_whole(location)
    if fortran and len(shape) > 1:
        raise FileFormatError(f"{location} is in Fortran's order, which cannot be streamed: copy it to this machine")
    return StoredArray(location, "", dtype, shape, offset, start=location.open)


def _open_npz(location: Location) -> dict[str, StoredArray]:
    out: dict[str, StoredArray] = {}
    with location.open() as file, zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            with archive.open(entry) as member:
                dtype, shape, fortran, header = _npy_header(member)  # type: ignore[arg-type]
            if math.prod(shape) * dtype.itemsize != entry.file_size - header:
                raise ValueError("the header does not match the size of the array")
            name = entry.filename.removesuffix(".npy")
            if location.is_local and entry.compress_type == zipfile.ZIP_STORED:
                mapped = MappedFile(location.path)
                offset = _data_offset(file, entry) + header
                mapped.array(offset, dtype, shape, fortran)
                out[name] = StoredArray(location, name, dtype, shape, offset, fortran, mapped=mapped)
            elif fortran and len(shape) > 1:
                raise FileFormatError(
                    f"{location}: array {name!r} is compressed and in Fortran's order, which cannot be streamed: save it "
                    f"with np.ascontiguousarray"
                )
            else:
                out[name] = StoredArray(location, name, dtype, shape, header, start=_member(location, entry.filename))
    return out


def _data_offset(file: BinaryIO, entry: zipfile.ZipInfo) -> int:
    """Where the bytes of a stored member begin: the local header has names of its own lengths."""
    file.seek(entry.header_offset + 26)
    lengths = file.read(4)
    return entry.header_offset + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")


def _member(location: Location, name: str) -> Callable[[], AbstractContextManager[BinaryIO]]:
    from contextlib import contextmanager

    @contextmanager
    def start() -> Iterator[BinaryIO]:
        with location.open() as file, zipfile.ZipFile(file) as archive, archive.open(name) as member:
            yield member  # type: ignore[misc]

    return start


def read_safetensors_header(location: Location) -> tuple[dict[str, Any], int]:
    """The header and where the numbers begin.

    Raises:
        ValueError: it is not one.
    """
    with location.open() as file:
        size = int.from_bytes(file.read(8), "little")
        if size > min(MOST_HEADER, location.size - 8):
            raise ValueError("a header beyond the end of the file")
        header = json.loads(file.read(size))
    if not isinstance(header, dict):
        raise ValueError("a header that is no object")
    return header, 8 + size


def _open_safetensors(location: Location) -> dict[str, StoredArray]:
    header, base = read_safetensors_header(location)
    room = location.size - base
    mapped = MappedFile(location.path) if location.is_local else None
    out: dict[str, StoredArray] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype = SAFETENSORS_DTYPES.get(entry["dtype"])
        begin, end = entry["data_offsets"]
        shape = tuple(int(length) for length in entry["shape"])
        if dtype is None or not shape:
            continue  # kinds of numbers that are neither features nor labels
        if not 0 <= begin <= end <= room or math.prod(shape) * dtype.itemsize != end - begin or min(shape) < 0:
            raise ValueError("offsets that do not fit the shape")
        out[name] = StoredArray(
            location,
            name,
            dtype,
            shape,
            base + begin,
            bfloat16=entry["dtype"] == "BF16",
            mapped=mapped,
            start=None if location.is_local else location.open,
        )
    return out
