"""`excise apply`: erase from files of features with a fitted eraser."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import typer

from excise.cli._shared import (
    ConceptOption,
    FeaturesOption,
    JsonFlag,
    OverwriteOption,
    SchedulerOption,
    SkipBadOption,
    WorkersOption,
    XArgument,
    interruptible,
    say_dropped,
    say_notes,
    show_json,
)
from excise.progress import Progress

__all__ = ["apply"]


def apply(
    eraser: Annotated[Path, typer.Argument(help="An eraser that `excise fit` or `eraser.save` wrote.")],
    x: XArgument,
    z: Annotated[
        str | None,
        typer.Argument(
            help="Labels, for erasers that need them (oracle, quadratic); or name columns of DATA (-c).",
            metavar="[LABELS]",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="A file, or for a folder or a glob a folder that gets the same file names. `erased` unless given.",
        ),
    ] = None,
    features: FeaturesOption = None,
    concept: ConceptOption = None,
    rounding: Annotated[
        str, typer.Option(help="nearest, or stochastic: keeps small edits alive in 16-bit data.")
    ] = "nearest",
    seed: Annotated[int, typer.Option(help="For stochastic rounding.")] = 0,
    skip_bad: SkipBadOption = False,
    scheduler: SchedulerOption = None,
    workers: WorkersOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be written, and write nothing.")] = False,
    overwrite: OverwriteOption = False,
    as_json: JsonFlag = False,
) -> None:
    """Erase from files of features, batch by batch. All other columns, the order of rows and the layout are kept.

    Features are taken by the names that the eraser was fitted on, in whatever order the file has them. A file appears
    when it is whole; of a folder, a run that was stopped goes on with the files that are missing.

    Exit status: 0 if all was written, 2 for misuse or failure.

    Examples:

      excise apply eraser.safetensors embeddings.npy -o erased.npy

      excise apply eraser.safetensors people.parquet -o erased.parquet

      excise apply eraser.safetensors shards/ -o erased/
    """
    from excise.data.applying import apply_eraser, open_for, plan_outputs
    from excise.data.locations import find_files, is_collection
    from excise.erasers.protocol import Eraser
    from excise.errors import InputError
    from excise.loading import load

    began = time.perf_counter()
    loaded = load(eraser)
    if not isinstance(loaded, Eraser):
        raise InputError(f"{eraser} holds {type(loaded).__name__}, expected an eraser: fit one with `excise fit`")
    if output is None:
        output = "erased" if is_collection(x) else f"erased{PurePosixPath(find_files(x)[0].relative).suffix}"
    table = open_for(loaded, x, z, features, concept, skip_bad)
    plan = plan_outputs(x, output)
    if dry_run:
        _show_plan(table, plan, as_json)
        return

    def kept() -> str:
        if not is_collection(x):
            return "nothing was written"
        return f"the finished files are kept in {output}; run the same command again to write the others"

    with ExitStack() as stack:
        stack.enter_context(interruptible(kept))
        run: Any = None
        if scheduler or workers:
            from excise.distributed import apply_on, connected

            client = stack.enter_context(connected(scheduler, workers))
            run = apply_on(client, loaded, table, rounding, seed)
        bar = stack.enter_context(Progress(table.n if table.counted else None, "erasing"))
        done = apply_eraser(loaded, table, x, output, overwrite, rounding, seed, bar.advance, run)
    say_dropped(done.bad)
    left = _left_alone(table, loaded)
    if as_json:
        result: dict[str, Any] = {
            "rows": done.rows,
            "d": table.d,
            "files": done.files,
            "kept": done.kept,
            "dropped": done.bad.count,
        }
        result["left_alone"] = [*left.numbers, *left.others]
        show_json({**result, "output": output, "seconds": round(time.perf_counter() - began, 3)})
        return
    say_notes(
        left.notes("of numbers are unknown to the eraser and stay as they are", "are not numbers and stay as they are")
    )
    where = f" in {done.files} files" if done.files != 1 or done.kept else ""
    typer.echo(f"{done.rows:,} rows{where}, {table.d} features: {output}")
    if done.kept:
        typer.echo(f"{done.kept} files had been finished before this run")


def _left_alone(table: Any, eraser: Any) -> Any:
    """Columns that are not erased, but for the concept itself."""
    concept = set(eraser.info.get("concept_columns", []))
    return type(table.left_out)(*(tuple(name for name in names if name not in concept) for names in table.left_out))


def _show_plan(table: Any, plan: list[tuple[Any, str]], as_json: bool) -> None:
    if as_json:
        show_json({"rows": table.n, "d": table.d, "outputs": [path for _, path in plan]})
        return
    size = sum(location.size for location, _ in plan)
    typer.echo(f"{table.n:,} rows, {table.d} features, {size / 1e9:.2f} GB")
    for location, path in plan[:20]:
        typer.echo(f"{location} -> {path}")
    if len(plan) > 20:
        typer.echo(f"... and {len(plan) - 20} more")
