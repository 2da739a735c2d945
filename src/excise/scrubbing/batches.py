"""Labels of tokens: which positions count, and what the concept is there.

A batch brings one label per token (B, T), numbers per token (B, T, k), or one label per sequence (B,). Padding and
labels of -100 do not count.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.concepts.concept import Concept
from excise.errors import ConceptError, ExciseError, InputError
from excise.numerics.arrays import host

__all__ = ["IGNORED", "Data", "Labels", "read_labels"]

IGNORED = -100
Values = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Labels:
    """Of a batch with n = B * T positions."""

    keep: Values  # (n,) whether the position counts
    values: Values  # (kept,) classes, or (kept, k) numbers

    @property
    def kind(self) -> Any:
        return "categorical" if self.values.ndim == 1 else "continuous"


def read_labels(concept: Any, tokens: tuple[int, int], mask: Any = None) -> Labels:
    """Labels of a batch of (B, T) tokens; `mask` (B, T) is 0 where there is padding.

    Integers are classes, (B, T, k) are k columns of numbers, and (B,) is spread over the sequence. A position does not
    count where its label (all k of them) is -100.

    Raises:
        ConceptError: another shape than the tokens have, or numbers that are not finite.
    """
    z = np.asarray(host(concept) if hasattr(concept, "dtype") else concept)
    B, T = tokens
    if z.dtype.kind not in "iubf":
        raise ConceptError(f"concept must be integers or numbers, got {z.dtype}")
    if z.shape == (B,):
        z = z[:, None, None] if z.dtype.kind == "f" else z[:, None]
        z = np.broadcast_to(z, (B, T, *z.shape[2:]))
    if z.shape[:2] != (B, T) or z.ndim > 3:
        raise ConceptError(
            f"concept has shape {np.shape(concept)}, the batch has {B} x {T} tokens: expected ({B}, {T}) classes, "
            f"({B}, {T}, k) numbers, or ({B},) one class per sequence"
        )
    if z.ndim == 2 and z.dtype.kind == "f":
        raise ConceptError(
            f"concept has {z.dtype} labels of shape ({B}, {T}): pass integers for classes, or shape ({B}, {T}, 1) for numbers"
        )
    flat = z.reshape(B * T, *z.shape[2:])
    keep = flat != IGNORED if flat.ndim == 1 else (flat != IGNORED).any(axis=1)
    if mask is not None and np.shape(mask) == (B, T):
        keep = keep & (host(mask) if hasattr(mask, "dtype") else np.asarray(mask)).astype(bool).reshape(-1)
    values = flat[keep] if flat.ndim == 1 else flat[keep].astype(np.float64)
    if not np.isfinite(values).all():
        raise ConceptError(f"concept has {int((~np.isfinite(values)).sum())} numbers that are NaN or infinite")
    return Labels(keep, values)


class Data:
    """The batches, looked through once before any work, and held to be the same every time they are read again."""

    def __init__(self, batches: Iterable[Mapping[str, Any]], group: Any = None) -> None:
        """
        Args:
            batches: this process's share of them, where `group` (of torch.distributed) has several.

        Raises:
            ExciseError: batches that can be read only once.
            InputError, ConceptError: batches without tokens or labels, or labels that leave nothing to erase.
        """
        if isinstance(batches, Mapping) or not hasattr(batches, "__iter__"):
            raise ExciseError(f"batches must be an iterable of dicts, got {type(batches).__name__}: put it into a list")
        if iter(batches) is batches:
            raise ExciseError(
                f"batches ({type(batches).__name__}) can be read only once, and every block reads them again: pass a list, a "
                f"DataLoader, or any object whose __iter__ starts anew"
            )
        self._batches = batches
        self.sizes: list[tuple[int, int]] = []
        self.kept = 0
        self._prints: list[int] = []
        self.first: Mapping[str, Any] | None = None
        concept: Concept | None = None
        for number, batch in enumerate(batches):
            tokens, labels = self._read(batch, number)
            self.first = batch if self.first is None else self.first
            self.sizes.append(tokens)
            self._prints.append(_print(batch))
            self.kept += int(labels.keep.sum())
            if len(labels.values):
                if concept is not None and labels.kind != concept.kind:
                    raise ConceptError(
                        f"batch {number}: concept is {labels.kind} (shape {np.shape(batch['concept'])}), before it was "
                        f"{concept.kind}: pass one kind of labels"
                    )
                try:
                    concept = (concept or Concept.of(labels.values, kind=labels.kind)).extend(labels.values)[0]
                except ConceptError as error:
                    raise ConceptError(f"batch {number}: {error}") from None
        if self.first is None:
            raise InputError("batches are empty: there is nothing to fit on")
        if group is not None:
            from excise.distributed.ranks import join_concepts

            concept = join_concepts(concept, group)
        if concept is None:
            raise ConceptError(
                f"all {self.tokens} tokens are ignored (padding, or a label of {IGNORED}): there is nothing to erase"
            )
        if concept.kind == "categorical" and concept.k < 2:
            raise ConceptError(
                f"concept has one class only ({concept.names[0]!r}, {self.kept} tokens): nothing can be erased; pass labels "
                f"with at least two classes"
            )
        self.concept = concept

    def __iter__(self) -> Any:
        """(number, batch, labels) of every batch.

        Raises:
            ExciseError: they are not what they were the first time.
        """
        number = -1
        for number, batch in enumerate(self._batches):
            if number >= len(self.sizes) or _print(batch) != self._prints[number]:
                raise ExciseError(
                    f"batch {number} is not the one that came the first time: batches must come in the same order every time "
                    f"(a DataLoader with shuffle=False)"
                )
            yield number, batch, self._read(batch, number)[1]
        if number + 1 != len(self.sizes):
            raise ExciseError(f"batches ended after {number + 1}, the first time there were {len(self.sizes)}")

    @property
    def tokens(self) -> int:
        return sum(B * T for B, T in self.sizes)

    @property
    def fingerprint(self) -> str:
        """Of all tokens and labels, in their order."""
        return f"{zlib.crc32(repr((self.sizes, self._prints)).encode()):08x}"

    @staticmethod
    def _read(batch: Any, number: int) -> tuple[tuple[int, int], Labels]:
        if not isinstance(batch, Mapping):
            raise InputError(f"batch {number} must be a dict with input_ids and concept, got {type(batch).__name__}")
        for name in ("input_ids", "concept"):
            if batch.get(name) is None:
                raise InputError(f"batch {number} has no {name!r}; it has {', '.join(map(str, batch)) or 'nothing'}")
        shape = np.shape(batch["input_ids"])
        if len(shape) != 2 or 0 in shape:
            raise InputError(f"batch {number}: input_ids has shape {shape}, expected (B, T), at least one token")
        try:
            return (shape[0], shape[1]), read_labels(
                batch["concept"], (shape[0], shape[1]), batch.get("attention_mask")
            )
        except ConceptError as error:
            raise ConceptError(f"batch {number}: {error}") from None


def _print(batch: Mapping[str, Any]) -> int:
    sum_ = 0
    for name in ("input_ids", "attention_mask", "concept"):
        value = batch.get(name)
        if value is not None:
            array = np.ascontiguousarray(host(value) if hasattr(value, "dtype") else np.asarray(value))
            sum_ = zlib.crc32(array.tobytes(), sum_)
    return sum_
