"""Data on disk, in batches: arrays, tables, folders of them, on this machine or behind a URL."""

from excise.data.opening import open_table
from excise.data.table import Batch, Part, Table

__all__ = ["Batch", "Part", "Table", "open_table"]
