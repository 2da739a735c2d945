"""NumPy files as sources of rows: .npy is memory-mapped, .npz is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
        loaded: Any = np.load(path, mmap_mode="r" if path.suffix == ".npy" else None, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise FileFormatError(f"{path} is not a whole NumPy file ({error})") from None
    if path.suffix == ".npz":
        names = list(loaded.files)
        if key is None:
            if len(names) != 1 and what not in names:
                raise InputError(f"{path} holds the arrays {', '.join(names)}: say which one is {what}")
            key = what if what in names else names[0]
        if key not in names:
            raise InputError(f"{path} has no array {key!r}; it holds {', '.join(names)}")
        loaded = loaded[key]
    if loaded.ndim == 0:
        raise InputError(f"{path} holds a single number, expected an array")
    return ArraySource(loaded)
