"""Texts for a sentence encoder, as batches for its transformer: tokenised as the encoder itself would."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from excise.errors import ConceptError, InputError
from excise.numerics.arrays import host
from excise.scrubbing.wrappers import inner_transformer

__all__ = ["TextBatches", "text_batches"]

AT_ONCE = 32  # texts in one forward pass


class TextBatches:
    """Dicts of what the tokenizer of a SentenceTransformer gives, and one label per text."""

    def __init__(self, model: Any, texts: list[str], labels: Any, batch_size: int = AT_ONCE) -> None:
        self.model, self.texts, self.labels, self.batch_size = model, texts, labels, batch_size

    def __len__(self) -> int:
        return -(-len(self.texts) // self.batch_size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        tokenise = getattr(self.model, "preprocess", None) or self.model.tokenize
        for first in range(0, len(self.texts), self.batch_size):
            rows = slice(first, first + self.batch_size)
            yield {**tokenise(self.texts[rows]), "concept": self.labels[rows]}


def text_batches(model: Any, texts: Iterable[Any], labels: Any) -> Iterable[Any]:
    """Batches of a SentenceTransformer's texts with their labels; batches that are dicts already are left alone.

    Args:
        model: a SentenceTransformer.
        texts: strings.
        labels: one per text: classes (strings, integers), numbers, or (n, k) columns of numbers.

    Raises:
        InputError, ConceptError: labels without a SentenceTransformer, or of another number than the texts.
    """
    if inner_transformer(model) is None:
        raise InputError(
            f"labels= belongs to the texts of a SentenceTransformer, and this is a {type(model).__name__}: put the labels into the "
            f"batches, under 'concept'",
            code="labels",
        )
    items = list(texts)
    if labels is None:
        if items and isinstance(items[0], str):
            raise ConceptError("these are texts without labels: scrub(model, texts, labels=...)", code="labels")
        return items
    if not items or not all(isinstance(item, str) for item in items):
        raise InputError("with labels=, batches must be a list of texts (strings)", code="labels")
    z = np.asarray(host(labels) if hasattr(labels, "dtype") else labels)
    if z.ndim not in (1, 2) or len(z) != len(items):
        raise ConceptError(f"{len(items)} texts, but labels of shape {z.shape}: pass one label, or k numbers, per text")
    return TextBatches(model, items, z[:, None, :].astype(np.float64) if z.ndim == 2 else z)
