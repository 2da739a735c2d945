"""`excise evaluate`: what a language model can still do, as it is and scrubbed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from excise.cli._models import (
    BatchOption,
    ConceptName,
    CsvOption,
    DataArgument,
    DeviceOption,
    DtypeOption,
    FigureOption,
    GgufOption,
    JsonOption,
    KindOption,
    LimitOption,
    MarkdownOption,
    ModelArgument,
    check_outputs,
    load_model,
    open_data,
    write_table,
)
from excise.cli._shared import plain_warnings

__all__ = ["evaluate"]


def evaluate(
    model: ModelArgument,
    data: DataArgument,
    scrubber: Annotated[
        list[Path] | None,
        typer.Option("--scrubber", "-s", help="A folder of `excise scrub`; may be given several times."),
    ] = None,
    control: Annotated[
        str | None, typer.Option(help="Also scrub with these methods, comma-separated (random,sal); needs --fit.")
    ] = None,
    fit: Annotated[
        Path | None,
        typer.Option(
            help="The tagged text that the scrubber was fitted on: for controls, the unigram baseline and layers."
        ),
    ] = None,
    fit_limit: Annotated[int | None, typer.Option(help="Use only the first so many sequences of --fit.")] = None,
    layers: Annotated[
        bool,
        typer.Option(
            "--layers", help="Also how well a linear classifier finds the concept at every site; needs --fit."
        ),
    ] = False,
    concept: ConceptName = None,
    batch_size: BatchOption = 16,
    limit: LimitOption = None,
    kind: KindOption = None,
    seed: Annotated[int, typer.Option(help="Of the masks of a masked model, and of the random control.")] = 0,
    device: DeviceOption = None,
    dtype: DtypeOption = "float32",
    gguf_file: GgufOption = None,
    json: JsonOption = None,
    csv: CsvOption = None,
    markdown: MarkdownOption = None,
    figure: FigureOption = None,
) -> None:
    """Loss, bits per UTF-8 byte and accuracy on held-out text: clean, scrubbed, with controls, and a unigram baseline.

    Causal models: nats per token, bits per byte, perplexity, accuracy. Masked models: loss and accuracy of masked tokens, and of
    all tokens with nothing masked. With a scrubber also the divergence from the clean model. Standard errors are over sequences.

    Examples:

      excise evaluate EleutherAI/pythia-160m test

      excise evaluate EleutherAI/pythia-160m test --scrubber scrubber --fit train --control random,sal --json table.json

      excise evaluate ./my-model test --scrubber scrubber --fit train --layers --figure table.png
    """
    from excise.errors import need

    need("transformers", "excise evaluate", "torch", "transformers")
    from excise.errors import ExciseError
    from excise.loading import load
    from excise.measuring.decodability import decodability
    from excise.measuring.evaluation import evaluate_each
    from excise.measuring.kinds import check_kind, kind_of
    from excise.measuring.unigram import Unigram
    from excise.methods.table import METHODS, check_method
    from excise.scrubbing.identity import check_identity
    from excise.scrubbing.loop import scrub
    from excise.scrubbing.scrubber import Scrubber

    check_outputs(json, csv, markdown, figure=figure)
    check_kind(kind)
    controls = [name.strip() for name in (control or "").split(",") if name.strip()]
    for name in controls:
        check_method(name, {})
    if (controls or layers) and fit is None:
        raise ExciseError(
            "--control and --layers need the text to fit on: pass --fit DATA, the data set of `excise scrub`"
        )
    if layers and not scrubber:
        raise ExciseError("--layers shows the concept before and after scrubbing: pass --scrubber too")
    sets = [(data, limit), *([] if fit is None else [(fit, fit_limit)])]
    batches, *rest = (text.batches(batch_size, concept) for text in open_data(model, gguf_file, *sets))
    fitting = rest[0] if rest else None
    chosen: dict[str, Any] = {"none": None}
    for folder in scrubber or []:
        loaded = load(folder)
        if not isinstance(loaded, Scrubber):
            raise ExciseError(
                f"{folder} holds {type(loaded).__name__}, expected a scrubber: make one with `excise scrub`"
            )
        name = str(loaded.about["method"])
        chosen[name if name not in chosen else f"{name} ({folder})"] = loaded
    loaded_model = load_model(model, gguf_file, device, dtype)
    kind = kind or kind_of(loaded_model, next(iter(batches)))
    for loaded in chosen.values():
        if loaded is not None:
            check_identity(loaded_model, loaded.identity)  # before any long work
    with plain_warnings():
        for name in controls:
            options = {"seed": seed} if METHODS[name].seeded else {}
            chosen[name if name not in chosen else f"{name} (control)"] = scrub(loaded_model, fitting, name, **options)  # type: ignore[arg-type]
        unigram = None
        if fitting is not None:
            unigram = Unigram.fit(fitting, loaded_model.get_input_embeddings().weight.shape[0], kind)
        table = evaluate_each(loaded_model, batches, chosen, unigram, kind, seed=seed)
    typer.echo(str(table))
    write_table(table, json, csv, markdown)
    if layers and fitting is not None:
        first = next(found for found in chosen.values() if found is not None)
        by_layer = decodability(loaded_model, fitting, first, batches)
        typer.echo(f"\n{by_layer}")
        write_table(by_layer, *(_beside(path) for path in (json, csv, markdown)))
    if figure is not None:
        from excise.reporting.language_models import decodability_picture, evaluation_picture

        evaluation_picture(table, figure)
        if layers:
            decodability_picture(by_layer, _beside(figure) or figure)


def _beside(path: Path | None) -> Path | None:
    """table.json -> table-layers.json"""
    return None if path is None else path.with_name(f"{path.stem}-layers{path.suffix}")
