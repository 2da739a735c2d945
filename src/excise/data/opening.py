"""open_table: from the names of files and columns to a Table, checked before any row is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from excise.data.array_files import StoredArray, open_arrays
from excise.data.columns import feature_columns, label_columns, left_out, split_names
from excise.data.labels import ArrayLabels, LabelSource, TableLabels
from excise.data.locations import Location, find_files
from excise.data.rows import ArrayRows, FeatureSource, TableRows
from excise.data.table import Table
from excise.data.table_files import CsvFile, TableFile, open_table_file
from excise.errors import ConceptError, ExciseError, InputError

__all__ = ["open_table"]

ARRAYS = (".npy", ".npz", ".safetensors")
Names = Sequence[str] | str | None


def open_table(
    x: str | os.PathLike[str],
    z: str | os.PathLike[str] | None = None,
    features: Names = None,
    concept: Names = None,
    task: Names = None,
    skip_bad: bool = False,
    everything: bool = False,
    sure: bool = False,
) -> Table:
    """Open files of features and, optionally, the labels of their rows.

    Args:
        x: a file (.npy, .npz, .safetensors, .parquet, .arrow, .feather, .csv), a glob, or a folder; a path or an fsspec
            URL. A folder that Hugging Face `datasets` wrote is one too.
        z: files of labels, likewise; if it is left out, the labels are `concept` columns of x.
        features: the columns, or the array, that hold the features: one list column, or many numeric columns. If left
            out: the only list column, or else all numeric columns that are not labels.
        concept: the columns or arrays that hold the labels; not needed where `z` has only one.
        task: columns or arrays of x that hold the task, for the methods that use it.
        skip_bad: drop rows with missing or infinite features, or without a label, in place of an error.
        everything: also read all other columns, for those who write them again.
        sure: `z` holds the labels even if it looks like features.

    Raises:
        FileNotFoundError, InputError, FileFormatError: before any row is read.
    """
    locations = find_files(x)
    asked = [[names] if isinstance(names, str) else list(names or []) for names in (features, concept, task)]
    inside = asked[1] if z is None else []
    try:
        if locations[0].suffix in ARRAYS:
            table = _open_arrays(locations, asked[0], inside, asked[2], skip_bad)
        else:
            table = _open_columns(locations, asked[0], inside, asked[2], skip_bad, everything)
    except InputError as error:
        if z is None or error.code not in ("feature-shape", "feature-dtype", "no-features"):
            raise
        raise InputError(f"{error.message}{_swapped(x, z)}", error.code) from None
    if z is not None and not sure:
        _refuse_more_features(table, x, z, asked[1])
    info: dict[str, Any] = {"x": os.fspath(x), "z": None if z is None else os.fspath(z)}
    info |= {
        "features": asked[0],
        "concept": asked[1],
        "task": asked[2],
        "skip_bad": skip_bad,
        "everything": everything,
        "sure": sure,
    }
    labels: tuple[LabelSource, ...] = table.labels
    names = table.concept_columns
    if z is not None:
        labels, names = _open_labels(find_files(z), asked[1])
        rows = sum(source.rows for source in labels)
        if rows != table.n:
            raise InputError(f"{x} has {table.n} rows, {z} has {rows} labels: pass one label per row", code="row-count")
    if table.counted and table.n == 0:
        raise InputError(f"{x} has no rows", code="no-rows")
    return Table(
        table.sources,
        table.feature_names,
        table.columns,
        names,
        has_labels=bool(labels) or table.has_labels,
        has_task=bool(asked[2]),
        labels=labels,
        task=table.task,
        skip_bad=skip_bad,
        everything=everything,
        left_out=table.left_out,
        info=info,
    )


def _swapped(x: str | os.PathLike[str], z: str | os.PathLike[str]) -> str:
    """A question for the end of a message about x if z could be the features; else nothing."""
    try:
        wide = open_table(z).d > 1
    except (ExciseError, OSError):
        return ""
    return f". {z} holds features: did you swap them? DATA comes first, then LABELS" if wide else ""


def _refuse_more_features(
    table: Table, x: str | os.PathLike[str], z: str | os.PathLike[str], concept: list[str]
) -> None:
    """Two files of an unquoted glob arrive as features and labels.

    Raises:
        ConceptError: `z` holds what the features are taken from in `x`.
    """
    location = find_files(z)[0]
    if location.suffix in ARRAYS:
        name = table.columns[0] if table.columns else ""
        stored = open_arrays(location).get(name)
        if stored is None or table.d < 2:
            return
        same = stored.shape[1:] == (table.d,) and (stored.dtype.kind == "f" or stored.bfloat16)
    else:
        columns, first = set(open_table_file(location).schema.names), find_files(x)[0]
        known = [] if first.suffix in ARRAYS else open_table_file(first).schema.names
        same = bool(known) and set(table.columns) <= columns and set(split_names(concept, known)) <= set(known)
    if same:
        raise ConceptError(
            f"{z} holds {table.d} features, as {x} does, so it looks like more rows and not like labels. To fit on several files "
            f"quote the glob ('*{location.suffix}') or pass their folder; if it does hold the labels, pass --labels {z}",
            code="labels-like-features",
        )


def _open_columns(
    locations: list[Location], asked: list[str], concept: list[str], task: list[str], skip_bad: bool, everything: bool
) -> Table:
    with ThreadPoolExecutor(8) as pool:
        files = list(pool.map(open_table_file, locations))
    schema, where = files[0].schema, locations[0]
    labels = label_columns(schema, where, split_names(concept, schema.names)) if concept else []
    tasks = label_columns(schema, where, split_names(task, schema.names), "the task") if task else []
    features = feature_columns(schema, where, split_names(asked, schema.names), [*labels, *tasks])
    for file in files[1:]:
        _same_columns(files[0], file, [*features, *labels, *tasks], everything)
    beside: tuple[LabelSource, ...] = ()
    beside_task: tuple[LabelSource, ...] = ()
    if isinstance(files[0], CsvFile):
        if everything:  # other columns come out as they were written; so labels, which have types, are read beside them
            beside = tuple(TableLabels(file, labels) for file in files) if labels else ()
            beside_task = tuple(TableLabels(file, tasks) for file in files) if tasks else ()
        others = [name for name in schema.names if name not in features] if everything else []
        files = [file.with_columns(features, others) for file in files if isinstance(file, CsvFile)]
    sources = [
        TableRows(file, features, [] if beside else labels, [] if beside_task else tasks, everything) for file in files
    ]
    filled = [s for s in sources if not s.counted or s.rows]
    widths = sorted({source.d for source in filled if source.d})
    if len(widths) > 1:
        first, other = filled[0], next(s for s in filled if s.d != filled[0].d)
        raise InputError(
            f"{first.location} has lists of {first.d} features, {other.location} of {other.d}", code="schemas-differ"
        )
    if not widths:
        raise InputError(
            f"{where} has no rows" if not filled else f"{where} has no features in any row", code="no-rows"
        )
    for source in filled:
        source.features.d = widths[0]
    return Table(
        tuple(filled),
        None if sources[0].features.is_list else tuple(features),
        tuple(features),
        tuple(labels),
        has_labels=bool(labels),
        labels=beside,
        task=beside_task,
        skip_bad=skip_bad,
        left_out=left_out(schema, [*features, *labels, *tasks]),
    )


def _same_columns(first: TableFile, other: TableFile, used: list[str], everything: bool) -> None:
    for name in used:
        if name not in other.schema.names:
            raise InputError(
                f"{other.location} has no column {name!r}, which {first.location} has; it has "
                f"{', '.join(other.schema.names[:20])}",
                code="schemas-differ",
            )
        kinds = first.schema.field(name).type, other.schema.field(name).type
        if kinds[0] != kinds[1] and not isinstance(first, CsvFile):
            raise InputError(
                f"column {name!r} is {kinds[0]} in {first.location} and {kinds[1]} in {other.location}: write them alike",
                code="schemas-differ",
            )


def _open_arrays(
    locations: list[Location], asked: list[str], concept: list[str], task: list[str], skip_bad: bool
) -> Table:
    sources: list[FeatureSource] = []
    for location in locations:
        arrays = open_arrays(location)
        known = list(arrays)
        labels, tasks = (
            {name: _named(location, arrays, name) for name in split_names(n, known)} for n in (concept, task)
        )
        x = _features(location, arrays, split_names(asked, known), {*labels, *tasks})
        if len(x.shape) < 2 or 0 in x.shape[1:]:
            raise InputError(f"{location} has shape {x.shape}: features must be (n, d)", code="feature-shape")
        for name, array in {**labels, **tasks}.items():
            if array.shape[0] != x.shape[0]:
                raise InputError(
                    f"{location} has {x.shape[0]} rows, its array {name!r} has {array.shape[0]} labels: pass one label per row",
                    code="row-count",
                )
        sources.append(ArrayRows(x, labels, tasks))
    first: Any = sources[0]
    for other in sources[1:]:
        if (other.d, other.dtype) != (first.d, first.dtype):
            raise InputError(
                f"{first.location} has {first.d} features of {first.dtype}, {other.location} {other.d} of {other.dtype}: write "
                f"them alike",
                code="schemas-differ",
            )
    filled = [source for source in sources if source.rows]
    columns = (first.x.name,) if first.x.name else ()
    return Table(
        tuple(filled) or tuple(sources[:1]),
        None,
        columns,
        tuple(first.labels),
        has_labels=bool(concept),
        skip_bad=skip_bad,
    )


def _named(location: Location, arrays: dict[str, StoredArray], name: str) -> StoredArray:
    if "" in arrays:
        raise InputError(
            f"{location} is one array without names, so {name} cannot be chosen from it: pass the labels as a file of their "
            f"own"
        )
    if name not in arrays:
        raise InputError(f"{location} has no array {name!r}; it holds {', '.join(arrays)}", code="missing-column")
    return arrays[name]


def _features(location: Location, arrays: dict[str, StoredArray], asked: list[str], taken: set[str]) -> StoredArray:
    if len(asked) > 1:
        raise InputError(f"{location}: the features must be one array, got {', '.join(asked)}; stack them")
    if asked:
        return _named(location, arrays, asked[0])
    left = {name: array for name, array in arrays.items() if name not in taken}
    wide = [name for name, array in left.items() if len(array.shape) > 1 and array.dtype.kind == "f"]
    name = "X" if "X" in left else next(iter(left)) if len(left) == 1 else wide[0] if len(wide) == 1 else None
    if name is None:
        raise InputError(
            f"{location} holds the arrays {', '.join(arrays)}: say which one is X (--features and --concept on the command "
            f"line)",
            code="which-features",
        )
    return left[name]


def _open_labels(locations: list[Location], asked: list[str]) -> tuple[tuple[LabelSource, ...], tuple[str, ...]]:
    out: list[LabelSource] = []
    names: list[str] = []
    for location in locations:
        if location.suffix in ARRAYS:
            arrays = open_arrays(location)
            names = split_names(asked, list(arrays))
            if not names:
                names = ["z"] if "z" in arrays else list(arrays)
                if len(names) > 1:
                    raise InputError(f"{location} holds the arrays {', '.join(names)}: say which is the concept (-c)")
            out.append(ArrayLabels({name: _named(location, arrays, name) if name else arrays[""] for name in names}))
        else:
            file = open_table_file(location)
            names = label_columns(file.schema, location, split_names(asked, file.schema.names))
            out.append(TableLabels(file, names))
    return tuple(out), tuple(name for name in names if name)
