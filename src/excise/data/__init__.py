"""Data on disk, in batches: arrays, tables, folders of them, on this machine or behind a URL."""

from excise.data.checkpoint import Checkpoint
from excise.data.fitting import Fitted, fit_table
from excise.data.gathering import Gathered, Recipe, gather, gather_part, learn_recipe
from excise.data.opening import open_table
from excise.data.table import Batch, Part, Table

__all__ = [
    "Batch",
    "Checkpoint",
    "Fitted",
    "Gathered",
    "Part",
    "Recipe",
    "Table",
    "fit_table",
    "gather",
    "gather_part",
    "learn_recipe",
    "open_table",
]
