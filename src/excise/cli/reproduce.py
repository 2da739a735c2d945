"""`excise reproduce`: a table or figure of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from excise.cli._shared import interruptible

__all__ = ["reproduce"]


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which one; leave it out to see the list.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A folder for the results.", show_default="experiments/NAME")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A folder of local data of the same kind; the paper's own, by hub name, unless given."),
    ] = None,
    models: Annotated[Path | None, typer.Option(help="A folder that holds small local models.")] = None,
    model: Annotated[str | None, typer.Option(help="A model by hub name or folder, in place of the usual one.")] = None,
    gguf_file: Annotated[str | None, typer.Option(help="The GGUF file in the model's folder.")] = None,
    window: Annotated[
        int | None,
        typer.Option(
            help="Tokens per window of text: the paper's 2,048, or the model's context if that is shorter (256 with --quick)."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small size, below 3 minutes on 2 cores.")] = False,
    seed: Annotated[int, typer.Option(help="Of all that is drawn at random.")] = 0,
) -> None:
    """Reproduce a table or figure of the LEACE paper: result.json, table.md, figure.png and figure.svg.

    A run that was stopped goes on after its last finished step. What is a theorem must hold, or the command fails; what
    is an empirical finding is reported as measured.

    Examples:

      excise reproduce

      excise reproduce oblique

      excise reproduce intrinsic --data folder --quick
    """
    from excise.experiments import EXPERIMENTS, Options
    from excise.experiments import reproduce as run
    from excise.experiments.running import markdown

    if name is None:
        for known, (_, what) in EXPERIMENTS.items():
            typer.echo(f"{known:12} {what}")
        return
    folder = output or Path("experiments") / name
    kept = f"finished steps are kept in {folder}; run the same command again to continue"
    with interruptible(lambda: kept if folder.exists() else "nothing was written"):
        result = run(name, folder, Options(data, models, model, gguf_file, window), quick, seed)
    typer.echo(markdown(result["columns"], result["rows"]) + "\n")
    for finding in result["findings"]:
        kind = "theorem" if finding["theorem"] else "found"
        note = f" ({finding['note']})" if finding["note"] else ""
        typer.echo(f"{kind}: {finding['statement']}: {'yes' if finding['holds'] else 'no'}{note}")
    typer.echo(f"\nthe paper: {result['paper']}\n{result['seconds']} s; results in {folder}")
