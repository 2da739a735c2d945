"""`excise fold`: a scrubber inside the weights of a model, or as a LoRA adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from excise.cli._models import DeviceOption, DtypeOption, GgufOption, ModelArgument, load_model, load_tokenizer
from excise.cli._shared import plain_warnings

__all__ = ["fold"]


def fold(
    model: ModelArgument,
    scrubber: Annotated[Path, typer.Argument(help="A folder of `excise scrub`, fitted on this model.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A new folder for the model or the adapter.")],
    lora: Annotated[
        bool, typer.Option("--lora", help="Write a LoRA adapter for PEFT instead of a whole model.")
    ] = False,
    concept: Annotated[
        str | None, typer.Option("--concept", "-c", help="Name of the concept, for the model card.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="The text it was fitted on, in words, for the model card.")] = None,
    evaluation: Annotated[
        Path | None, typer.Option(help="Figures of `excise evaluate --json`, for the model card.")
    ] = None,
    audit: Annotated[Path | None, typer.Option(help="A report of `excise audit --json`, for the model card.")] = None,
    license: Annotated[str | None, typer.Option(help="License of the base model, for the model card.")] = None,
    device: DeviceOption = None,
    dtype: DtypeOption = "float32",
    gguf_file: GgufOption = None,
) -> None:
    """Move the erasers of a scrubber into the weights of its model: no hooks, no excise, no run-time cost.

    The folder holds an ordinary checkpoint with its tokenizer and a model card; stock Transformers loads it. With --lora it
    holds an adapter that PEFT switches on and off. Sites that something else than linear layers reads (post-norm models) cannot
    be folded. Where a layer has no place for a bias, scrub with --option affine=false.

    Examples:

      excise fold EleutherAI/pythia-160m scrubber -o pythia-160m-no-pos -c "part of speech" --data "UD English EWT, train"

      excise fold meta-llama/Llama-3.2-1B scrubber -o adapter --lora --evaluation table.json
    """
    from excise.errors import need

    need("transformers", "excise fold", "torch", "transformers")
    if lora:
        need("transformers", "an adapter", "peft")
    from excise.errors import ExciseError
    from excise.exporting.checks import affine_erasers
    from excise.exporting.fold import fold as run
    from excise.exporting.lora import to_lora
    from excise.exporting.model_card import Facts, write_card
    from excise.loading import load
    from excise.scrubbing.scrubber import Scrubber

    loaded = load(scrubber)
    if not isinstance(loaded, Scrubber):
        raise ExciseError(
            f"{scrubber} holds {type(loaded).__name__}, expected a scrubber: make one with `excise scrub`"
        )
    affine_erasers(loaded)  # before any long work
    facts = Facts(
        concept, data, model, _read(evaluation, "rows", "evaluate"), license, _read(audit, "verdict", "audit")
    )
    _check_folder(output)
    tokenizer = load_tokenizer(model, gguf_file)
    subject: Any = load_model(model, gguf_file, device, dtype)
    with plain_warnings():
        if lora:
            to_lora(loaded, subject, output, facts=facts)
        else:
            run(loaded, subject).save_pretrained(output)  # type: ignore[operator]
            tokenizer.save_pretrained(output)
            write_card(output, loaded, subject, facts)
    size = sum(file.stat().st_size for file in output.iterdir() if file.suffix == ".safetensors")
    typer.echo(
        f"{len(loaded.erasers)} sites of {loaded.identity['model']} folded into {'an adapter' if lora else 'its weights'}, "
        f"{size / 1e6:,.1f} MB: {output}"
    )


def _check_folder(output: Path) -> None:
    from excise.errors import ExciseError

    if not output.parent.is_dir():
        raise ExciseError(f"cannot write {output}: the folder {output.parent} does not exist")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ExciseError(f"{output} exists already and is not empty: pass a new folder with -o")


def _read(path: Path | None, entry: str, command: str) -> dict[str, Any] | None:
    """What a command wrote as JSON, known by one of its entries, a list."""
    from excise.errors import FileFormatError

    if path is None:
        return None
    import json

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not isinstance(found[entry], list):
            raise KeyError(entry)
    except (ValueError, KeyError) as error:
        raise FileFormatError(f"{path} was not written by `excise {command} --json` ({error})") from None
    return found
