"""`excise apply`: erase from a file of features with a fitted eraser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from excise.cli._shared import ConceptOption, FeaturesOption
from excise.progress import Progress

__all__ = ["apply"]


def apply(
    eraser: Annotated[Path, typer.Argument(help="An eraser that `excise fit` or `eraser.save` wrote.")],
    x: Annotated[Path, typer.Argument(help="Features: a .npy, .npz or .parquet file.", metavar="X")],
    z: Annotated[
        Path | None,
        typer.Argument(
            help="Labels, for erasers that need them (oracle, quadratic); or name columns of X.", metavar="[Z]"
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="A .npy or .parquet file.")] = Path("erased.npy"),
    features: FeaturesOption = None,
    concept: ConceptOption = None,
    rounding: Annotated[
        str, typer.Option(help="nearest, or stochastic: keeps small edits alive in 16-bit data.")
    ] = "nearest",
    seed: Annotated[int, typer.Option(help="For stochastic rounding.")] = 0,
) -> None:
    """Erase from a file of features, batch by batch. From Parquet to Parquet, all other columns are kept.

    Examples:

      excise apply eraser.safetensors embeddings.npy -o erased.npy

      excise apply eraser.safetensors people.parquet -f embedding -o erased.parquet
    """
    from excise.data import apply_to_file, open_table
    from excise.erasers.protocol import Eraser
    from excise.errors import ConceptError, InputError
    from excise.loading import load

    loaded = load(eraser)
    if not isinstance(loaded, Eraser):
        raise InputError(f"{eraser} holds {type(loaded).__name__}, expected an eraser: fit one with `excise fit`")
    table = open_table(x, z, features, concept)
    if loaded.needs_labels and table.z is None:
        raise ConceptError("this eraser needs the labels: pass a file of labels, or name columns with --concept")
    if table.d != loaded.d:
        raise InputError(f"{x} has {table.d} features, the eraser was fitted on {loaded.d}")
    batch = 0

    def erase(X: Any, labels: Any) -> Any:
        nonlocal batch
        batch += 1  # each batch draws its own random numbers
        return loaded(X, labels, rounding=rounding, rounding_seed=seed * 1_000_003 + batch)

    with Progress(table.n, "erasing") as bar:
        apply_to_file(erase, table, output, bar.advance)
    typer.echo(f"{table.n:,} rows, {table.d} features: {output}")
