"""An eraser applied to a file, a glob or a folder of them: which columns it takes, where results go, and how to go on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from excise.data import outputs
from excise.data.array_files import open_arrays
from excise.data.bad_rows import BadRows
from excise.data.columns import is_list, split_names
from excise.data.erasing import check_target, erase_file
from excise.data.locations import HUGGING_FACE, Location, find_files, is_collection, is_url, local_path
from excise.data.opening import ARRAYS, open_table
from excise.data.table import Table
from excise.data.table_files import open_table_file
from excise.erasers.protocol import Eraser
from excise.errors import ConceptError, ExciseError, InputError

__all__ = ["Applied", "apply_eraser", "open_for", "plan_outputs"]

STATE = ".excise-apply.json"  # in the folder of results, until all are there


@dataclass(frozen=True)
class Applied:
    """What was done."""

    rows: int  # written now
    files: int  # written now
    kept: int  # files that an earlier run had finished
    bad: BadRows


def open_for(
    eraser: Eraser,
    x: str | os.PathLike[str],
    z: str | os.PathLike[str] | None = None,
    features: Sequence[str] | None = None,
    concept: Sequence[str] | None = None,
    skip_bad: bool = False,
) -> Table:
    """A table with the columns that an eraser was fitted on, by their names and in their order.

    Raises:
        InputError: a column that is missing, or another number of features.
        ConceptError: the eraser needs labels and there are none.
    """
    first = find_files(x)[0]
    known = _names(first)
    chosen = _features(eraser, first, known, split_names(features, known))
    labels = split_names(concept, known) if z is None else list(concept or [])
    if eraser.needs_labels and z is None and not labels:
        labels = [name for name in eraser.info.get("concept_columns", []) if name in known]
        if not labels:
            raise ConceptError(
                "this eraser needs the labels: pass a file of labels, or name columns with --concept",
                code="labels-needed",
            )
    if not eraser.needs_labels:
        z, labels = None, []
    table = open_table(x, z, chosen, labels, skip_bad=skip_bad, everything=True)
    if table.d != eraser.d:
        raise InputError(f"{x} has {table.d} features, the eraser was fitted on {eraser.d}", code="feature-count")
    return table


def _names(location: Location) -> list[str]:
    if location.suffix in ARRAYS:
        return [name for name in open_arrays(location) if name]
    return list(open_table_file(location).schema.names)


def _features(eraser: Eraser, first: Location, known: list[str], asked: list[str]) -> list[str]:
    """The columns to take, in the order of the fit."""
    if first.suffix in ARRAYS:
        stored = [name for name in eraser.info.get("columns", []) if name in known]
        return asked or stored[:1]
    names = list(eraser.feature_names or [])
    if len(asked) == 1 and asked[0] in known and is_list(open_table_file(first).schema.field(asked[0]).type):
        return asked  # a list has no names to compare
    if names:
        other = [name for name in asked if name not in names]
        missing = [name for name in names if name not in known or (asked and name not in asked)]
        if other or missing:
            what = f"has no column {missing[0]!r}" if missing and missing[0] not in known else "takes other columns"
            raise InputError(
                f"{first} {what}: the eraser was fitted on {_list(names)}, here are {_list(asked or known)}",
                code="missing-feature",
            )
        return names
    stored = list(eraser.info.get("columns", []))
    if asked or not stored:
        return asked
    if stored[0] not in known and any(is_list(f.type) for f in open_table_file(first).schema):
        raise InputError(
            f"{first} has no column {stored[0]!r}, which the eraser was fitted on; it has {_list(known)}: name the column "
            f"with --features if it is called otherwise",
            code="missing-feature",
        )
    return [name for name in stored if name in known]


def _list(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f", ... ({len(names)} in all)" if len(names) > most else "")


def plan_outputs(x: str | os.PathLike[str], target: str) -> list[tuple[Location, str]]:
    """Which file goes where: one to one, or a collection into a folder with the same names.

    Raises:
        ExciseError: a file would replace what it is made of, or lie outside the folder.
    """
    locations = find_files(x)
    target = local_path(target)
    if not is_collection(x):
        if not is_url(target) and Path(target).is_dir():
            target = outputs.inside(target, locations[0].relative)
        return [(locations[0], target)]
    if not is_url(target) and Path(target).is_file():
        raise ExciseError(f"{x} is several files, and {target} is one: pass a folder", code="output-exists")
    plan = [(location, outputs.inside(target, location.relative)) for location in locations]
    for location, path in plan:
        if location.is_local and not is_url(path) and os.path.realpath(location.path) == os.path.realpath(path):
            raise ExciseError(f"{path} would replace its own input: pass another folder", code="output-exists")
    return plan


def apply_eraser(
    eraser: Eraser,
    table: Table,
    x: str | os.PathLike[str],
    target: str,
    overwrite: bool = False,
    rounding: str = "nearest",
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    run: Callable[..., Any] | None = None,
) -> Applied:
    """Write the erased rows of `x`, opened as `table`, to `target`: a file, or a folder for a folder or a glob.

    Args:
        eraser, table: from `load` and `open_for`.
        overwrite: replace results that are there.
        rounding, seed: as for the eraser's call.
        run: maps a function over the numbers of files; a plain loop unless given.

    Raises:
        ExciseError: a result exists already, or belongs to another run; bad rows.
    """
    plan = plan_outputs(x, target)
    several = is_collection(x)
    state = _State(target, eraser, table, rounding, seed) if several else None
    finished = state.finished(overwrite) if state is not None else set()
    todo = [(location, path) for location, path in plan if location.relative not in finished]
    there = [path for _, path in todo if outputs.exists(path)]
    if there and not overwrite:
        raise ExciseError(
            f"{there[0]} exists already{f' (and {len(there) - 1} more)' if len(there) > 1 else ''}: pass --overwrite to "
            f"replace it, or another output",
            code="output-exists",
        )
    numbers = {str(source.location): i for i, source in enumerate(table.sources)}
    for _, path in todo:
        check_target(table.sources[0], path)
        if several:
            outputs.make_folder(str(PurePosixPath(path).parent) if not is_url(path) else path.rpartition("/")[0])
        outputs.check_folder(path)
    if state is not None:
        state.write(finished)
    rows, bad = 0, BadRows()
    jobs = [(numbers[str(location)], path) for location, path in todo if str(location) in numbers]
    for location, path in todo:
        if str(location) not in numbers:  # a file without rows
            with outputs.writing(path) as temporary, location.open() as source:
                temporary.write_bytes(source.read())
    names = {path: location.relative for location, path in todo}

    def one(job: tuple[int, str]) -> tuple[int, BadRows]:
        return erase_file(eraser, table, job[0], job[1], rounding, seed, progress)

    for (_, path), (written, dropped) in zip(jobs, (run or map)(one, jobs), strict=True):
        rows, bad = rows + written, bad + dropped
        finished.add(names[path])
        if state is not None:
            state.write(finished)
    if state is not None:
        _copy_descriptions(x, target, state.identity)
        state.remove()
    return Applied(rows, len(jobs), len(plan) - len(todo), bad)


class _State:
    """What a run over several files has finished, in a small file among the results."""

    def __init__(self, folder: str, eraser: Eraser, table: Table, rounding: str, seed: int) -> None:
        self.folder, self.path = local_path(folder), outputs.inside(local_path(folder), STATE)
        about = {
            "eraser": eraser_hash(eraser),
            "input": [source.location.fingerprint() for source in table.sources],
            "columns": list(table.columns),
            "rounding": [rounding, seed],
            "skip_bad": table.skip_bad,
        }
        self.identity = hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16).hexdigest()

    def finished(self, overwrite: bool) -> set[str]:
        """Files that an earlier run with the same eraser and input has written.

        Raises:
            ExciseError: another run was stopped here.
        """
        if not outputs.exists(self.path):
            return set()
        try:
            stored = json.loads(outputs.read_text(self.path))
            same, done = stored["run"] == self.identity, {name for name in stored["done"] if isinstance(name, str)}
        except (ValueError, KeyError, TypeError):
            same, done = False, set()
        if same:
            return done
        if overwrite:
            return set()
        raise ExciseError(
            f"{self.folder} holds results of another run that was stopped (another eraser or input): pass --overwrite to "
            f"start again, or another folder",
            code="another-run",
        )

    def write(self, done: set[str]) -> None:
        outputs.make_folder(self.folder)
        outputs.write_text(self.path, json.dumps({"run": self.identity, "done": sorted(done)}))

    def remove(self) -> None:
        outputs.remove(self.path)


def eraser_hash(eraser: Any) -> str:
    """Of everything that decides what an eraser does."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="excise-") as folder:
        path = Path(folder, "eraser")
        eraser.save(path)
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def _copy_descriptions(x: str | os.PathLike[str], target: str, identity: str) -> None:
    """What `datasets` needs beside the files; its fingerprint is that of other data now."""
    folder, target = local_path(x), local_path(target)
    for name in ("dataset_info.json", HUGGING_FACE):
        source = f"{folder.rstrip('/')}/{name}"
        if outputs.exists(source):
            text = outputs.read_text(source)
            if name == HUGGING_FACE:
                state = json.loads(text)
                state["_fingerprint"] = hashlib.blake2b(
                    f"{state.get('_fingerprint')}{identity}".encode(), digest_size=8
                ).hexdigest()
                text = json.dumps(state, indent=2, sort_keys=True)
            outputs.write_text(outputs.inside(target, name), text)
