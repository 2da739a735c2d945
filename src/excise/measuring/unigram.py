"""The baseline that knows how frequent tokens are and nothing else: what a model without any context would lose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.errors import InputError
from excise.text.words import Ints

__all__ = ["Unigram"]


@dataclass(frozen=True)
class Unigram:
    """Probability of each token whatever stands before it: (count + 1) / (total + size of the vocabulary).

    >>> Unigram(np.log([0.5, 0.25, 0.25])).scores(np.array([0, 2]))[1].tolist()
    [True, False]
    """

    log_probabilities: Ints  # (v,)

    @staticmethod
    def fit(batches: Iterable[Mapping[str, Any]], size: int, kind: str = "causal") -> Unigram:
        """Count the tokens that a model would be asked for, in a vocabulary of `size`.

        Args:
            batches: as for `excise.evaluate`.
            size: of the tokenizer's vocabulary.
            kind: "causal": all but the first of each sequence; "masked": all that are not special.

        Raises:
            InputError: no tokens, or ids beyond the vocabulary.
        """
        counts = np.zeros(size)
        for batch in batches:
            ids = np.asarray(batch["input_ids"])
            asked = np.ones(ids.shape, dtype=bool)
            if batch.get("attention_mask") is not None:
                asked &= np.asarray(batch["attention_mask"]) > 0
            if kind == "causal":
                asked[:, 0] = False
            elif batch.get("special") is not None:
                asked &= ~np.asarray(batch["special"])
            found = ids[asked]
            if len(found) and found.max() >= size:
                raise InputError(f"token {found.max()} is beyond the vocabulary of {size}: was another tokenizer used?")
            counts += np.bincount(found, minlength=size)
        if not counts.any():
            raise InputError("there are no tokens to count: the data set is empty")
        return Unigram(np.log(counts + 1.0) - np.log(counts.sum() + size))

    def scores(self, targets: Ints) -> tuple[Ints, Ints]:
        """Nats lost on each token, and whether it is the most frequent one."""
        return -self.log_probabilities[targets], targets == int(self.log_probabilities.argmax())
