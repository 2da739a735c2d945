"""One pass over data: what a method needs of a part of it, and the sum of two parts.

`gather_part` and `+` are all that a cluster needs: whoever can map a function over parts and add the results can fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from excise.concepts.concept import Concept
from excise.data.bad_rows import BadRows
from excise.data.table import Batch, Part, Table
from excise.errors import ConceptError, ExciseError, InputError
from excise.methods.table import Needs
from excise.moments.class_moments import ClassMoments
from excise.moments.labelled_rows import flat_labels, read_labelled_rows, refuse_features_as_labels
from excise.moments.moments import Moments

__all__ = ["Gathered", "Recipe", "gather", "gather_part", "learn_recipe"]

SETTLE = 8  # batches between two points at which the state can be written down exactly


@dataclass(frozen=True)
class Recipe:
    """What is gathered; the same for all parts of a table."""

    needs: Needs  # moments, variances or class moments
    concept: Concept
    task: Concept | None = None
    feature_names: tuple[str, ...] | None = None

    def start(self) -> Gathered:
        main: Moments | ClassMoments
        if self.needs == "class moments":
            main = ClassMoments(self.concept)
        else:
            main = Moments(concept=self.concept, track_xx=self.needs == "moments")
        task = None if self.task is None else Moments(concept=self.task, track_xx=False)
        return Gathered(main, task, self.feature_names)


@dataclass
class Gathered:
    """Moments of the rows so far, with those of the task where there is one, and what was dropped."""

    main: Moments | ClassMoments
    task: Moments | None = None
    feature_names: tuple[str, ...] | None = None
    rows: int = 0  # of the files: those that were dropped too
    bad: BadRows = field(default_factory=BadRows)

    @property
    def is_empty(self) -> bool:
        return self.main.d is None or not self.rows - self.bad.count

    def update(self, X: Any, z: Any, y: Any = None) -> Gathered:
        """Add a batch: X (..., d), one label per row, and one of the task where it is gathered."""
        given = read_labelled_rows(X, self.main.d, self.feature_names)
        names = self.feature_names or given.names
        labels = flat_labels(z, given.lead)
        concept, encoded = self.main.concept.extend(labels)
        self.main.update_encoded(given.rows, concept, encoded, None, names)
        if self.task is not None:
            self.task.update_encoded(given.rows, *self.task.concept.extend(flat_labels(y, given.lead)), None, names)
        self.rows += given.rows.shape[0]
        return self

    def add_batch(self, batch: Batch) -> None:
        """Add a batch of a table.

        Raises:
            ExciseError: what `update` raises.
        """
        if len(batch.X):
            self.update(batch.X, batch.z, batch.y)
        if batch.bad.count:
            self.rows += batch.bad.count
            self.bad += batch.bad

    def __add__(self, other: Gathered) -> Gathered:
        task = self.task + other.task if self.task is not None and other.task is not None else None
        main: Any = self.main
        return Gathered(main + other.main, task, self.feature_names, self.rows + other.rows, self.bad + other.bad)

    def settle(self) -> None:
        """Bring what is kept into the form in which it is written down, so that going on from a file changes no bit."""
        if self.main.d is None:
            return
        kind: Any = type(self.main)
        self.main = kind.from_stored(*self.main.stored())

    def stored(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arrays and a description in JSON values; `from_stored` is the way back."""
        arrays: dict[str, Any] = {}
        about: dict[str, Any] = {"rows": self.rows, "bad": [self.bad.count, self.bad.reasons]}
        for name, part in (("main", self.main), ("task", self.task)):
            if part is not None and part.d is not None:
                own, about[name] = part.stored()
                arrays |= {f"{name}.{key}": value for key, value in own.items()}
        return arrays, about

    @staticmethod
    def from_stored(arrays: dict[str, Any], about: dict[str, Any], recipe: Recipe) -> Gathered:
        out = recipe.start()
        parts: dict[str, dict[str, Any]] = {"main": {}, "task": {}}
        for key, value in arrays.items():
            name, _, rest = key.partition(".")
            parts[name][rest] = value
        kind: Any = type(out.main)
        if "main" in about:
            out.main = kind.from_stored(parts["main"], about["main"])
        if "task" in about:
            out.task = Moments.from_stored(parts["task"], about["task"])
        out.rows = int(about["rows"])
        out.bad = BadRows(about["bad"][0], {reason: list(entry) for reason, entry in about["bad"][1].items()})
        return out


def learn_recipe(table: Table, needs: Needs, kind: Any = None, task_kind: Any = None) -> Recipe:
    """Read the concept (and the task) off the first rows of a table.

    Raises:
        ConceptError: there are no labels, or they are ambiguous.
        InputError: no row can be used.
    """
    if not table.has_labels:
        raise ConceptError("no labels: pass a second file, or name the column(s) of X with --concept", code="no-labels")
    for batch in table.stream():
        if len(batch.X):
            try:
                concept, encoded = Concept.learn(
                    batch.z, kind=kind or ("continuous" if _are_numbers(table, batch.z) else None)
                )
                refuse_features_as_labels(concept, encoded, table.d)
            except ConceptError as error:
                raise _placed(table, batch, error) from None
            try:
                task = None if batch.y is None else Concept.of(batch.y, kind=task_kind)
            except ConceptError as error:
                raise error.of("y (the task)", "task_kind") from None
            return Recipe(needs, concept, task, table.feature_names)
    raise InputError("no row of the data can be used", code="no-rows")


def _are_numbers(table: Table, z: Any) -> bool:
    """Whether the caller vouched for labels that come as an array of several columns of floats."""
    return bool(table.info.get("sure")) and getattr(z, "ndim", 1) == 2 and z.dtype.kind == "f"


def gather_part(table: Table, parts: Sequence[Part], recipe: Recipe) -> Gathered:
    """What the method needs of some parts of a table: plain work on plain data, on whatever machine this is.

    Raises:
        ExciseError: rows that cannot be used, with their number and first place.
    """
    return gather(table, recipe, parts)


def gather(
    table: Table,
    recipe: Recipe,
    parts: Sequence[Part] | None = None,
    progress: Callable[[int], None] | None = None,
    checkpoint: Any = None,
) -> Gathered:
    """One pass over a table, or over some of its parts.

    Args:
        table: an open table with labels.
        recipe: what to gather.
        parts: of the table; all unless given.
        progress: called with the rows of every batch.
        checkpoint: a `Checkpoint`; the pass starts where it says, and writes there how far it has come.

    Raises:
        ExciseError: rows that cannot be used, with their number and first place.
    """
    parts = table.parts() if parts is None else parts
    state, first, skip, done = recipe.start(), 0, 0, 0
    if checkpoint is not None:
        state, first, skip, done = checkpoint.start(table, recipe)
        if progress is not None and state.rows:
            progress(state.rows)
    for batch in table.stream(parts, first, skip):
        try:
            state.add_batch(batch)
        except ExciseError as error:
            raise _placed(table, batch, error) from None
        done += 1
        if done % SETTLE == 0:
            state.settle()
            if checkpoint is not None:
                checkpoint.offer(state, batch.part, batch.begin + batch.count - parts[batch.part].begin, done)
        if progress is not None:
            progress(batch.count)
    return state


def _placed(table: Table, batch: Batch, error: ExciseError) -> ExciseError:
    """An error of a batch, with the place in the file: numbers of rows in its message count from the start of the batch."""
    if error.code in ("not-finite", "missing-labels"):
        return table.refusal(batch.file)
    return error
