"""Which columns are features and which are labels, decided from the schema alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from excise.errors import InputError

__all__ = [
    "LeftOut",
    "feature_columns",
    "index_columns",
    "is_list",
    "label_columns",
    "left_out",
    "split_names",
    "storage_type",
]


def split_names(asked: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """Names that may come several at a time, with commas between; a column whose own name has a comma is one name.

    >>> split_names(["a,b", "c"], ["a", "b", "c"]), split_names(["a,b"], ["a,b"])
    (['a', 'b', 'c'], ['a,b'])
    """
    out: list[str] = []
    for name in asked or []:
        out += [name] if name in known else [part.strip() for part in name.split(",") if part.strip()]
    twice = [name for name in out if out.count(name) > 1]
    if twice:
        raise InputError(f"column {twice[0]!r} is named twice")
    return out


def index_columns(schema: Any) -> set[str]:
    """The columns that are the index of a pandas frame: neither features nor labels, whatever they hold."""
    try:
        about = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
        entries = about.get("index_columns", [])
    except (ValueError, AttributeError, RecursionError):
        return set()
    named = {entry for entry in entries if isinstance(entry, str)} if isinstance(entries, list) else set()
    return named & set(schema.names)


def storage_type(kind: Any) -> Any:
    """What an extension type (a tensor, say) is kept as; any other type itself."""
    import pyarrow as pa

    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def is_list(kind: Any) -> bool:
    import pyarrow.types as t

    kind = storage_type(kind)
    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    import pyarrow.types as t

    return bool(t.is_floating(kind) or t.is_integer(kind))


def _check(schema: Any, where: object, names: list[str], what: str) -> None:
    missing = [name for name in names if name not in schema.names]
    if missing:
        shown = ", ".join(schema.names[:20]) + (f", ... ({len(schema.names)} in all)" if len(schema.names) > 20 else "")
        raise InputError(f"{where} has no column {missing[0]!r}; it has {shown}", code="missing-column")
    index = [name for name in names if name in index_columns(schema)]
    if index:
        raise InputError(
            f"{where}: {index[0]!r} is the index of the pandas frame, which is never {what}: write the frame with "
            f"reset_index() to have it as a column",
            code="index-column",
        )


def feature_columns(schema: Any, where: object, asked: list[str], labels: Sequence[str]) -> list[str]:
    """The columns that are features: those asked for, else the one list column, else all numbers that are not labels.

    Raises:
        InputError: there are none, they are not numbers, or it is not clear which they are.
    """
    taken = set(labels) | index_columns(schema)
    if asked:
        _check(schema, where, asked, "a feature")
        both = [name for name in asked if name in labels]
        if both:
            raise InputError(f"{where}: {both[0]!r} is asked for as a feature and as a label")
        _check_types(schema, where, asked)
        return asked
    fields = [field for field in schema if field.name not in taken]
    lists = [field.name for field in fields if is_list(field.type)]
    numeric = [name for name in lists if _is_number(storage_type(schema.field(name).type).value_type)]
    if len(numeric) > 1:
        raise InputError(
            f"{where} has several list columns ({', '.join(numeric)}): say which one holds the features (-f)",
            code="which-features",
        )
    chosen = numeric or [field.name for field in fields if _is_number(field.type)]
    if not chosen:
        raise InputError(
            f"{where} has no numeric columns and no list column beside the labels; it has {', '.join(schema.names)}",
            code="no-features",
        )
    return chosen


class LeftOut(NamedTuple):
    """Columns that are neither features nor labels, and stay as they are."""

    numbers: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def notes(self, numbers: str, others: str) -> list[str]:
        """One line for each kind: how many there are, what is said of them, and their names."""
        pairs = ((self.numbers, numbers), (self.others, others))
        return [f"{len(names)} column(s) {said}: {_shown(names)}" for names, said in pairs if names]


def left_out(schema: Any, used: Sequence[str]) -> LeftOut:
    """The columns of a schema that are not `used`; the index of a pandas frame is none."""
    rest = [field for field in schema if field.name not in {*used, *index_columns(schema)}]
    numbers = [field.name for field in rest if _is_number(field.type)]
    return LeftOut(tuple(numbers), tuple(field.name for field in rest if field.name not in numbers))


def _shown(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(map(repr, names[:most])) + (f", ... ({len(names)} in all)" if len(names) > most else "")


def _check_types(schema: Any, where: object, names: list[str]) -> None:
    lists = [name for name in names if is_list(schema.field(name).type)]
    if lists and len(names) > 1:
        raise InputError(f"{where}: pass one list column, or many numeric columns, not {', '.join(names)}")
    if lists and not _is_number(storage_type(schema.field(lists[0]).type).value_type):
        kind = schema.field(lists[0]).type
        raise InputError(f"{where}: column {lists[0]!r} holds {kind}, expected lists of numbers", code="feature-dtype")
    wrong = [name for name in names if not lists and not _is_number(schema.field(name).type)]
    if wrong:
        raise InputError(
            f"{where}: column {wrong[0]!r} holds {schema.field(wrong[0]).type}, expected numbers", code="feature-dtype"
        )


def label_columns(schema: Any, where: object, asked: list[str], what: str = "the concept") -> list[str]:
    """The columns that are labels: those asked for, or the only one there is.

    Raises:
        InputError: a column that does not exist, or several and none was named.
    """
    if asked:
        _check(schema, where, asked, what)
        return asked
    found = [name for name in schema.names if name not in index_columns(schema)]
    if len(found) != 1:
        raise InputError(
            f"{where} has {len(found)} columns ({', '.join(found[:12])}): say which is {what} (-c)", code="which-labels"
        )
    return found
