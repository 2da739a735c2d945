"""`excise scrub`: erase a concept at every layer of a language model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from excise.cli._models import (
    BatchOption,
    ConceptName,
    DataArgument,
    DeviceOption,
    DtypeOption,
    GgufOption,
    LimitOption,
    ModelArgument,
    load_model,
    open_data,
)
from excise.cli._shared import interruptible, options_of, plain_warnings

__all__ = ["scrub"]


def scrub(
    model: ModelArgument,
    data: DataArgument,
    concept: ConceptName = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the scrubber; a run that was stopped goes on from there.")
    ] = Path("scrubber"),
    method: Annotated[
        str,
        typer.Option("--method", "-m", help="leace, sal, mean_projection, fair_pca, oracle, random, inlp or rlace."),
    ] = "leace",
    sites: Annotated[
        list[str] | None,
        typer.Option(
            help="residual, embeddings, or module paths and patterns; what attentions and MLPs read unless given."
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="An option of the method, e.g. --option shrinkage=oas.")
    ] = None,
    where: Annotated[
        str, typer.Option(help="all: erasers act on every token; labelled: only on tokens that have a label.")
    ] = "all",
    batch_size: BatchOption = 16,
    limit: LimitOption = None,
    cache: Annotated[str, typer.Option(help="Where hidden states are kept: auto, gpu, ram, disk or none.")] = "auto",
    device: DeviceOption = None,
    dtype: DtypeOption = "float32",
    gguf_file: GgufOption = None,
) -> None:
    """Fit an eraser at every site of a model, block by block, so that no layer holds the concept linearly.

    The model itself is not changed: the folder holds erasers, which `excise evaluate` or `scrubber.attached(model)` put to work.

    Examples:

      excise scrub EleutherAI/pythia-160m train --concept upos -o scrubber

      excise scrub ./my-bert train -m inlp --sites residual --option rounds=20 --limit 500 -o inlp
    """
    from excise.errors import need

    need("transformers", "excise scrub", "torch", "transformers")
    from excise.errors import ExciseError
    from excise.methods.table import check_method
    from excise.scrubbing.loop import scrub as run

    options = options_of(option)
    check_method(method, options)  # before any long work
    if not output.parent.is_dir():
        raise ExciseError(f"cannot write {output}: the folder {output.parent} does not exist")
    batches = open_data(model, gguf_file, (data, limit))[0].batches(batch_size, concept)
    chosen = sites[0] if sites is not None and len(sites) == 1 else sites
    with interruptible(lambda: _kept(output)), plain_warnings():
        scrubber = run(
            load_model(model, gguf_file, device, dtype),
            batches,
            method,
            chosen,
            cache,
            resume=output,
            where=where,
            **options,
        )
    ranks = sorted({eraser.rank for eraser in scrubber.erasers.values()})
    typer.echo(
        f"{method}: {batches.concept} ({len(batches.names)} labels) erased at {len(scrubber.erasers)} sites, rank "
        f"{ranks[0]}{f' to {ranks[-1]}' if len(ranks) > 1 else ''}, from {scrubber.about['labelled']:,} labelled tokens: {output}"
    )
    if scrubber.coverage is not None:
        typer.echo(scrubber.coverage.line)


def _kept(output: Path) -> str:
    from excise.scrubbing.folder import holds_scrubber

    if not holds_scrubber(output):
        return "nothing was written"
    return f"the erasers fitted so far are kept in {output}; run the same command again to continue"
