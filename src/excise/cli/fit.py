"""`excise fit`: an eraser from files of features and labels."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from excise.cli._fit_report import FitReport
from excise.cli._shared import (
    ConceptOption,
    FeaturesOption,
    JsonFlag,
    LabelsArgument,
    LabelsOption,
    OverwriteOption,
    SchedulerOption,
    SkipBadOption,
    WorkersOption,
    check_new,
    interruptible,
    one_of,
    options_of,
    plain_warnings,
    say_dropped,
)
from excise.progress import Progress

__all__ = ["fit"]


def fit(
    x: Annotated[
        str | None,
        typer.Argument(
            help="Features: a file (.npy, .npz, .safetensors, .parquet, .arrow, .feather, .csv), a glob, a folder, or a URL.",
            metavar="DATA",
        ),
    ] = None,
    z: LabelsArgument = None,
    labels: LabelsOption = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the eraser.")] = Path(
        "eraser.safetensors"
    ),
    method: Annotated[
        str,
        typer.Option(
            "--method",
            "-m",
            help="leace, oracle, sal, mean_projection, splince, fair_pca, quadratic, random; inlp and rlace on a sample.",
        ),
    ] = "leace",
    features: FeaturesOption = None,
    concept: ConceptOption = None,
    task: Annotated[
        list[str] | None, typer.Option("--task", help="Column of DATA that holds the task, for splince and inlp.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="categorical or continuous, if it cannot be inferred from the labels.")
    ] = None,
    task_kind: Annotated[
        str | None, typer.Option(help="categorical or continuous, if it cannot be inferred from the task's values.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="An option of the method, e.g. --option shrinkage=oas.")
    ] = None,
    normalize: Annotated[
        bool,
        typer.Option(
            "--normalize", help="Give unit vectors, and erase the concept from these: several passes over DATA."
        ),
    ] = False,
    condition_on: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN|FILE",
            help="Classes of a task (a column of DATA, or a .npy file): erase what the concept says within each of them.",
        ),
    ] = None,
    sample: Annotated[
        int, typer.Option(min=2, help="Rows for the methods that train on rows (inlp, rlace): a uniform sample.")
    ] = 100_000,
    seed: Annotated[int, typer.Option(help="Of that sample.")] = 0,
    skip_bad: SkipBadOption = False,
    moments: Annotated[
        Path | None, typer.Option(help="Fit from these moments (`--save-moments`, `excise merge`); no DATA then.")
    ] = None,
    save_moments: Annotated[
        Path | None, typer.Option(help="Also keep the moments here: other methods can be fitted from them later.")
    ] = None,
    moments_only: Annotated[
        bool, typer.Option("--moments-only", help="Gather and save the moments, fit nothing: one part of many.")
    ] = False,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Write down here how far it came; a run that was stopped goes on from there.")
    ] = None,
    checkpoint_every: Annotated[float, typer.Option(min=0, help="Seconds between two checkpoints.")] = 60.0,
    scheduler: SchedulerOption = None,
    workers: WorkersOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how many rows there are, and the memory and time it would take.")
    ] = False,
    overwrite: OverwriteOption = False,
    as_json: JsonFlag = False,
) -> None:
    """Fit an eraser on files of features, in one pass and little memory.

    Exit status: 0 if the eraser was written, 2 for misuse or failure.

    Examples:

      excise fit embeddings.npy gender.npy -o eraser.safetensors

      excise fit 'shards/*.parquet' -f embedding -c gender,source

      excise fit folder -c gender --checkpoint fit.checkpoint

      excise fit embeddings.npy gender.npy --normalize

      excise fit people.parquet -f embedding -c sex --condition-on job

      excise fit part-7 -c gender --save-moments 7.moments --moments-only
    """
    from excise.cli._estimates import show_plan
    from excise.data import Checkpoint, fit_table, gather, learn_recipe, open_table
    from excise.data.fitting import check_table_method
    from excise.errors import ExciseError

    z, options = one_of(z, labels), options_of(option)
    needs = check_table_method(method, options, bool(task)).needs_with(options)  # before any long work
    if moments_only and save_moments is None:
        raise ExciseError("--moments-only needs --save-moments: where are they to go?")
    if (x is None) == (moments is None):
        raise ExciseError("pass DATA, or --moments and no DATA")
    if moments is not None and dry_run:
        raise ExciseError("--dry-run is for DATA: a fit from --moments reads nothing else")
    if needs == "rows" and (save_moments is not None or scheduler or workers):
        raise ExciseError(
            f"method {method!r} trains on rows: it has no moments to save, and runs on this machine alone"
        )
    if checkpoint is not None and (scheduler or workers):
        raise ExciseError("--checkpoint is for one machine: a cluster repeats lost work by itself")
    if normalize or condition_on is not None:
        if moments is not None or save_moments is not None or checkpoint is not None or scheduler or workers or task:
            raise ExciseError(
                "--normalize and --condition-on read the files themselves, on this machine: leave --moments, --save-moments, "
                "--checkpoint, --scheduler, --workers and --task out"
            )
        if not dry_run:
            check_new(overwrite, output)
            _fit_in_passes(
                str(x),
                z,
                features,
                concept,
                method,
                kind,
                options,
                normalize,
                condition_on,
                skip_bad,
                labels is not None,
                output,
            ).show(as_json)
            return
    if not dry_run:
        check_new(overwrite, None if moments_only else output, save_moments)
    if moments is not None:
        _from_moments(moments, method, options, output).show(as_json)
        return
    table = open_table(str(x), z, features, concept, task, skip_bad, sure=labels is not None)
    if dry_run:
        show_plan(table, method, needs, as_json, kind, sample)
        return
    left_out = [] if features else _left_out(table)
    began = time.perf_counter()
    keeper = None if checkpoint is None else Checkpoint(checkpoint, checkpoint_every)

    def kept() -> str:
        if keeper is None:
            return "nothing was written; with --checkpoint FILE a fit that was stopped continues where it was"
        if not keeper.path.exists():
            return f"nothing was written; {keeper.path} is written every {keeper.every:g} seconds"
        return f"{keeper.path} holds what was read; run the same command again to continue from there"

    with ExitStack() as stack:
        stack.enter_context(interruptible(kept))
        stack.enter_context(plain_warnings())
        run: Any = gather
        if scheduler or workers:
            from excise.distributed import connected, gather_on

            run = gather_on(stack.enter_context(connected(scheduler, workers)))
        bar = stack.enter_context(Progress(table.n if table.counted else None, "reading"))
        if moments_only:
            recipe = learn_recipe(table, "class moments" if needs == "class moments" else "moments", kind)
            more = {} if keeper is None else {"checkpoint": keeper}
            gathered = run(table, recipe, progress=bar.advance, **more)
            fitted = None
        else:
            fitted = fit_table(
                table,
                method,
                kind=kind,
                sample_rows=sample,
                seed=seed,
                progress=bar.advance,
                checkpoint=keeper,
                run=run,
                track_all=save_moments is not None,
                task_kind=task_kind,
                **options,
            )
            gathered = fitted.gathered
    if save_moments is not None:
        gathered.main.save(save_moments)
    if fitted is not None:
        fitted.eraser.save(output)
    if keeper is not None:
        keeper.remove()
    bad = gathered.bad if fitted is None else fitted.bad
    say_dropped(bad)
    rows = gathered.rows - bad.count if fitted is None else fitted.rows
    eraser: Any = None if fitted is None else fitted.eraser
    FitReport(
        method,
        rows,
        time.perf_counter() - began,
        table.d,
        gathered.main.concept if gathered is not None else eraser.concept,
        eraser,
        None if fitted is None else output,
        save_moments,
        fitted.of if fitted is not None and rows < fitted.of - bad.count else None,
        bad.count,
        0 if keeper is None else keeper.resumed,
        left_out,
    ).show(as_json)


def _left_out(table: Any) -> list[str]:
    """Notes on columns that were not asked for and are not used; none if one list column holds the features."""
    if table.feature_names is None:
        return []
    text = "are not numbers, so nothing is erased from them (encode them, for example one-hot, to include them)"
    return table.left_out.notes("of numbers are not used", text)  # type: ignore[no-any-return]


def _fit_in_passes(
    x: str,
    z: Any,
    features: list[str] | None,
    concept: list[str] | None,
    method: str,
    kind: str | None,
    options: dict[str, Any],
    normalize: bool,
    condition_on: str | None,
    skip_bad: bool,
    sure: bool,
    output: Path,
) -> FitReport:
    from excise.data import open_table
    from excise.data.fitting import fit_in_passes

    began = time.perf_counter()
    file = condition_on is not None and condition_on.endswith(".npy")
    task = [condition_on] if condition_on is not None and not file else None
    condition: str | bool = condition_on if condition_on is not None and file else task is not None
    table = open_table(x, z, features, concept, task, skip_bad, sure=sure)
    left_out = [] if features else _left_out(table)
    with plain_warnings(), Progress(None, "reading") as bar:
        fitted = fit_in_passes(table, method, kind, normalize, condition, bar.advance, **options)
    fitted.eraser.save(output)
    say_dropped(fitted.bad)
    seconds = time.perf_counter() - began
    return FitReport(
        method, fitted.rows, seconds, table.d, fitted.eraser.concept, fitted.eraser, output, notes=left_out
    )


def _from_moments(path: Path, method: str, options: dict[str, Any], output: Path) -> FitReport:
    from excise.errors import InputError
    from excise.fitting import fit_moments
    from excise.loading import load
    from excise.moments.class_moments import ClassMoments
    from excise.moments.moments import Moments

    began = time.perf_counter()
    m = load(path)
    if not isinstance(m, (Moments, ClassMoments)):
        raise InputError(f"{path} holds {type(m).__name__}, expected moments: make them with --save-moments")
    with plain_warnings():
        eraser = fit_moments(m, method, **options)
    eraser.save(output)
    rows = int(m.rows if isinstance(m, Moments) else m.rows.sum())
    return FitReport(method, rows, time.perf_counter() - began, eraser.d, m.concept, eraser, output)
