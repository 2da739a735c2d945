"""A pass over data that survives being killed: how far it came and what it had gathered, in one file.

The file is written beside its target and renamed, so that it is always whole. It names the input by size, time of change
and samples of its bytes: going on with other data is refused.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from excise import files
from excise.data.gathering import Gathered, Recipe
from excise.data.table import Table
from excise.errors import ExciseError, FileFormatError

__all__ = ["Checkpoint"]

KIND = "FitCheckpoint"


class Checkpoint:
    """Where a pass is written down, and how often."""

    def __init__(self, path: str | os.PathLike[str], every: float = 60.0) -> None:
        """
        Args:
            path: of the file.
            every: seconds between two writings.

        Raises:
            ExciseError: the folder does not exist, or `every` is negative.
        """
        if not every >= 0:
            raise ExciseError(f"the seconds between checkpoints must be at least 0, got {every!r}")
        if not Path(os.path.realpath(path)).parent.is_dir():
            raise ExciseError(f"cannot write {path}: the folder {Path(path).parent} does not exist", code="no-folder")
        self.path, self.every = Path(path), every
        self.resumed = 0  # rows that an earlier run had read
        self._written = time.monotonic()
        self._run: dict[str, Any] = {}

    def start(self, table: Table, recipe: Recipe) -> tuple[Gathered, int, int, int]:
        """What was gathered so far, and where to go on: part, rows of it, batches in all.

        Raises:
            ExciseError: the file belongs to another run, or the input has changed since.
            FileFormatError: it is not a checkpoint.
        """
        self._run = _describe(table, recipe)
        if not self.path.exists():
            return recipe.start(), 0, 0, 0
        kind, arrays, about = files.read(self.path)
        if kind != KIND:
            raise FileFormatError(f"{self.path} holds a {kind}, expected a checkpoint of `excise fit --checkpoint`")
        self._refuse_another(about["run"])
        state = Gathered.from_stored(arrays, about["state"], recipe)
        part, rows, batches = about["position"]
        self.resumed = state.rows
        return state, part, rows, batches

    def _refuse_another(self, before: dict[str, Any]) -> None:
        again = f"delete {self.path} to start again"
        for old, new in zip(before["files"], self._run["files"], strict=False):
            if old != new:
                what = next(name for name in new if old.get(name) != new[name])
                raise ExciseError(
                    f"{new['path']} has changed since the checkpoint was written ({what}: {old.get(what)}, now "
                    f"{new[what]}): {again}",
                    code="input-changed",
                )
        for name, now in self._run.items():
            if before.get(name) != now:
                raise ExciseError(
                    f"{self.path} belongs to another run (other {name.replace('_', ' ')}): {again}, or pass another file",
                    code="another-run",
                )

    def offer(self, state: Gathered, part: int, rows: int, batches: int) -> None:
        """Write the state down if it is time to."""
        if time.monotonic() - self._written >= self.every:
            arrays, about = state.stored()
            files.write(self.path, KIND, arrays, {"run": self._run, "state": about, "position": [part, rows, batches]})
            self._written = time.monotonic()

    def remove(self) -> None:
        """The pass is over and its result is safe."""
        self.path.unlink(missing_ok=True)


def _describe(table: Table, recipe: Recipe) -> dict[str, Any]:
    sources = [*table.sources, *table.labels, *table.task]
    locations = {str(place): place for source in sources for place in _locations(source)}
    return {
        "files": [location.fingerprint() for location in locations.values()],
        "columns": list(table.columns),
        "concept_columns": list(table.concept_columns),
        "skip_bad": table.skip_bad,
        "batch_rows": table.batch_rows,
        "parts": len(table.parts()),
        "needs": recipe.needs,
        "concept": [block.kind for block in recipe.concept.blocks],
        "task": None if recipe.task is None else [block.kind for block in recipe.task.blocks],
    }


def _locations(source: Any) -> list[Any]:
    if hasattr(source, "arrays"):
        return [array.location for array in source.arrays.values()]
    return [source.file.location if hasattr(source, "file") else source.location]
