"""`excise amnesic`: erase a concept at one layer at a time, and see what the model loses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from excise.cli._models import (
    BatchOption,
    ConceptName,
    CsvOption,
    DeviceOption,
    DtypeOption,
    FigureOption,
    GgufOption,
    JsonOption,
    KindOption,
    MarkdownOption,
    ModelArgument,
    check_outputs,
    load_model,
    open_data,
    write_table,
)

__all__ = ["amnesic"]


def amnesic(
    model: ModelArgument,
    fit: Annotated[Path, typer.Argument(help="The data set of `excise tag` to fit erasers and classifiers on.")],
    data: Annotated[Path, typer.Argument(help="The data set of `excise tag` to measure on.")],
    method: Annotated[
        list[str] | None, typer.Option("--method", "-m", help="leace, inlp and random unless given.")
    ] = None,
    layer: Annotated[list[int] | None, typer.Option("--layer", help="Only these blocks, from 0.")] = None,
    rounds: Annotated[int, typer.Option(help="Of INLP.")] = 20,
    concept: ConceptName = None,
    batch_size: BatchOption = 16,
    fit_limit: Annotated[int | None, typer.Option(help="Use only the first so many sequences to fit on.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use only the first so many sequences to measure on.")] = None,
    kind: KindOption = None,
    seed: Annotated[int, typer.Option(help="Of the masks and of the methods that draw at random.")] = 0,
    device: DeviceOption = None,
    dtype: DtypeOption = "float32",
    gguf_file: GgufOption = None,
    json: JsonOption = None,
    csv: CsvOption = None,
    markdown: MarkdownOption = None,
    figure: FigureOption = None,
) -> None:
    """Erase a concept from the residual stream after one block at a time: what does the model lose, what is left to find?

    INLP trains on all labelled tokens at once, round by round: a few hundred sequences are a good start for --fit-limit.

    Examples:

      excise amnesic bert-base-uncased train test --fit-limit 500 --figure amnesic.png

      excise amnesic bert-base-uncased train test -m leace -m random --layer 8 --layer 11 --json amnesic.json
    """
    from excise.errors import need

    need("transformers", "excise amnesic", "torch", "transformers")
    from excise.measuring.amnesic import amnesic as run

    check_outputs(json, csv, markdown, figure=figure)
    methods = method or ["leace", "inlp", "random"]
    opened = open_data(model, gguf_file, (fit, fit_limit), (data, limit))
    fitting, measured = (text.batches(batch_size, concept) for text in opened)
    options = {"inlp": {"rounds": rounds}} if "inlp" in methods else {}
    loaded = load_model(model, gguf_file, device, dtype)
    found = run(loaded, fitting, methods, measured, layer, options, seed, kind=kind)
    typer.echo(str(found))
    write_table(found, json, csv, markdown)
    if figure is not None:
        from excise.reporting.language_models import amnesic_picture

        amnesic_picture(found, figure)
