"""LabelledText -> TaggedText: tokenise, give every piece its word's label and bytes, pack or pad."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from excise.concepts.labels import name_order
from excise.errors import ConceptError, ExciseError, InputError
from excise.files import versions
from excise.progress import Progress
from excise.text.tagged import TaggedText, fingerprint
from excise.text.words import IGNORE, Ints, LabelledText, piece_bytes, piece_words

__all__ = ["tag"]

TEXTS_AT_ONCE = 512


@dataclass(frozen=True)
class _Tokens:
    """A run of tokens: all fields (t,), labels one row per concept (c, t)."""

    ids: Ints
    bytes: Ints
    special: Ints
    labels: Ints

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> _Tokens:
        return _Tokens(self.ids[part], self.bytes[part], self.special[part], self.labels[:, part])

    @staticmethod
    def joined(parts: Sequence[_Tokens]) -> _Tokens:
        fields = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "bytes", "special")}
        return _Tokens(**fields, labels=np.concatenate([part.labels for part in parts], axis=1))

    @staticmethod
    def of_special(ids: Sequence[int], concepts: int) -> _Tokens:
        n = len(ids)
        zeros = np.zeros(n, dtype=np.int64)
        return _Tokens(
            np.array(ids, dtype=np.int64), zeros, np.ones(n, dtype=bool), np.full((concepts, n), IGNORE, dtype=np.int64)
        )


def tag(
    texts: Iterable[LabelledText],
    tokenizer: Any,
    max_length: int = 512,
    packed: bool = False,
    separator: str | None = None,
    start: str | None = "auto",
    names: Mapping[str, Sequence[Any]] | None = None,
    progress: bool = True,
) -> TaggedText:
    """Tokenise labelled texts; each piece gets the label of the word that holds its first non-space character.

    Special tokens, pieces of spaces only and words without a label get -100.

    Args:
        texts: all with the same concepts.
        tokenizer: a fast tokenizer of Hugging Face (slow ones give no offsets).
        max_length: longest sequence, special tokens included; longer texts go on in the next one.
        packed: fill every sequence to max_length with texts one after the other, instead of one text a sequence, padded.
        separator: what stands between packed texts: a string such as " " or "\\n", which is tokenised with the text after
            it; None for the tokenizer's end-of-text token.
        start: a token at the start of every sequence, so that a causal model predicts the first word too. "auto": what the
            tokenizer puts there itself, else its bos or eos token; None: only what the tokenizer puts there itself.
        names: label names per concept in the order of their codes, e.g. those of another data set; a label that is not
            among them is an error. Learnt from the texts and sorted unless given.
        progress: show a bar on the terminal.

    Raises:
        InputError: a tokenizer without offsets, no texts, a max_length that holds no text.
        ConceptError: unknown label names, texts with other concepts than the first.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"{type(tokenizer).__name__} gives no character offsets, so labels of words cannot be carried to its pieces: pass a "
            f"fast tokenizer (AutoTokenizer.from_pretrained(..., use_fast=True))"
        )
    prefix, suffix = _around(tokenizer, start)
    room = max_length - len(prefix) - len(suffix)
    if room < 1:
        raise InputError(f"max_length {max_length} leaves no room beside {len(prefix) + len(suffix)} special tokens")
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    if packed and separator is None and end is None:
        raise ExciseError("this tokenizer has no end-of-text token to put between packed texts: pass separator=' '")
    coder = _Coder(names)
    runs: list[_Tokens] = []
    for text in _tokenised(texts, tokenizer, coder, separator if packed else None, progress):
        if packed and separator is None and runs:
            runs.append(_Tokens.of_special([end], len(coder.concepts)))
        runs.append(text)
    if not runs:
        raise InputError("there are no texts: the data set would be empty")
    if not any(len(run) for run in runs):
        raise InputError("the texts have no tokens: the data set would be empty")
    concepts = len(coder.concepts)
    before, after = _Tokens.of_special(prefix, concepts), _Tokens.of_special(suffix, concepts)
    cut = _packed(_Tokens.joined(runs), room, separator is None) if packed else _one_by_one(runs, room)
    rows = [_Tokens.joined([before, part, after]) for part in cut]
    about = {
        "tokenizer": {
            "name": str(getattr(tokenizer, "name_or_path", "")),
            "class": type(tokenizer).__name__,
            "size": len(tokenizer),
            "vocabulary": fingerprint(tokenizer),
            "mask_token_id": tokenizer.mask_token_id,
        },
        "packed": packed,
        "separator": separator,
        "start": tokenizer.convert_ids_to_tokens(prefix),
        "max_length": max_length,
        "texts": coder.texts,
        "versions": versions(),
    }
    return _padded(rows, coder, _pad_id(tokenizer), about)


def _around(tokenizer: Any, start: str | None) -> tuple[list[int], list[int]]:
    """Ids before and after the text: what the tokenizer adds itself, and a start token where it adds none."""
    plain = tokenizer("a", return_special_tokens_mask=True)
    ids, special = plain["input_ids"], plain["special_tokens_mask"]
    middle = [i for i, is_special in enumerate(special) if not is_special]
    first, last = (middle[0], middle[-1] + 1) if middle else (len(ids), len(ids))
    prefix, suffix = list(ids[:first]), list(ids[last:])
    if start == "auto":
        own = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        return (prefix if prefix or own is None else [own]), suffix
    if start is not None:
        known = tokenizer.get_vocab()
        if start not in known:
            raise InputError(f"start must be a token of the tokenizer, got {start!r}, which it does not know")
        prefix = [known[start]]
    return prefix, suffix


def _pad_id(tokenizer: Any) -> int:
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    return 0


class _Coder:
    """Label names -> codes, per concept, in the order of first sight until all are known."""

    def __init__(self, names: Mapping[str, Sequence[Any]] | None) -> None:
        self.given = None if names is None else {c: list(given) for c, given in names.items()}
        self.concepts: list[str] = []
        self.codes: list[dict[Any, int]] = []
        self.texts = 0

    def words(self, text: LabelledText) -> Ints:
        """(c, words + 1) codes of the words; the last column is "no word", so that word -1 has no label."""
        if not self.texts:
            self._begin(list(text.labels))
        elif list(text.labels) != self.concepts:
            raise ConceptError(
                f"text {self.texts} has the concepts {', '.join(text.labels)}, the ones before it {', '.join(self.concepts)}"
            )
        self.texts += 1
        table = np.full((len(self.concepts), len(text.starts) + 1), IGNORE, dtype=np.int64)
        for row, concept, codes in zip(table, self.concepts, self.codes, strict=True):
            for i, label in enumerate(text.labels_of(concept)):
                if label is not None:
                    name = label.item() if isinstance(label, np.generic) else label
                    row[i] = codes.setdefault(name, len(codes)) if self.given is None else self._known(concept, name)
        return table

    def _begin(self, concepts: list[str]) -> None:
        if not concepts:
            raise ConceptError("the texts have no labels: pass labels={'pos': [...]}")
        if self.given is not None and set(concepts) - set(self.given):
            missing = sorted(set(concepts) - set(self.given))
            raise ConceptError(f"no label names were given for {', '.join(missing)}; given: {', '.join(self.given)}")
        self.concepts = concepts
        self.codes = [{name: i for i, name in enumerate((self.given or {}).get(c, []))} for c in concepts]

    def _known(self, concept: str, name: Any) -> int:
        codes = self.codes[self.concepts.index(concept)]
        if name not in codes:
            raise ConceptError(
                f"unknown label {name!r} of {concept!r}; the names given are {', '.join(map(str, codes))}"
            )
        return codes[name]

    def finished(self, row: int) -> tuple[list[Any], Ints]:
        """Names in their final order, and for each code of `words` its final code (the last entry stands for -100)."""
        codes = self.codes[row]
        names = list(codes) if self.given is not None else sorted(codes, key=name_order)
        place = {name: i for i, name in enumerate(names)}
        return names, np.array([*(place[name] for name in codes), IGNORE])


def _tokenised(
    texts: Iterable[LabelledText], tokenizer: Any, coder: _Coder, separator: str | None, progress: bool
) -> Iterator[_Tokens]:
    stream = iter(Progress(None, "tagging", "texts", progress).over(texts))
    while chunk := list(islice(stream, TEXTS_AT_ONCE)):
        lead = separator or ""
        # The separator belongs to the text after it; there is none before the first.
        raw = [(lead if coder.texts or i else "") + text.text for i, text in enumerate(chunk)]
        encoded = tokenizer(raw, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        for text, whole, ids, offsets in zip(chunk, raw, encoded["input_ids"], encoded["offset_mapping"], strict=True):
            shift = len(whole) - len(text.text)
            table = coder.words(text)
            starts = [at + shift for at in text.starts]
            ends = [at + shift for at in text.ends]
            words = piece_words(whole, starts, ends, offsets)
            n = len(ids)
            yield _Tokens(
                np.array(ids, dtype=np.int64), piece_bytes(whole, offsets), np.zeros(n, dtype=bool), table[:, words]
            )


def _packed(stream: _Tokens, room: int, ended: bool) -> Iterator[_Tokens]:
    """Full windows of one long run. A window never begins with the end of the text before it."""
    at = 0
    while at < len(stream):
        if ended and stream.special[at]:
            at += 1
            continue
        yield stream[at : at + room]
        at += room


def _one_by_one(runs: list[_Tokens], room: int) -> Iterator[_Tokens]:
    for run in runs:
        for at in range(0, len(run), room):
            yield run[at : at + room]


def _padded(rows: list[_Tokens], coder: _Coder, pad: int, about: dict[str, Any]) -> TaggedText:
    n, longest = len(rows), max(len(row) for row in rows)
    ids, counts = np.full((n, longest), pad, dtype=np.int32), np.zeros((n, longest), dtype=np.int32)
    special = np.ones((n, longest), dtype=bool)
    labels = np.full((len(coder.concepts), n, longest), IGNORE, dtype=np.int32)
    finished = [coder.finished(c) for c in range(len(coder.concepts))]
    for i, row in enumerate(rows):
        t = len(row)
        ids[i, :t], counts[i, :t], special[i, :t] = row.ids, row.bytes, row.special
        for c, (_, place) in enumerate(finished):
            labels[c, i, :t] = place[np.where(row.labels[c] == IGNORE, -1, row.labels[c])]
    names = {concept: finished[c][0] for c, concept in enumerate(coder.concepts)}
    codes = {concept: labels[c] for c, concept in enumerate(coder.concepts)}
    lengths = np.array([len(row) for row in rows], dtype=np.int32)
    return TaggedText(ids, lengths, special, counts, codes, names, about)
