"""Table: features and labels of the same rows, from any number of files, in batches that can be started again.

The batches of a table are the same whoever reads it and however often: each file is cut into parts, each part into
batches, by the sizes of things alone. So a pass that was interrupted can go on, and parts can be read on other machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from excise.data import labels as label_pieces
from excise.data.bad_rows import BadRows
from excise.data.columns import LeftOut
from excise.data.labels import LabelSource, Puller
from excise.data.matrix import label_flags, not_finite_flags
from excise.data.read_ahead import read_ahead
from excise.data.rows import Buffers, FeatureSource, RawBatch
from excise.errors import ExciseError, InputError
from excise.moments.moments import Moments

__all__ = ["Batch", "Part", "Table"]

BATCH_BYTES = 2**26
PART_BYTES = 2**28


@dataclass(frozen=True)
class Part:
    """Rows begin to end of one file; `end` is None where the rows of the file were not counted."""

    file: int
    begin: int
    end: int | None


@dataclass(frozen=True)
class Batch:
    """Rows of one file. Arrays may be used again by the next batch, unless it was asked for otherwise."""

    part: int  # number of the part
    file: int
    begin: int  # row of the file
    count: int  # rows of the file: as many as X has, and those that were dropped
    X: Any  # (n, ..., d)
    z: Any
    y: Any
    table: Any  # all columns of these rows, where they are kept
    bad: BadRows


@dataclass(frozen=True)
class Table:
    """What `open_table` gives.

    >>> import numpy as np, tempfile, pathlib, excise.data
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> np.save(folder / "x.npy", np.arange(8.0).reshape(4, 2)); np.save(folder / "z.npy", np.array([0, 1, 0, 1]))
    >>> table = excise.data.open_table(folder / "x.npy", folder / "z.npy")
    >>> table.n, table.d, [X.shape for X, z in table.batches(3)], table.moments().n
    (4, 2, [(3, 2), (1, 2)], 4.0)
    """

    sources: tuple[FeatureSource, ...]
    feature_names: tuple[str, ...] | None  # where each feature is a column of its own
    columns: tuple[str, ...]  # the columns or arrays that hold the features
    concept_columns: tuple[str, ...] = ()
    has_labels: bool = False
    has_task: bool = False
    labels: tuple[LabelSource, ...] = ()  # where they are in other files than the features
    task: tuple[LabelSource, ...] = ()
    skip_bad: bool = False
    everything: bool = False
    left_out: LeftOut = field(default_factory=LeftOut)  # columns that are neither features nor labels
    info: dict[str, Any] = field(default_factory=dict)  # how it was opened: enough to open it again elsewhere

    @property
    def d(self) -> int:
        return self.sources[0].d

    @property
    def n(self) -> int:
        """Rows in all files; CSV is read through to count them."""
        return sum(source.rows for source in self.sources)

    @property
    def counted(self) -> bool:
        """Whether `n` costs nothing to ask for."""
        return all(source.counted for source in self.sources)

    @property
    def row_bytes(self) -> int:
        return self.sources[0].row_bytes

    @property
    def batch_rows(self) -> int:
        # Every batch costs some d x d work in the moments.
        return int(max(BATCH_BYTES // max(1, self.row_bytes), min(2 * self.d, 2**15), 256))

    def parts(self) -> list[Part]:
        """The files, cut where reading can start at no cost into pieces of about a quarter of a gigabyte."""
        out: list[Part] = []
        for i, source in enumerate(self.sources):
            if not source.counted:
                out.append(Part(i, 0, None))
                continue
            step = max(1, PART_BYTES // max(1, self.row_bytes * self.batch_rows)) * self.batch_rows
            begins = list(range(0, source.rows, step)) if source.breaks is None else _spaced(source.breaks, step)
            ends = [*begins[1:], source.rows]
            out += [Part(i, begin, end) for begin, end in zip(begins, ends, strict=True) if end > begin]
        return out

    def batches(self, rows: int | None = None) -> Iterator[tuple[Any, Any]]:
        """(X, z) for all rows, in order, from the start; z is None where there are no labels. The arrays are yours."""
        for batch in self.stream(rows=rows, again=False):
            yield batch.X, batch.z

    def stream(
        self,
        parts: Sequence[Part] | None = None,
        first: int = 0,
        skip: int = 0,
        rows: int | None = None,
        again: bool = True,
    ) -> Iterator[Batch]:
        """Batches of some parts (all unless given), read ahead by a thread.

        Args:
            parts: in their order.
            first, skip: start at this part, after so many of its rows (a multiple of the rows of a batch).
            rows: of a batch.
            again: whether the memory of a batch is used again for a later one.

        Raises:
            InputError: rows that cannot be used, with their number and first place, unless they are to be dropped.
            FileFormatError: a file that cannot be read to its end.
        """
        parts = self.parts() if parts is None else parts
        ahead = read_ahead(self._read(parts, first, skip, rows or self.batch_rows, Buffers(again)))
        for raw, number, part in ahead:
            if raw.labels is not None and label_pieces.count(raw.labels) != raw.count:
                raise self._other_number(part, raw)
            yield self._checked(raw, number, part)
            raw.done()

    def _read(
        self, parts: Sequence[Part], first: int, skip: int, rows: int, buffers: Buffers
    ) -> Iterator[tuple[RawBatch, int, Part]]:
        for number, part in enumerate(parts[first:], start=first):
            begin, skip = part.begin + skip, 0
            beside = [
                Puller(sources, self._before(part.file) + begin) if sources else None
                for sources in (self.labels, self.task)
            ]
            for raw in self.sources[part.file].batches(begin, part.end, rows, buffers):
                if beside[0] is not None:
                    raw.labels = beside[0].take(raw.count)
                if beside[1] is not None:
                    raw.task = beside[1].take(raw.count)
                if self.skip_bad:
                    raw.found |= not_finite_flags(raw.X) | label_flags(raw.labels)
                yield raw, number, part

    def _before(self, file: int) -> int:
        """Rows of the files before this one."""
        return sum(source.rows for source in self.sources[:file])

    def _checked(self, raw: RawBatch, number: int, part: Part) -> Batch:
        X, z, y, table, bad = raw.X, raw.labels, raw.task, raw.table, BadRows()
        found = {reason: flags for reason, flags in raw.found.items() if flags.any()}
        if found:
            if not self.skip_bad:
                raise self.refusal(part.file)
            bad.add(str(self.sources[part.file].location), raw.begin, found)
            good = ~np.logical_or.reduce(list(found.values()))
            X, z, y, table = (
                X[good],
                label_pieces.keep(z, good),
                label_pieces.keep(y, good),
                label_pieces.keep(table, good),
            )
        return Batch(
            number, part.file, raw.begin, raw.count, X, label_pieces.plain(z), label_pieces.plain(y), table, bad
        )

    def refusal(self, file: int) -> ExciseError:
        """The error for a file with rows that cannot be used: all of it is looked through to count them."""
        source = self.sources[file]
        bad, rows = BadRows(), 0
        beside = Puller(self.labels, self._before(file)) if self.labels else None
        for raw in source.batches(0, None, self.batch_rows, Buffers(True)):
            labels = raw.labels if beside is None else beside.take(raw.count)
            bad.add(str(source.location), raw.begin, raw.found | not_finite_flags(raw.X) | label_flags(labels))
            rows += raw.count
            raw.done()
        return bad.error(str(source.location), rows)

    def _other_number(self, part: Part, raw: RawBatch) -> InputError:
        return InputError(
            f"{self.sources[part.file].location} has no label for row {raw.begin + raw.count - 1}: pass one label per row",
            code="row-count",
        )

    def moments(self, m: Moments | None = None, progress: Any = None) -> Moments:
        """Gather Moments over all batches; `progress(rows)` is called after each."""
        m = Moments() if m is None else m
        for batch in self.stream():
            m.update(batch.X, batch.z)
            if progress is not None:
                progress(batch.count)
        return m


def _spaced(breaks: list[int], step: int) -> list[int]:
    """Those of the breaks that are at least `step` rows apart."""
    out = breaks[:1]
    for row in breaks[1:]:
        if row - out[-1] >= step:
            out.append(row)
    return out
