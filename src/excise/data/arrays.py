"""NumPy files as sources of rows: .npy is memory-mapped, .npz is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from excise.errors import FileFormatError, InputError

__all__ = ["ArraySource", "open_array"]


class ArraySource:
    """Rows of an array, in batches."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.n = int(array.shape[0])

    def batches(self, rows: int) -> Iterator[Any]:
        for begin in range(0, self.n, rows):
            yield self.array[begin : begin + rows]


def open_array(path: Path, key: str | None, what: str) -> ArraySource:
    """The array of a .npy file, or the array `key` of a .npz file.

    Raises:
        FileFormatError: not a NumPy file, or one of Python objects.
        InputError: no such array in the .npz file.
    """
    try:
        if path.suffix == ".npy":
            loaded: Any = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
                loaded = archive[_chosen(path, list(archive.files), key, what)]
    except InputError:
        raise
    except (ValueError, EOFError, OSError, BadZipFile):
        raise FileFormatError(
            f"{path} is not a whole NumPy file of numbers or strings (Python objects are never read)"
        ) from None
    if loaded.ndim == 0:
        raise InputError(f"{path} holds a single number, expected an array")
    return ArraySource(loaded)


def _chosen(path: Path, names: list[str], key: str | None, what: str) -> str:
    if key is None:
        if len(names) != 1 and what not in names:
            raise InputError(
                f"{path} holds the arrays {', '.join(names)}: say which one is {what} (--features and --concept on the command line)"
            )
        return what if what in names else names[0]
    if key not in names:
        raise InputError(f"{path} has no array {key!r}; it holds {', '.join(names)}")
    return key
