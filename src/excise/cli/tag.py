"""`excise tag`: text with labels of words -> tokens with labels, in batches for a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from excise.cli._models import GgufOption, load_tokenizer

__all__ = ["tag"]


def tag(
    text: Annotated[Path, typer.Argument(help="A .parquet, .jsonl or .conllu file.")],
    model: Annotated[str, typer.Argument(help="Whose tokenizer: a name on the Hugging Face hub, or a folder.")],
    concept: Annotated[
        list[str],
        typer.Option(
            "--concept", "-c", help="Column(s) of labels; of CoNLL-U upos, xpos, deprel or a feature: feats.Number."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the data set.")] = Path("tagged"),
    where: Annotated[
        list[str] | None, typer.Option("--where", help="Only rows with this value, e.g. --where split=train.")
    ] = None,
    max_length: Annotated[int, typer.Option(help="Longest sequence, in tokens, special ones included.")] = 512,
    packed: Annotated[
        bool, typer.Option("--packed/--padded", help="Fill every sequence with texts, or one text a sequence.")
    ] = False,
    separator: Annotated[
        str | None, typer.Option(help="Between packed texts, e.g. ' '; the end-of-text token unless given.")
    ] = None,
    start: Annotated[
        str,
        typer.Option(help="First token of every sequence; auto: the tokenizer's own, else its bos or eos token."),
    ] = "auto",
    like: Annotated[
        Path | None,
        typer.Option(help="A tagged data set whose label names to use: a label that it lacks is then an error."),
    ] = None,
    spacy: Annotated[
        str | None,
        typer.Option(help="Label the `text` column with this spaCy pipeline, e.g. en_core_web_sm with -c pos."),
    ] = None,
    gguf_file: GgufOption = None,
) -> None:
    """Carry labels of words over to the tokens of a model, and keep the result for `excise scrub` and `excise evaluate`.

    Each piece of a word gets the word's label, by character offsets; special tokens and spaces get none. Rows of Parquet
    and JSONL have `text`, `starts`, `ends` and lists of labels; or `words` and lists of labels; or `text` and one label.

    Examples:

      excise tag pos.parquet EleutherAI/pythia-160m -c upos --where split=train --packed --separator " " -o train

      excise tag pos.parquet EleutherAI/pythia-160m -c upos --where split=test --packed --separator " " --like train -o test

      excise tag en_ewt-ud-train.conllu bert-base-uncased -c upos -c feats.Number --max-length 128
    """
    from excise.errors import need

    need("transformers", "excise tag", "torch", "transformers")
    from excise.errors import ExciseError
    from excise.text.corpora import read_labelled, read_spacy, records
    from excise.text.tagged import TaggedText
    from excise.text.tagging import tag as run

    chosen = dict(pair.partition("=")[::2] for pair in where or [])
    if any("=" not in pair for pair in where or []):
        raise ExciseError(f"--where takes column=value, got {where[0]!r}" if where else "")
    if not output.parent.is_dir():
        raise ExciseError(f"cannot write {output}: the folder {output.parent} does not exist")
    if not text.exists():
        raise ExciseError(f"no such file: {text}")
    names = None if like is None else TaggedText.load(like).names
    if spacy is not None:
        if len(concept) != 1 or not text.is_file():
            raise ExciseError(
                f"--spacy labels the texts of one file with one concept, got {text}, {', '.join(concept)}"
            )
        rows = (row for row in records(text) if all(str(row.get(k)) == v for k, v in chosen.items()))
        texts = read_spacy((row["text"] for row in rows), spacy, concept[0])
    else:
        texts = read_labelled(text, concept, chosen)
    data = run(texts, load_tokenizer(model, gguf_file), max_length, packed, separator, start, names)
    data.save(output)
    typer.echo(
        f"{data.about['texts']:,} texts, {data.tokens:,} tokens, {int(data.bytes.sum()):,} bytes in {len(data):,} sequences of up "
        f"to {data.input_ids.shape[1]}: {output}"
    )
    for name, labels in data.names.items():
        share = float((data.labels[name][~data.special] >= 0).mean())
        typer.echo(f"{name}: {len(labels)} labels on {100 * share:.1f}% of the tokens ({', '.join(map(str, labels))})")
