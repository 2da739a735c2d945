"""What the commands on language models share: loading them, opening data sets, writing tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from excise.errors import ExciseError
from excise.scrubbing.models import load_model, load_tokenizer

if TYPE_CHECKING:
    from excise.text.tagged import TaggedText

__all__ = [
    "BatchOption",
    "ConceptName",
    "CsvOption",
    "DataArgument",
    "DeviceOption",
    "DtypeOption",
    "FigureOption",
    "GgufOption",
    "JsonOption",
    "KindOption",
    "LimitOption",
    "MarkdownOption",
    "ModelArgument",
    "check_outputs",
    "load_model",
    "load_tokenizer",
    "open_data",
    "write_table",
]

ModelArgument = Annotated[str, typer.Argument(help="A model: a name on the Hugging Face hub, or a folder.")]
DataArgument = Annotated[Path, typer.Argument(help="A data set that `excise tag` made with the model's tokenizer.")]
GgufOption = Annotated[
    str | None, typer.Option(help="The file of the folder or repository that holds the weights, for GGUF models.")
]
ConceptName = Annotated[
    str | None,
    typer.Option("--concept", "-c", help="Which concept of the data set; not needed where it has only one."),
]
BatchOption = Annotated[int, typer.Option(help="Sequences in one forward pass.")]
LimitOption = Annotated[int | None, typer.Option(help="Use only the first so many sequences.")]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda, ...; a GPU where there is one unless given.")]
DtypeOption = Annotated[str, typer.Option(help="Of the model: float32, bfloat16 or float16.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Also write the table as JSON.")]
KindOption = Annotated[
    str | None, typer.Option(help="causal or masked; by the class of the model, or by a trial, unless given.")
]
CsvOption = Annotated[Path | None, typer.Option("--csv", help="Also write the table as CSV.")]
MarkdownOption = Annotated[Path | None, typer.Option("--markdown", help="Also write the table as Markdown.")]
FigureOption = Annotated[Path | None, typer.Option("--figure", help="Also draw it (PNG, SVG or PDF).")]


def open_data(model: str, gguf_file: str | None, *sets: tuple[Path, int | None]) -> list[TaggedText]:
    """The first sequences of tagged data sets, checked against the model's tokenizer before any long work."""
    from excise.text.tagged import TaggedText

    opened = [(TaggedText.load(path), limit) for path, limit in sets]  # what is on disk is looked at before the hub
    tokenizer = load_tokenizer(model, gguf_file)
    for data, _ in opened:
        data.check_tokenizer(tokenizer)
    return [data if limit is None else data[:limit] for data, limit in opened]


def check_outputs(*paths: Path | None, figure: Path | None = None) -> None:
    """Raises ExciseError, before any long work, where a file could not be written at the end of it."""
    for path in (*paths, figure):
        if path is not None and not path.parent.is_dir():
            raise ExciseError(f"cannot write {path}: the folder {path.parent} does not exist")
        if path is not None and not os.access(path.parent, os.W_OK):
            raise ExciseError(f"cannot write {path}: no permission to write into {path.parent}")
    if figure is not None and figure.suffix not in (".png", ".svg", ".pdf"):
        raise ExciseError(f"cannot draw {figure}: expected a file that ends in .png, .svg or .pdf")


def write_table(table: Any, json: Path | None, csv: Path | None, markdown: Path | None) -> None:
    if json is not None:
        table.to_json(json)
    if csv is not None:
        table.to_csv(csv)
    if markdown is not None:
        markdown.write_text(table.to_markdown() + "\n", encoding="utf-8")
