"""Labelled text as people keep it (Parquet, JSONL, CoNLL-U, a spaCy pipeline) -> LabelledText, one after the other."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from excise.data.parquet import open_parquet
from excise.errors import ConceptError, ExciseError, FileFormatError, InputError
from excise.text.words import LabelledText, find_words, join_words

__all__ = ["read_conllu", "read_labelled", "read_spacy", "records"]

SUFFIXES = (".parquet", ".jsonl", ".conllu")
CONLLU = {"form": 1, "lemma": 2, "upos": 3, "xpos": 4, "feats": 5, "deprel": 7}


def read_labelled(
    path: str | os.PathLike[str], concepts: Sequence[str], where: Mapping[str, str] | None = None
) -> Iterator[LabelledText]:
    """Texts and labels of a .parquet, .jsonl or .conllu file.

    Rows of Parquet and JSONL have either `text`, `starts`, `ends` (characters) and a list of labels per concept; or `text` and
    `words`; or `words` alone, which are joined by single spaces; or `text` and one label per concept for all of it.

    Args:
        path: the file.
        concepts: columns (Parquet, JSONL); of CoNLL-U upos, xpos, deprel, lemma, form, or a feature as "feats.Number".
        where: only rows with these values, e.g. {"split": "train"} (Parquet, JSONL).

    Raises:
        FileNotFoundError, InputError, ConceptError, FileFormatError: no such file, column or value; a row that is none of these.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    if file.suffix not in SUFFIXES:
        raise ExciseError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}")
    if not concepts:
        raise ConceptError(f"no concept: name the column of {path} that holds the labels")
    if file.suffix == ".conllu":
        if where:
            raise InputError(f"{path}: CoNLL-U files have no columns to choose rows by ({', '.join(where)})")
        return read_conllu(file, concepts)
    return _from_rows(file, concepts, where or {})


def records(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Rows of a Parquet or JSONL file as dicts."""
    if path.suffix == ".parquet":
        file = open_parquet(path)
        known = [name for name in file.schema_arrow.names if columns is None or name in columns]
        for batch in file.iter_batches(batch_size=1000, columns=known):
            yield from batch.to_pylist()
        return
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise FileFormatError(f"{path}, line {number} is not JSON ({error})") from None
                if not isinstance(row, dict):
                    raise FileFormatError(f"{path}, line {number}: expected a JSON object, got {type(row).__name__}")
                yield row


def _from_rows(path: Path, concepts: Sequence[str], where: Mapping[str, str]) -> Iterator[LabelledText]:
    wanted = ["text", "words", "starts", "ends", *concepts, *where]
    found = 0
    for number, row in enumerate(records(path, wanted)):
        for column in (*concepts, *where):
            if column not in row:
                have = open_parquet(path).schema_arrow.names if path.suffix == ".parquet" else list(row)
                raise InputError(f"{path}, row {number} has no column {column!r}; it has {', '.join(have)}")
        if any(str(row[column]) != value for column, value in where.items()):
            continue
        found += 1
        try:
            yield _labelled(row, {name: row[name] for name in concepts})
        except InputError as error:
            raise InputError(f"{path}, row {number}: {error}") from None
    if not found:
        chosen = " and ".join(f"{column} = {value}" for column, value in where.items())
        raise InputError(f"{path} has no rows{' with ' + chosen if chosen else ''}: the data set would be empty")


def _labelled(row: Mapping[str, Any], labels: Mapping[str, Any]) -> LabelledText:
    text, words, starts, ends = (row.get(name) for name in ("text", "words", "starts", "ends"))
    if text is not None and starts is not None and ends is not None:
        return LabelledText(text, starts, ends, labels)
    if words is not None and text is not None:
        return LabelledText(text, *find_words(text, words), labels)
    if words is not None:
        return LabelledText(*join_words(words), labels)
    if text is None:
        raise InputError(f"needs `text` or `words`, got {', '.join(k for k, v in row.items() if v is not None)}")
    listed = [name for name, values in labels.items() if isinstance(values, list)]
    if listed:
        raise InputError(f"{listed[0]!r} has a label per word, but there are neither `words` nor `starts` and `ends`")
    return LabelledText(text, [0] if text else [], [len(text)] if text else [], labels)


def read_conllu(path: Path, concepts: Sequence[str]) -> Iterator[LabelledText]:
    """Sentences of a CoNLL-U file. The text is `# text =`, else the forms joined as SpaceAfter says.

    A multiword token gives its parts their own spans where they spell it ("don't" = do + n't); where they do not ("du" =
    de + le), the pieces of it belong to no single word and get no label. Empty nodes are left out.
    """
    for concept in concepts:
        column, _, feature = concept.partition(".")
        if column not in CONLLU or (column == "feats") != bool(feature):
            raise ConceptError(f"CoNLL-U has {', '.join(CONLLU)} ('feats.Number' for a feature), got {concept!r}")
    comments: dict[str, str] = {}
    lines: list[list[str]] = []
    found = 0
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate([*file, "\n"], 1):
            if line.startswith("#"):
                name, _, value = line[1:].partition("=")
                comments[name.strip()] = value.strip()
            elif line.strip():
                lines.append(line.rstrip("\n").split("\t"))
                if len(lines[-1]) != 10:
                    raise FileFormatError(f"{path}, line {number}: expected 10 columns, got {len(lines[-1])}")
            elif lines:
                found += 1
                try:
                    yield _sentence(comments.get("text"), lines, concepts)
                except InputError as error:
                    raise InputError(f"{path}, sentence before line {number}: {error}") from None
                comments, lines = {}, []
    if not found:
        raise InputError(f"{path} has no sentences: the data set would be empty")


def _sentence(text: str | None, lines: list[list[str]], concepts: Sequence[str]) -> LabelledText:
    surface: list[str] = []  # what stands in the text, in order
    after: list[str] = []
    labels: list[list[str | None]] = [[] for _ in concepts]
    rows = {line[0]: line for line in lines}
    covered = 0  # words up to this number belong to a multiword token that is done
    for line in lines:
        number = line[0]
        if "." in number or ("-" not in number and int(number) <= covered):
            continue
        words: list[list[str] | None] = [line]
        if "-" in number:
            first, covered = (int(end) for end in number.split("-"))
            parts = [rows[str(i)] for i in range(first, covered + 1)]
            words = list(parts) if "".join(part[1] for part in parts) == line[1] else [None]
        for word in words:
            surface.append(line[1] if word is None else word[1])
            after.append("")
            for column, concept in zip(labels, concepts, strict=True):
                column.append(None if word is None else _value(word, concept))
        after[-1] = "" if "SpaceAfter=No" in line[9].split("|") else " "
    if text is None:
        text = "".join(word + space for word, space in zip(surface, after, strict=True)).rstrip()
    return LabelledText(text, *find_words(text, surface), dict(zip(concepts, labels, strict=True)))


def _value(word: list[str], concept: str) -> str | None:
    column, _, feature = concept.partition(".")
    value = word[CONLLU[column]]
    if feature:
        return dict(pair.split("=", 1) for pair in value.split("|") if "=" in pair).get(feature)
    return value if value != "_" or column == "form" else None


def read_spacy(
    texts: Iterable[str], pipeline: Any, concept: str = "pos", attribute: str | None = None
) -> Iterator[LabelledText]:
    """Texts labelled by a spaCy pipeline: its object, or its name (needs `pip install 'excise[text]'`).

    Args:
        texts: raw texts.
        pipeline: e.g. "en_core_web_sm", or `spacy.load(...)`.
        concept: what the labels are called in the data set.
        attribute: of a spaCy token; the concept's name with an underscore unless given ("pos" -> "pos_").
    """
    if isinstance(pipeline, str):
        try:
            import spacy
        except ImportError:
            raise ExciseError("labelling with a spaCy pipeline needs spaCy: pip install 'excise[text]'") from None
        try:
            pipeline = spacy.load(pipeline)
        except OSError as error:
            raise ExciseError(f"spaCy has no pipeline {pipeline!r} ({error}): python -m spacy download ...") from None
    name = attribute or f"{concept}_"
    for document in pipeline.pipe(texts):
        words = [token for token in document if not token.text.isspace()]
        if words and not hasattr(words[0], name):
            raise ConceptError(f"spaCy tokens have no attribute {name!r}: pass pos, tag, dep or ent_type")
        starts = [token.idx for token in words]
        ends = [token.idx + len(token.text) for token in words]
        yield LabelledText(document.text, starts, ends, {concept: [getattr(token, name) or None for token in words]})
