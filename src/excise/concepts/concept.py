"""Labels -> Concept: what is to be erased, encoded once, with names.

A concept is one or more blocks of columns. A categorical block has one 0/1 column per class; a continuous block is
numbers taken as they are. Blocks are erased jointly. Classes are kept sorted by name, so the order in which data
arrives does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from excise.concepts.encoded import Encoded
from excise.concepts.labels import (
    Column,
    Name,
    Values,
    classes_of,
    device_classes,
    distinct_numbers,
    kind_of_column,
    name_order,
    question,
    read_columns,
)
from excise.errors import ConceptError, warn
from excise.numerics.arrays import convert

__all__ = ["Concept", "Encoded"]

Kind = Literal["categorical", "continuous"]
MANY_CLASSES = 100
# Whole floats with 3 to this many distinct values, and integers with more, could be classes or numbers.
AMBIGUOUS = 50


@dataclass(frozen=True)
class Block:
    """Columns of the encoding that come from one column of labels (or, for intersections, from several)."""

    kind: Kind
    source: tuple[Name, ...]  # names of the columns of labels; (None,) for a plain array
    names: tuple[Name, ...]  # classes, or names of numeric columns
    closed: bool = False  # classes were given: no others may join
    guessed: bool = False  # the kind was read off few distinct floats and may still prove wrong


@dataclass(frozen=True)
class Concept:
    """What is to be erased.

    >>> c = Concept.of(["red", "green", "red"])
    >>> c.kind, c.k, c.names
    ('categorical', 2, ('green', 'red'))
    >>> c.encode(["red"]).tolist()
    [[0.0, 1.0]]
    """

    blocks: tuple[Block, ...]
    asked: Kind | Mapping[Name, Kind] | None = None  # kind= as the caller gave it

    @staticmethod
    def of(
        z: Any,
        kind: Kind | Mapping[Name, Kind] | None = None,
        classes: Sequence[Name] | Mapping[Name, Sequence[Name]] | None = None,
        cross: bool = False,
    ) -> Concept:
        """Read the concept off labels.

        Args:
            z: (n,) labels, (n, k) numeric columns, a series, or a data frame (one block per column).
            kind: "categorical" or "continuous" if it cannot be inferred from the labels; for a frame also a dict by column.
            classes: all classes there are (for a frame: a dict by column); any other label is then an error.
            cross: also erase the intersections of the categorical columns (women over 60, not women and over 60).

        Raises:
            ConceptError: missing or infinite labels, ambiguous numbers, labels outside `classes`.
        """
        return Concept.learn(z, kind, classes, cross)[0]

    @staticmethod
    def learn(z: Any, kind: Any = None, classes: Any = None, cross: bool = False) -> tuple[Concept, Encoded]:
        """The concept of labels, and the labels encoded by it; they are parsed once."""
        _check_kind(kind)
        if classes is None and kind in (None, "categorical") and (found := device_classes(z)) is not None:
            _refuse_numbers(found[0], kind, None)
            return Concept((Block("categorical", (None,), ()),), kind)._encoded_on_device(found, known=0)
        columns = read_columns(z, kind)
        if not columns or not len(columns[0].values):
            raise ConceptError("labels are empty: pass one label per row", code="no-labels")
        blocks = [_block_of(column, kind_of_column(kind, column.name), _given(classes, column)) for column in columns]
        if cross:
            blocks = _crossed(blocks, columns)
        return Concept(tuple(blocks), kind)._encoded(columns, known=0)

    @staticmethod
    def learn_classes(
        z: Any, what: str, n: int | None = None, known: Concept | None = None, kind: Any = "categorical"
    ) -> tuple[Concept, Values]:
        """One column of classes, and the class of each row as a code: for conditions, groups and tasks.

        Args:
            what: the argument that holds them, for messages.
            n: rows that there must be labels for.
            known: the concept of earlier batches.
            kind: "categorical" takes integers and whole floats as classes without a question.

        Raises:
            ConceptError: not one column of classes, or another number of labels than rows.
        """
        try:
            columns = read_columns(z, None)
            if kind == "categorical" and len(columns) == 1 and _are_measurements(columns[0].values):
                raise ConceptError(
                    f"one column of classes is needed, got numbers such as {columns[0].values[0]:g}; cut them into classes first"
                )
            concept, encoded = Concept.learn(z, kind) if known is None else known.extend(z)
        except ConceptError as error:
            raise error.of(what) from None
        codes = encoded.codes
        if codes is None:
            raise ConceptError(
                f"{what}: one column of classes is needed, got a {concept.kind} one of {concept.k} columns"
            )
        if n is not None and encoded.n != n:
            raise ConceptError(
                f"X has {n} rows, but there are {encoded.n} labels in {what}: pass one label per row", code="row-count"
            )
        return concept, codes

    @property
    def k(self) -> int:
        """Columns of the encoding."""
        return sum(len(block.names) for block in self.blocks)

    @property
    def kind(self) -> str:
        kinds = {block.kind for block in self.blocks}
        return kinds.pop() if len(kinds) == 1 else "mixed"

    @property
    def names(self) -> tuple[Name, ...]:
        """A name per column: the class; (column, class) or (column,) for frames; tuples of classes for crosses."""
        return tuple(_full_name(block, name) for block in self.blocks for name in block.names)

    @property
    def is_one_categorical(self) -> bool:
        return len(self.blocks) == 1 and self.blocks[0].kind == "categorical"

    def encode(self, z: Any) -> Values:
        """(n, k) float64: 0/1 for classes, the numbers themselves otherwise.

        Raises:
            ConceptError: a class that this concept does not have, or labels of another kind.
        """
        return self.read(z).dense()

    def read(self, z: Any) -> Encoded:
        """Encode without learning new classes."""
        joined, encoded = self.extend(z)
        if joined.k != self.k:
            new = _minus(joined.names, self.names)
            raise ConceptError(
                f"labels hold {len(new)} class(es) that the concept was not fitted with: {_list(new)}; known are "
                f"{_list(self.names)}"
            )
        return encoded

    def extend(self, z: Any) -> tuple[Concept, Encoded]:
        """The concept with the new classes of `z`, and `z` encoded by it."""
        if self.is_one_categorical and self.blocks[0].source == (None,) and (found := device_classes(z)) is not None:
            return self._encoded_on_device(found, known=self.k)
        return self._encoded(read_columns(z, self.asked), known=self.k)

    def _encoded_on_device(self, found: tuple[list[Name], Values, Any], known: int) -> tuple[Concept, Encoded]:
        """Classes that were counted on a device: only their names come to the host."""
        batch, counts, codes = found
        block, where = _join_classes(self.blocks[0], batch)
        concept = replace(self, blocks=(block,))
        if concept.k > known:
            concept._warn_many(known)
        all_counts = np.zeros(concept.k, dtype=np.int64)
        all_counts[where] = counts
        moved = where.tolist() != list(range(len(batch)))
        codes = convert(where, codes)[codes] if moved else codes
        return concept, Encoded(int(counts.sum()), concept.k, device_codes=codes, counts=all_counts)

    def _encoded(self, columns: list[Column], known: int) -> tuple[Concept, Encoded]:
        expected = [name for block in self.blocks for name in block.source]
        if len(columns) != len(expected):
            raise ConceptError(f"labels have {len(columns)} column(s), the concept was learnt from {len(expected)}")
        if expected != [None] and [c.name for c in columns] != expected:
            by_name = {column.name: column for column in columns}
            if None in by_name or set(by_name) != set(expected):
                raise ConceptError(f"labels have columns {_list(list(by_name))}, the concept has {_list(expected)}")
            columns = [by_name[name] for name in expected]
        blocks: list[Block] = []
        parts: list[tuple[Values | None, Values | None]] = []
        at = 0
        for block in self.blocks:
            joined, codes, numbers = _extend_block(block, columns[at : at + len(block.source)])
            at += len(block.source)
            blocks.append(joined)
            parts.append((codes, numbers))
        concept = replace(self, blocks=tuple(blocks))
        if concept.k > known:
            concept._warn_many(known)
        n = len(columns[0].values)
        if concept.is_one_categorical:
            return concept, Encoded(n, concept.k, codes=parts[0][0])
        dense = [
            numbers if numbers is not None else Encoded(n, len(block.names), codes=codes).dense()
            for block, (codes, numbers) in zip(blocks, parts, strict=True)
        ]
        return concept, Encoded(n, concept.k, matrix=np.concatenate(dense, axis=1))

    def join(self, other: Concept) -> Concept:
        """Classes of both, joined by name.

        Raises:
            ConceptError: the two are not the same concept (other kind, other columns, other width).
        """
        if len(self.blocks) != len(other.blocks):
            raise ConceptError(f"cannot join concepts of {len(self.blocks)} and {len(other.blocks)} columns")
        blocks: list[Block] = []
        for a, b in zip(self.blocks, other.blocks, strict=True):
            same_numbers = a.kind == "continuous" and a.names == b.names
            if a.kind != b.kind or a.source != b.source or not (a.kind == "categorical" or same_numbers):
                raise ConceptError(
                    f"cannot join a {a.kind} concept ({_list(a.names)}) with a {b.kind} one ({_list(b.names)}): pass the "
                    f"same kind= for every part, e.g. Moments(concept=Concept.of(z, kind='continuous'))"
                )
            names = _union(a.names, b.names) if a.kind == "categorical" else a.names
            joined = replace(a, names=names, guessed=a.guessed and b.guessed, closed=a.closed and b.closed)
            _refuse_a_third(joined, names)
            blocks.append(joined)
        return replace(self, blocks=tuple(blocks))

    def positions_in(self, larger: Concept) -> list[int]:
        """Where each column of this concept stands in `larger`, which has all of its classes."""
        keys = [(i, name_order(name)) for i, block in enumerate(larger.blocks) for name in block.names]
        place = {key: position for position, key in enumerate(keys)}
        return [place[i, name_order(name)] for i, block in enumerate(self.blocks) for name in block.names]

    def to_dict(self) -> dict[str, Any]:
        return {"asked": self.asked, "blocks": [vars(block) for block in self.blocks]}

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Concept:
        def tuples(value: Any) -> Any:  # JSON has lists only
            return tuple(tuples(v) for v in value) if isinstance(value, list) else value

        blocks = [Block(**{key: tuples(value) for key, value in block.items()}) for block in stored["blocks"]]
        return Concept(tuple(blocks), stored["asked"])

    def _warn_many(self, before: int) -> None:
        for block in self.blocks:
            count = len(block.names)
            if block.kind != "categorical":
                continue
            if count > MANY_CLASSES >= before:
                warn(
                    f"the concept has {count} classes: is it categorical? (kind='continuous' takes numbers as numbers; each "
                    f"class costs up to one dimension of X)",
                    code="many-classes",
                )
            elif count > AMBIGUOUS >= before > 0 and _are_integers(block.names) and self._was_not_asked(block):
                warn(
                    f"the integer labels now have {count} distinct values and are taken as classes, as in the first "
                    f"batch; if they are numbers, start again with kind='continuous'",
                    code="many-classes",
                )

    def _was_not_asked(self, block: Block) -> bool:
        return kind_of_column(self.asked, block.source[0]) is None


def _are_measurements(values: Values) -> bool:
    """Floats that are not all whole: a few classes may be coded so (0.5 and 1.0), a measurement has many."""
    if values.dtype.kind != "f" or values.ndim > 1:
        return False
    distinct = distinct_numbers(values, AMBIGUOUS)
    return len(distinct) > 2 and bool((distinct != np.floor(distinct)).any())


def _are_integers(names: Sequence[Name]) -> bool:
    return all(isinstance(name, int) and not isinstance(name, bool) for name in names)


def _check_kind(kind: Any) -> None:
    kinds = list(kind.values()) if isinstance(kind, Mapping) else [kind]
    if not all(isinstance(one, (str, type(None))) and one in (None, "categorical", "continuous") for one in kinds):
        raise ConceptError(
            f"kind must be 'categorical', 'continuous' or None (or a dict of them by column), got {kind!r}", code="kind"
        )


def _block_of(column: Column, kind: Kind | None, classes: Sequence[Name] | None) -> Block:
    """The rules by which labels become classes or numbers."""
    values, source = column.values, (column.name,)
    if values.ndim == 2:
        return Block("continuous", source, tuple(range(values.shape[1])))
    guessed = False
    if kind == "continuous" and classes is not None:
        raise ConceptError("kind='continuous' has no classes: leave classes= out")
    if column.categories and kind is None:
        kind = "categorical"
    if kind is None and values.dtype.kind == "f":
        distinct = distinct_numbers(values, AMBIGUOUS)
        whole = bool((distinct == np.floor(distinct)).all())
        if whole and 3 <= len(distinct) <= AMBIGUOUS and classes is None:
            raise question(
                f"labels are floats with {len(distinct)} distinct whole values ({', '.join(f'{v:g}' for v in distinct[:6])}"
                f"{', ...' if len(distinct) > 6 else ''})",
                column.name,
            )
        # One value says nothing; as a class it can still become one of two when the next batch comes.
        guessed = len(distinct) <= 2 and classes is None
        kind = "categorical" if guessed or classes is not None else "continuous"
    if kind == "continuous":
        if values.dtype.kind == "O":
            raise ConceptError(f"kind='continuous' needs numbers, got labels such as {values[0]!r}")
        return Block("continuous", source, (0 if column.name is None else column.name,))
    names, _ = classes_of(values)
    if classes is None and values.dtype.kind in "iu":
        _refuse_numbers(names, kind, column.name)
    if classes is not None:
        given, _ = classes_of(np.array(list(classes), dtype=object))
        _refuse_unknown(names, given)
        return Block("categorical", source, _union(given), closed=True)
    return Block("categorical", source, tuple(names), guessed=guessed)


def _refuse_numbers(names: Sequence[Name], kind: Any, column: Name) -> None:
    """Many distinct integers could be numbers, unless the caller said that they are classes."""
    if kind is None and len(names) > AMBIGUOUS:
        raise question(f"labels are integers with {len(names)} distinct values ({names[0]} to {names[-1]})", column)


def _refuse_a_third(block: Block, names: tuple[Name, ...]) -> None:
    if block.guessed and len(names) > 2:
        raise question(
            f"the first labels were floats with one or two distinct values ({_list(block.names)}) and were taken as classes; "
            f"now there are others ({_list(_minus(names, block.names))})",
            block.source[0],
        )


def _extend_block(block: Block, columns: list[Column]) -> tuple[Block, Values | None, Values | None]:
    """The block with new classes, and either class codes (n,) or numbers (n, width)."""
    if block.kind == "continuous":
        values = columns[0].values
        if values.dtype.kind == "O":
            raise ConceptError(f"the concept is continuous, got labels such as {values.flat[0]!r}")
        numbers = values.reshape(len(values), -1).astype(np.float64)
        if numbers.shape[1] != len(block.names):
            raise ConceptError(f"labels have {numbers.shape[1]} numeric columns, the concept has {len(block.names)}")
        return block, None, numbers
    if columns[0].values.ndim == 2:
        raise ConceptError("the concept is categorical, got numeric columns")
    if len(columns) > 1:
        batch, codes = _intersections(columns)
    else:
        batch, codes = classes_of(columns[0].values)
    joined, where = _join_classes(block, batch)
    return joined, where[codes], None


def _join_classes(block: Block, batch: Sequence[Name]) -> tuple[Block, Values]:
    """The block with the classes of a batch, and the place of each of these in it."""
    if block.closed and _minus(batch, block.names):
        _refuse_unknown(batch, block.names)
    names = _union(block.names, batch)
    _refuse_a_third(block, names)
    place = {name_order(name): i for i, name in enumerate(names)}
    return replace(block, names=names), np.array([place[name_order(name)] for name in batch], dtype=np.int64)


def _intersections(columns: list[Column]) -> tuple[list[Name], Values]:
    per_column = [classes_of(column.values) for column in columns]
    cells, codes = np.unique(np.stack([codes for _, codes in per_column], axis=1), axis=0, return_inverse=True)
    names = [tuple(per_column[j][0][code] for j, code in enumerate(cell)) for cell in cells]
    return names, codes.reshape(-1)


def _crossed(blocks: list[Block], columns: list[Column]) -> list[Block]:
    """One block of the cells that occur in place of the categorical blocks: each class is a sum of its cells."""
    chosen = [i for i, block in enumerate(blocks) if block.kind == "categorical"]
    if len(chosen) < 2:
        raise ConceptError(f"cross=True needs at least two categorical columns, got {len(chosen)}")
    if any(blocks[i].closed for i in chosen):
        raise ConceptError("cross=True and classes= cannot be combined: the cells are those that occur")
    names, _ = _intersections([columns[i] for i in chosen])
    crossed = Block("categorical", tuple(blocks[i].source[0] for i in chosen), _union(names))
    return [crossed, *(block for i, block in enumerate(blocks) if i not in chosen)]


def _full_name(block: Block, name: Name) -> Name:
    if block.source == (None,) or len(block.source) > 1:
        return name
    return (name,) if block.kind == "continuous" else (block.source[0], name)


def _given(classes: Any, column: Column) -> Sequence[Name] | None:
    return classes.get(column.name) if isinstance(classes, Mapping) else classes


def _refuse_unknown(names: Sequence[Name], known: Sequence[Name]) -> None:
    unknown = _minus(names, known)
    if unknown:
        raise ConceptError(f"labels outside the given classes: {_list(unknown)}; classes are {_list(known)}")


def _union(*names: Sequence[Name]) -> tuple[Name, ...]:
    """Sorted, each once. Not a set: 1 and True are equal to Python and two names here."""
    by_key = {name_order(name): name for some in names for name in some}
    return tuple(by_key[key] for key in sorted(by_key))


def _minus(names: Sequence[Name], known: Sequence[Name]) -> list[Name]:
    keys = {name_order(name) for name in known}
    return [name for name in names if name_order(name) not in keys]


def _list(names: Sequence[Name], most: int = 8) -> str:
    shown = ", ".join(repr(name) for name in list(names)[:most])
    return shown + (f", ... ({len(names)} in all)" if len(names) > most else "")
