"""A Parquet file as pyarrow opens it, with errors as ours, for those who read its rows one by one."""

from __future__ import annotations

import os
from typing import Any

from excise.data.locations import Location
from excise.data.table_files import ParquetFile, require_pyarrow

__all__ = ["open_parquet"]


def open_parquet(path: str | os.PathLike[str]) -> Any:
    """
    Raises:
        ExciseError: pyarrow is not installed.
        FileFormatError: it is cut off, or not a Parquet file.
    """
    require_pyarrow(os.fspath(path))
    return ParquetFile(Location(os.fspath(path), os.path.basename(path))).open()
