"""Memory maps that give their pages back: what was read once does not count as memory of this process any more."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from excise.errors import FileFormatError

__all__ = ["MappedFile"]


class MappedFile:
    """A local file, read through a map. Arrays made of it stay valid after `release`: their pages are read again."""

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb") as file:
            try:
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:  # no bytes at all
                raise FileFormatError(f"{path} is empty: it has no bytes") from None

    def __len__(self) -> int:
        return len(self.map)

    def array(self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool) -> np.ndarray[Any, Any]:
        """The numbers from byte `offset` on, without reading them.

        Raises:
            FileFormatError: the file ends before they do.
        """
        count = 1
        for length in shape:
            count *= length
        if count * dtype.itemsize > len(self.map) - offset:
            raise FileFormatError(
                f"{self.path} should hold {count * dtype.itemsize:,} bytes of numbers, and has "
                f"{max(0, len(self.map) - offset):,}: was it cut off in transfer?",
                code="cut-off",
            )
        if count == 0:
            return np.zeros(shape, dtype)
        flat = np.frombuffer(self.map, dtype, count, offset)
        return flat.reshape(shape, order="F" if fortran else "C")

    def touch(self, array: np.ndarray[Any, Any]) -> None:
        """Read the pages of a part of an array now, in whatever thread this is."""
        if array.flags.c_contiguous and array.size:
            array.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE].max()

    def release(self, array: np.ndarray[Any, Any]) -> None:
        """Give the pages of a part of an array back; of the whole file where the part lies scattered in it."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        if not array.flags.c_contiguous:
            self.release_all()
            return
        base = np.frombuffer(self.map, np.uint8, 1).__array_interface__["data"][0]
        begin = array.__array_interface__["data"][0] - base
        self.release_range(begin, begin + array.nbytes)

    def release_range(self, begin: int, end: int) -> None:
        """Give back the pages that lie between two bytes."""
        first, last = -(-begin // mmap.PAGESIZE), end // mmap.PAGESIZE  # whole pages alone
        if last > first and hasattr(mmap, "MADV_DONTNEED"):
            self.map.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)

    def release_all(self) -> None:
        """Give the pages of the whole file back."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.map.madvise(mmap.MADV_DONTNEED)
