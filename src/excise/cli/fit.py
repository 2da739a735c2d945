"""`excise fit`: an eraser from files of features and labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from excise.cli._shared import (
    ConceptOption,
    FeaturesOption,
    LabelsArgument,
    XArgument,
    options_of,
    plain_warnings,
)
from excise.progress import Progress

__all__ = ["fit"]


def fit(
    x: XArgument,
    z: LabelsArgument = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the eraser.")] = Path(
        "eraser.safetensors"
    ),
    method: Annotated[
        str, typer.Option("--method", "-m", help="leace, oracle, sal, mean_projection, fair_pca or random.")
    ] = "leace",
    features: FeaturesOption = None,
    concept: ConceptOption = None,
    kind: Annotated[
        str | None, typer.Option(help="categorical or continuous, where the labels do not say it themselves.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="An option of the method, e.g. --option shrinkage=oas.")
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Give unit vectors, and erase the concept from these: several passes.")
    ] = False,
    condition_on: Annotated[
        Path | None,
        typer.Option(help="A file of classes, one per row: erase what the concept says within each of them."),
    ] = None,
    save_moments: Annotated[
        Path | None, typer.Option(help="Also keep the moments here: any method can be fitted from them later.")
    ] = None,
) -> None:
    """Fit an eraser on a file of features, in one pass and little memory.

    Examples:

      excise fit embeddings.npy gender.npy -o eraser.safetensors

      excise fit people.parquet --features embedding --concept sex --concept race
    """
    from excise.concepts.concept import Concept
    from excise.data import open_table
    from excise.errors import ConceptError, ExciseError
    from excise.fitting import fit_moments
    from excise.methods.table import check_method
    from excise.moments.moments import Moments

    options = options_of(option)
    found = check_method(method, options)  # before any long work
    if found.needs_with(options) not in ("moments", "variances") or found.uses_task == "must":
        raise ExciseError(f"method {method!r} is not fitted from one pass over files: use excise.fit in Python")
    for target in (output, save_moments):
        if target is not None and not target.parent.is_dir():
            raise ExciseError(f"cannot write {target}: the folder {target.parent} does not exist")
    table = open_table(x, z, features, concept)
    if table.z is None:
        raise ConceptError("no labels: pass a second file, or name the column(s) of X with --concept")
    if normalize or condition_on is not None:
        _fit_in_passes(table, method, kind, normalize, condition_on, options, output)
        return
    track = found.needs == "moments" or save_moments is not None
    learnt = None
    if kind is not None:
        learnt = Concept.of(next(table.batches())[1], kind=kind)  # type: ignore[arg-type]
    with plain_warnings(), Progress(table.n, "moments") as bar:
        m = table.moments(Moments(concept=learnt, track_xx=track), bar.advance)
    if save_moments is not None:
        m.save(save_moments)
    with plain_warnings():
        try:
            eraser = fit_moments(m, method, **options)
        except TypeError as error:
            raise ExciseError(
                f"an option of {method} has the wrong type ({error}): {', '.join(option or [])}"
            ) from None
    eraser.save(output)
    names = [str(name) for name in m.concept.names]
    shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    typer.echo(f"{method}: {m.rows:,} rows, {m.d} features, concept {m.concept.kind} ({shown}), rank {eraser.rank}")
    if eraser.info.get("canonical_correlations"):
        shown = ", ".join(f"{c:.3f}" for c in eraser.info["canonical_correlations"][:6])
        typer.echo(f"canonical correlations before: {shown}")
    typer.echo(f"eraser: {output}")


def _fit_in_passes(
    table: Any,
    method: str,
    kind: str | None,
    normalize: bool,
    condition_on: Path | None,
    options: dict[str, Any],
    output: Path,
) -> None:
    from excise.errors import ConceptError
    from excise.fitting import fit_batches

    batches = table.batches
    if condition_on is not None:
        import numpy as np

        if condition_on.suffix != ".npy" or not condition_on.is_file():
            raise ConceptError(f"--condition-on takes a .npy file of one class per row, got {condition_on}")
        classes = np.load(condition_on, mmap_mode="r")
        if classes.ndim != 1 or len(classes) != table.n:
            raise ConceptError(f"{condition_on} has shape {classes.shape}, expected ({table.n},): one class per row")

        def batches() -> Any:
            at = 0
            for X, z in table.batches():
                yield X, z, np.asarray(classes[at : at + len(X)])
                at += len(X)

    with plain_warnings():
        eraser = fit_batches(
            batches, kind=kind, normalize=normalize, conditional=condition_on is not None, method=method, **options
        )
    eraser.save(output)
    rounds = f", {eraser.info['rounds']} rounds, residual {eraser.info['residual']:.1e}" if normalize else ""
    typer.echo(f"{method}: {eraser.info['rows']:,} rows, {eraser.d} features, rank {eraser.rank}{rounds}")
    typer.echo(f"eraser: {output}")
