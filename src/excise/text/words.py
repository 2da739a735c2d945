"""Labels of words -> labels of sub-word pieces, by character offsets.

A piece carries the label of the word that holds its first non-space character. Everything is counted in characters (code
points) of the text, as tokenizers give their offsets; bytes are those of the text in UTF-8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from excise.errors import InputError

__all__ = ["IGNORE", "LabelledText", "find_words", "join_words", "piece_bytes", "piece_words"]

IGNORE = -100  # "no label", as in PyTorch's losses

Ints: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class LabelledText:
    """A text, the spans of its words, and for each concept a label per word (None: no label), or one for the whole text.

    >>> LabelledText("It rains", [0, 3], [2, 8], {"pos": ["PRON", "VERB"], "mood": "sad"}).labels["mood"]
    'sad'
    """

    text: str
    starts: Sequence[int]
    ends: Sequence[int]
    labels: Mapping[str, Any]

    def __post_init__(self) -> None:
        starts, ends = np.asarray(self.starts, dtype=np.int64), np.asarray(self.ends, dtype=np.int64)
        where = f"in the text {_short(self.text)}"
        if len(starts) != len(ends):
            raise InputError(f"{len(starts)} starts but {len(ends)} ends {where}: pass one of each per word")
        bad = (starts < 0) | (ends <= starts) | (ends > len(self.text))
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise InputError(
                f"word {i} has offsets {starts[i]} to {ends[i]}, outside the text of {len(self.text)} characters or empty, "
                f"{where}: offsets count characters (code points), not bytes"
            )
        if (starts[1:] < ends[:-1]).any():
            i = int(np.flatnonzero(starts[1:] < ends[:-1])[0])
            raise InputError(
                f"words {i} and {i + 1} overlap or are out of order ({starts[i]} to {ends[i]}, {starts[i + 1]} to "
                f"{ends[i + 1]}) {where}"
            )
        for concept, labels in self.labels.items():
            if not _is_one(labels) and len(labels) != len(starts):
                raise InputError(
                    f"{len(labels)} labels of {concept!r} for {len(starts)} words {where}: pass one per word, or a "
                    f"single label for the whole text"
                )

    def labels_of(self, concept: str) -> list[Any]:
        """One label per word; a label of the whole text is repeated."""
        labels = self.labels[concept]
        return [labels] * len(self.starts) if _is_one(labels) else list(labels)


def _is_one(labels: Any) -> bool:
    return labels is None or isinstance(labels, (str, int, float, bool, np.generic))


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def join_words(words: Sequence[str]) -> tuple[str, list[int], list[int]]:
    """Words joined by single spaces, and their spans, for corpora that have no raw text.

    >>> join_words(["It", "rains"])
    ('It rains', [0, 3], [2, 8])
    """
    starts, ends, at = [], [], 0
    for i, word in enumerate(words):
        if not word or word.isspace():
            raise InputError(f"word {i} of {_short(' '.join(words))} is empty: drop it and its label")
        starts.append(at)
        ends.append(at + len(word))
        at += len(word) + 1
    return " ".join(words), starts, ends


def find_words(text: str, words: Sequence[str]) -> tuple[list[int], list[int]]:
    """Spans of words that follow each other in the text with nothing but spaces between.

    Raises:
        InputError: a word is not where it must be.

    >>> find_words("I don't.", ["I", "do", "n't", "."])
    ([0, 2, 4, 7], [1, 4, 7, 8])
    """
    starts, ends, at = [], [], 0
    for i, word in enumerate(words):
        while at < len(text) and text[at].isspace() and not text.startswith(word, at):
            at += 1
        if not word or not text.startswith(word, at):
            raise InputError(
                f"word {i} ({word!r}) is not at character {at} of {_short(text)} (there: {_short(text[at : at + 20])}): words "
                f"must follow each other with only spaces between; pass starts and ends otherwise"
            )
        starts.append(at)
        at += len(word)
        ends.append(at)
    return starts, ends


def _code_points(text: str) -> Ints:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def piece_words(text: str, starts: Sequence[int], ends: Sequence[int], offsets: Any) -> Ints:
    """Which word each piece belongs to: the one that holds its first non-space character; -1 where there is none.

    Args:
        text: what was tokenised.
        starts, ends: spans of the words (as in LabelledText).
        offsets: (pieces, 2) spans of the pieces, as a fast tokenizer gives them.

    Raises:
        InputError: offsets of pieces outside the text.

    >>> piece_words("It rains", [0, 3], [2, 8], [(0, 2), (2, 6), (6, 8), (8, 8)]).tolist()
    [0, 1, 1, -1]
    """
    n = len(text)
    spans = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
    if len(spans) and (spans.min() < 0 or spans.max() > n):
        raise InputError(f"the tokenizer gave offsets from {spans.min()} to {spans.max()} in a text of {n} characters")
    word_at = np.full(n + 1, -1)
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        word_at[start:end] = i
    # first[i]: the first non-space character at or after i, n where there is none.
    first = np.full(n + 1, n)
    solid = np.flatnonzero(~np.strings.isspace(_code_points(text).view("<U1")))
    first[:n] = np.append(solid, n)[np.searchsorted(solid, np.arange(n))]
    at = first[spans[:, 0]]
    return np.where(at < spans[:, 1], word_at[at], -1)


def piece_bytes(text: str, offsets: Any) -> Ints:
    """UTF-8 bytes of the text that each piece adds; their sum is the length of the text in bytes, exactly.

    A piece counts from where the pieces before it ended, so spaces that no piece covers belong to the piece after them
    (at the end of the text, to the last piece), and of pieces that share one character the first has all its bytes.

    >>> piece_bytes("é x", [(0, 1), (0, 1), (2, 3)]).tolist()
    [2, 0, 2]
    """
    spans = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
    if not len(spans):
        return np.zeros(0, dtype=np.int64)
    points = _code_points(text)
    before = np.append(0, np.cumsum(1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)))
    ends = np.maximum.accumulate(spans[:, 1])
    ends[-1] = len(text)
    return np.diff(before[ends], prepend=0)
