"""All commands in one application."""

from __future__ import annotations

import typer

from excise.cli.amnesic import amnesic
from excise.cli.apply import apply
from excise.cli.audit import audit
from excise.cli.compare import compare
from excise.cli.demo import demo
from excise.cli.evaluate import evaluate
from excise.cli.fit import fit
from excise.cli.fold import fold
from excise.cli.merge import merge
from excise.cli.reproduce import reproduce
from excise.cli.scrub import scrub
from excise.cli.tag import tag

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Remove a concept from representations so that no linear classifier can find it again.

    Start with `excise demo`. For arrays and tables: fit, apply, audit, compare. For language models: tag, scrub, evaluate,
    fold. Every command has examples in its own help: `excise fit --help`.

    Examples:

      excise fit embeddings.npy gender.npy -o eraser.safetensors

      excise apply eraser.safetensors embeddings.npy -o clean.npy

      excise audit embeddings.npy gender.npy -e eraser.safetensors --refit leace --html audit.html

    Exit status: 0 done or guarded, 1 not guarded (audit), 2 misuse or failure, 130 interrupted.""",
)
app.command()(demo)
app.command()(fit)
app.command()(apply)
app.command()(merge)
app.command()(audit)
app.command()(compare)
app.command()(tag)
app.command()(scrub)
app.command()(evaluate)
app.command()(amnesic)
app.command()(fold)
app.command()(reproduce)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True)) -> None:
    if show:
        from excise import __version__

        typer.echo(f"excise {__version__}")
        raise typer.Exit
