"""Options that several commands have, how they read data, and how they show warnings."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from excise.errors import ExciseError, ExciseWarning, Interrupted

__all__ = [
    "ConceptOption",
    "FeaturesOption",
    "GroupsOption",
    "JsonFlag",
    "LabelsArgument",
    "LabelsOption",
    "OverwriteOption",
    "SchedulerOption",
    "SkipBadOption",
    "WorkersOption",
    "XArgument",
    "check_new",
    "interruptible",
    "one_of",
    "options_of",
    "plain_warnings",
    "read_all",
    "say_dropped",
    "say_notes",
    "show_json",
]

XArgument = Annotated[
    str,
    typer.Argument(
        help="Features: a file (.npy, .npz, .safetensors, .parquet, .arrow, .feather, .csv), a glob, a folder, or a URL.",
        metavar="DATA",
    ),
]
LabelsArgument = Annotated[
    str | None,
    typer.Argument(
        help="Labels, one per row, in files of their own. Leave out if they are columns of DATA (-c).",
        metavar="[LABELS]",
    ),
]
LabelsOption = Annotated[
    str | None,
    typer.Option("--labels", help="LABELS by name: for a file that looks like more DATA but does hold the labels."),
]
FeaturesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--features",
        "-f",
        help="Column(s) or array that hold the features: one list column, or many numeric ones. Comma-separated or repeated.",
    ),
]
GroupsOption = Annotated[
    Path | None,
    typer.Option("--groups", help="One group per row (a person, a document): its rows stay together in a split."),
]
ConceptOption = Annotated[
    list[str] | None,
    typer.Option(
        "--concept",
        "-c",
        help="Column(s) or array that hold the labels. Several are erased jointly. Comma-separated or repeated.",
    ),
]
SkipBadOption = Annotated[
    bool,
    typer.Option("--skip-bad", help="Drop and count rows with missing or infinite features or without a label."),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace an output that exists.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
SchedulerOption = Annotated[
    str | None,
    typer.Option(help="Work on this Dask cluster, e.g. tcp://10.0.0.1:8786. All its machines must see the files."),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(min=1, help="Work on a Dask cluster of so many processes on this machine."),
]


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings of excise as one line, without the source code that they came from."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ExciseWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, ExciseWarning):
            typer.echo(f"note: {warning.message}", err=True)
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


@contextmanager
def interruptible(kept: Callable[[], str]) -> Iterator[None]:
    """Say on Ctrl-C what is kept and how to continue.

    Raises:
        Interrupted: in place of KeyboardInterrupt.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(kept()) from None


def check_new(overwrite: bool, *targets: str | os.PathLike[str] | None) -> None:
    """
    Raises:
        ExciseError: a file could not be written at the end of the work, or exists and is not to be replaced.
    """
    for target in targets:
        if target is None:
            continue
        folder = Path(os.path.realpath(target)).parent
        if not folder.is_dir():
            raise ExciseError(
                f"cannot write {target}: the folder {Path(target).parent} does not exist", code="no-folder"
            )
        if Path(target).is_dir():
            raise ExciseError(f"cannot write {target}: it is a folder", code="output-exists")
        if Path(target).exists() and not overwrite:
            raise ExciseError(
                f"{target} exists already: pass --overwrite to replace it, or another output", code="output-exists"
            )


def show_json(result: dict[str, Any]) -> None:
    """One JSON object on the output stream."""
    typer.echo(json.dumps(result, default=str))


def say_notes(notes: Iterable[str]) -> None:
    for note in notes:
        typer.echo(f"note: {note}", err=True)


def say_dropped(bad: Any) -> None:
    """Say what --skip-bad has dropped."""
    if bad.count:
        typer.echo(f"note: {bad.count:,} rows were dropped: {bad.describe()}", err=True)


def one_of(z: str | None, labels: str | None) -> str | None:
    """The file of labels, which has its place after DATA and a name.

    Raises:
        ExciseError: it was given both ways.
    """
    if z is not None and labels is not None:
        raise ExciseError(
            f"the labels were given twice, as {z} and as --labels {labels}. If {z} is more DATA (the shell has expanded a glob), "
            f"quote the glob or pass the folder"
        )
    return labels if z is None else z


def read_all(
    x: str | os.PathLike[str],
    z: str | os.PathLike[str] | None,
    features: list[str] | None,
    concept: list[str] | None,
    sure: bool = False,
) -> tuple[Any, Any]:
    """X and its labels, whole: one .npy file on this machine stays a memory map.

    Raises:
        ExciseError: the features do not fit into memory.
    """
    import numpy as np

    from excise.data import open_table
    from excise.data.labels import plain
    from excise.numerics.memory import require_memory

    table = open_table(x, z, features, concept, sure=sure)
    source: Any = table.sources[0]
    is_map = len(table.sources) == 1 and source.location.suffix == ".npy" and source.location.is_local
    if not is_map:
        require_memory(
            2 * table.n * table.row_bytes, f"{x}: all of its rows at once", "use a sample of the rows, or a .npy file"
        )
    parts = [(batch.X if not is_map else None, batch.z) for batch in table.stream(again=False)] if not is_map else []
    X = np.load(source.location.path, mmap_mode="r", allow_pickle=False) if is_map else None
    if X is None:
        X = np.concatenate([part for part, _ in parts])
    if not table.has_labels:
        return X, None
    if is_map:
        labels = [plain(piece) for source in table.labels for piece in source.stream(0, None)]
    else:
        labels = [z for _, z in parts]
    return X, _joined(labels)


def _joined(parts: list[Any]) -> Any:
    from excise.data.labels import join

    if hasattr(parts[0], "chunks"):  # one column of a table
        import pyarrow

        return pyarrow.chunked_array([chunk for part in parts for chunk in part.chunks])
    return join(parts)


def options_of(pairs: list[str] | None) -> dict[str, Any]:
    """["shrinkage=oas", "strength=0.5"] -> {"shrinkage": "oas", "strength": 0.5}"""
    out: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ExciseError(f"--option takes name=value, got {pair!r}")
        try:
            out[name] = json.loads(value)
        except ValueError:
            out[name] = value
    return out
