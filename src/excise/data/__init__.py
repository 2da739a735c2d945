"""Data on disk, in batches: .npy (memory-mapped), .npz and Parquet."""

from excise.data.reading import Table, open_table
from excise.data.writing import apply_to_file

__all__ = ["Table", "apply_to_file", "open_table"]
