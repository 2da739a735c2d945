"""A tokenised, labelled data set: made from LabelledText, kept in one folder, read in batches as often as one likes.

Every row is one sequence for the model. Beside the ids it has the label of each piece for each concept (-100: none), the
UTF-8 bytes that each piece stands for, and which positions are special tokens.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from excise import files
from excise.errors import ConceptError, FileFormatError, InputError
from excise.text.words import Ints

__all__ = ["Batches", "TaggedText", "fingerprint"]

FILE = "tagged.safetensors"


def fingerprint(tokenizer: Any) -> str:
    """A hash of the vocabulary: two tokenizers with the same one give ids the same meaning."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class TaggedText:
    """Sequences of tokens with labels; make it with `tag`, keep it with `save`, get it back with `load`."""

    input_ids: Ints  # (n, t) int32, padded on the right
    lengths: Ints  # (n,) int32
    special: Ints  # (n, t) bool: special tokens and padding
    bytes: Ints  # (n, t) int32: UTF-8 bytes of the text that each token adds
    labels: Mapping[str, Ints]  # concept -> (n, t) int32 codes
    names: Mapping[str, Sequence[Any]]  # concept -> name of each code
    about: Mapping[str, Any]  # tokenizer, packing, ...

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: slice) -> TaggedText:
        """Some of the sequences, e.g. data[:100]."""
        if not isinstance(rows, slice):
            raise InputError(f"a data set is cut by a slice, e.g. data[:100], got {rows!r}")
        cut = {name: getattr(self, name)[rows] for name in ("input_ids", "lengths", "special", "bytes")}
        return replace(self, **cut, labels={name: codes[rows] for name, codes in self.labels.items()})

    @property
    def tokens(self) -> int:
        """Tokens of the text; special tokens and padding do not count."""
        return int((~self.special).sum())

    @property
    def chunk_bytes(self) -> Ints:
        """(n,) UTF-8 bytes of text in each sequence."""
        return np.asarray(self.bytes.sum(axis=1))

    def concept(self, name: str | None = None) -> str:
        """The concept of that name, or the only one.

        Raises:
            ConceptError: there is none of that name, or several and none was named.
        """
        if name is None and len(self.labels) == 1:
            return next(iter(self.labels))
        if name is None or name not in self.labels:
            said = f"no concept {name!r}" if name is not None else "several concepts: say which"
            raise ConceptError(f"{said}; this data set has {', '.join(self.labels)}")
        return name

    def batches(self, batch_size: int = 16, concept: str | None = None) -> Batches:
        """Batches for `excise.scrub` and `excise.evaluate`; they can be iterated as often as one likes."""
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise InputError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
        if not len(self):
            raise InputError("this data set is empty: there are no sequences to batch")
        return Batches(self, batch_size, self.concept(concept))

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Raises InputError unless the ids mean the same to this tokenizer."""
        if fingerprint(tokenizer) != self.about["tokenizer"]["vocabulary"]:
            own = self.about["tokenizer"]
            raise InputError(
                f"this data set was tagged with another tokenizer ({own['name']}, {own['size']} tokens) than the model's "
                f"({getattr(tokenizer, 'name_or_path', '?')}, {len(tokenizer)} tokens): tag the text again with the model's"
            )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the data set into a folder, which is made where its parent exists."""
        target = Path(folder)
        if not target.parent.is_dir():
            raise FileFormatError(f"cannot write {target}: the folder {target.parent} does not exist")
        target.mkdir(exist_ok=True)
        arrays = {name: getattr(self, name) for name in ("input_ids", "lengths", "special", "bytes")}
        arrays |= {f"labels.{name}": codes for name, codes in self.labels.items()}
        about = {"names": {name: list(names) for name, names in self.names.items()}, **self.about}
        files.write(target / FILE, "TaggedText", arrays, about)

    @staticmethod
    def load(folder: str | os.PathLike[str]) -> TaggedText:
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: there is no such data set.
            FileFormatError: it is truncated, not from excise, or from a newer excise.
        """
        path = Path(folder) / FILE
        if not path.is_file():
            raise FileNotFoundError(f"no tagged data set in {folder} (no file {FILE}): make one with `excise tag`")
        kind, arrays, about = files.read(path)
        if kind != "TaggedText":
            raise FileFormatError(f"{path} holds a {kind}, expected a TaggedText")
        try:
            names = about.pop("names")
            labels = {name: arrays[f"labels.{name}"] for name in names}
            parts = {name: arrays[name] for name in ("input_ids", "lengths", "special", "bytes")}
            return TaggedText(**parts, labels=labels, names=names, about=about)
        except KeyError as error:
            raise FileFormatError(f"{path} holds a TaggedText with {error} missing") from None

    def __repr__(self) -> str:
        concepts = ", ".join(f"{name} ({len(names)} labels)" for name, names in self.names.items())
        return f"TaggedText({len(self)} sequences, {self.tokens} tokens, {int(self.bytes.sum())} bytes; {concepts})"


class Batches:
    """Dicts of PyTorch tensors (B, T): input_ids, attention_mask, concept, bytes, special; T is the longest of the batch."""

    def __init__(self, data: TaggedText, batch_size: int, concept: str) -> None:
        self.data, self.batch_size, self.concept = data, batch_size, concept
        self.names: list[Any] = list(data.names[concept])
        self.mask_token_id: int | None = data.about["tokenizer"]["mask_token_id"]

    def __len__(self) -> int:
        return -(-len(self.data) // self.batch_size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import torch

        data = self.data
        for first in range(0, len(data), self.batch_size):
            rows = slice(first, first + self.batch_size)
            longest = int(data.lengths[rows].max())
            present = np.arange(longest) < data.lengths[rows, None]
            arrays = {
                "input_ids": data.input_ids[rows, :longest].astype(np.int64),
                "attention_mask": present.astype(np.int64),
                "concept": data.labels[self.concept][rows, :longest].astype(np.int64),
                "bytes": data.bytes[rows, :longest].astype(np.int64),
                "special": data.special[rows, :longest].astype(bool),
            }
            yield {name: torch.from_numpy(array) for name, array in arrays.items()}
