"""What the commands on language models share: loading them, opening data sets, writing tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from excise.errors import ExciseError

if TYPE_CHECKING:
    from excise.scrubbing.tagged import TaggedText

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
CsvOption = Annotated[Path | None, typer.Option("--csv", help="Also write the table as CSV.")]
MarkdownOption = Annotated[Path | None, typer.Option("--markdown", help="Also write the table as Markdown.")]
FigureOption = Annotated[Path | None, typer.Option("--figure", help="Also draw it (PNG, SVG or PDF).")]


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise ExciseError("this command needs transformers: pip install 'excise[transformers]'") from None
    return transformers


def _loaded(loader: Any, name: str, gguf_file: str | None, **options: Any) -> Any:
    more = {} if gguf_file is None else {"gguf_file": gguf_file}
    try:
        return loader.from_pretrained(name, **more, **options)
    except (OSError, ValueError) as error:
        first = str(error).strip().split("\n")[0]
        raise ExciseError(f"cannot load {name!r} with {loader.__name__}: {first}") from None


def load_tokenizer(name: str, gguf_file: str | None = None) -> Any:
    return _loaded(_transformers().AutoTokenizer, name, gguf_file)


def load_model(name: str, gguf_file: str | None = None, device: str | None = None, dtype: str = "float32") -> Any:
    """A causal or masked language model, by what its configuration says it is.

    Raises:
        ExciseError: it cannot be loaded, or it has no language-modelling head.
    """
    import torch

    transformers = _transformers()
    if dtype not in ("float32", "float64", "bfloat16", "float16"):
        raise ExciseError(f"--dtype must be float32, float64, bfloat16 or float16, got {dtype!r}")
    if gguf_file is None:
        config = _loaded(transformers.AutoConfig, name, None)
        heads = [
            head for head in config.architectures or [] if head.endswith(("ForMaskedLM", "ForCausalLM", "LMHeadModel"))
        ]
        if not heads:
            raise ExciseError(
                f"{name} is saved as {', '.join(config.architectures or ['?'])}, a model without a language-modelling head: "
                f"its loss cannot be measured; pass a ...ForCausalLM or ...ForMaskedLM"
            )
        masked = heads[0].endswith("ForMaskedLM")
    else:
        masked = False
    loader = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    model = _loaded(loader, name, gguf_file, dtype=getattr(torch, dtype))
    return model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()


def open_data(path: Path, tokenizer: Any, limit: int | None = None) -> TaggedText:
    """A tagged data set, checked against the model's tokenizer before any long work."""
    from excise.scrubbing.tagged import TaggedText

    data = TaggedText.load(path)
    data.check_tokenizer(tokenizer)
    return data if limit is None else data[:limit]


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
        markdown.write_text(table.to_markdown() + "\n")
