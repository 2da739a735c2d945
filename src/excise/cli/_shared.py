"""Options that several commands have, and how they show progress and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from excise.errors import ExciseError, ExciseWarning

__all__ = [
    "ConceptOption",
    "FeaturesOption",
    "GroupsOption",
    "LabelsArgument",
    "XArgument",
    "options_of",
    "plain_warnings",
    "read_all",
]

XArgument = Annotated[Path, typer.Argument(help="Features: a .npy, .npz or .parquet file.", metavar="X")]
LabelsArgument = Annotated[
    Path | None,
    typer.Argument(
        help="Labels, one per row: .npy, .npz or .parquet. Leave out if they are columns of X.", metavar="[Z]"
    ),
]
FeaturesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--features", "-f", help="Column(s) of a Parquet file, or array of a .npz file, that hold the features."
    ),
]
GroupsOption = Annotated[
    Path | None,
    typer.Option("--groups", help="One group per row (a person, a document): its rows stay together in a split."),
]
ConceptOption = Annotated[
    list[str] | None,
    typer.Option("--concept", "-c", help="Column(s) or array that hold the labels. Several are erased jointly."),
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


def read_all(x: Path, z: Path | None, features: list[str] | None, concept: list[str] | None) -> tuple[Any, Any]:
    """X and its labels, whole: a .npy file stays a memory map."""
    import numpy as np

    from excise.data import open_table

    table = open_table(x, z, features, concept)
    X = getattr(table.x, "array", None)
    labels = None if table.z is None else getattr(table.z, "array", None)
    if X is None:
        X = np.concatenate(list(table.x.batches(table.batch_rows)))
    if table.z is not None and labels is None:  # columns of a Parquet file
        import pyarrow

        parts = list(table.z.batches(table.batch_rows))
        if hasattr(parts[0], "column_names"):
            labels = pyarrow.concat_tables(parts)
        else:
            labels = pyarrow.chunked_array([chunk for part in parts for chunk in part.chunks])
    return X, labels


def options_of(pairs: list[str] | None) -> dict[str, Any]:
    """["shrinkage=oas", "strength=0.5"] -> {"shrinkage": "oas", "strength": 0.5}"""
    import json

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
