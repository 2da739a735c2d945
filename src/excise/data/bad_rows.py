"""Rows that cannot be used: counted by what is wrong with them, with the first place of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from excise.errors import InputError

__all__ = ["BadRows"]

Flags = np.ndarray[Any, Any]  # (n,) bool


@dataclass
class BadRows:
    """Counts of rows by reason; a row counts once, by the first reason that was found.

    >>> bad = BadRows().add("a.parquet", 100, {"a missing label": np.array([False, True, True])})
    >>> bad.count, bad.reasons
    (2, {'a missing label': [2, 'a.parquet', 101]})
    """

    count: int = 0
    reasons: dict[str, list[Any]] = field(default_factory=dict)  # reason -> [count, file, first row]

    def add(self, file: str, begin: int, found: dict[str, Flags]) -> BadRows:
        """Rows of a file from row `begin` on; the same object."""
        seen: Flags | None = None
        for reason, flags in found.items():
            new = flags if seen is None else flags & ~seen
            seen = flags if seen is None else seen | flags
            rows = np.flatnonzero(new)
            if len(rows):
                entry = self.reasons.setdefault(reason, [0, file, begin + int(rows[0])])
                entry[0] += len(rows)
                self.count += len(rows)
        return self

    def __add__(self, other: BadRows) -> BadRows:
        out = BadRows(self.count + other.count, {reason: list(entry) for reason, entry in self.reasons.items()})
        for reason, (count, file, row) in other.reasons.items():
            if reason in out.reasons:
                out.reasons[reason][0] += count
            else:
                out.reasons[reason] = [count, file, row]
        return out

    def describe(self) -> str:
        return ", ".join(
            f"{count:,} with {reason} (first at row {row}{'' if len(self._files) == 1 else f' of {file}'})"
            for reason, (count, file, row) in self.reasons.items()
        )

    @property
    def _files(self) -> set[str]:
        return {entry[1] for entry in self.reasons.values()}

    def error(self, file: str, rows: int) -> InputError:
        """What to raise where bad rows are not to be dropped."""
        return InputError(
            f"{file}: {self.count:,} of {rows:,} rows cannot be used: {self.describe()}. Mend or remove them, or drop "
            f"them with --skip-bad (skip_bad=True)",
            code="bad-rows",
        )
