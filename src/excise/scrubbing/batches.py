"""The batches that a model is scrubbed with: looked through once before any work, and the same every time after."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from excise.concepts.concept import Concept
from excise.errors import ConceptError, ExciseError, InputError
from excise.numerics.arrays import host
from excise.scrubbing.inputs import TEXT, main_input
from excise.scrubbing.labels import IGNORED, BatchLabels, Labels, read_labels
from excise.scrubbing.sides import CONCEPTS

__all__ = ["IGNORED", "BatchLabels", "Data", "Labels", "read_labels"]

Side = dict[str, BatchLabels]


class Data:
    """Batches with labels; `concepts` has what they say, by the name of the labels."""

    def __init__(
        self,
        batches: Iterable[Mapping[str, Any]],
        names: Collection[str] | None = None,
        model: Any = None,
        group: Any = None,
    ) -> None:
        """
        Args:
            batches: dicts that can be read again and again; this process's share, where `group` has several.
            names: of what the model's forward takes; they count in the fingerprint. All arrays unless given.
            model: where its class can tell which frames of a clip are padding, it is asked.
            group: of torch.distributed; the concepts are then those of all its ranks.

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
        self._batches, self._names, self._model = batches, names, model
        self.sizes: list[tuple[int, int]] = []  # examples, and tokens or labels of each
        self.kept: dict[str, int] = {}
        self._prints: list[int] = []
        self._seen: dict[
            int, tuple[Any, Side, Any]
        ] = {}  # batches on a device: looking at them again would wait for it
        self.first: Mapping[str, Any] | None = None
        found: dict[str, Concept] = {}
        for number, batch in enumerate(batches):
            labels = self._read(batch, number)
            self._remember(batch, number, labels)
            self.first = batch if self.first is None else self.first
            main = labels.get("concept", next(iter(labels.values())))
            self.sizes.append((main.examples, main.tokens or main.z.shape[1]))
            self._prints.append(self._print(batch))
            for name, part in labels.items():
                self._join(found, name, number, batch, part.known)
        if self.first is None:
            raise InputError("batches are empty: there is nothing to fit on")
        if group is not None:
            from excise.distributed.ranks import join_concepts

            found = {name: join_concepts(found.get(name), group) for name in sorted(self.kept)}
        if not found:
            raise ConceptError(
                f"all {self.tokens} tokens are ignored (padding, or a label of {IGNORED}): there is nothing to erase"
            )
        for name, concept in found.items():
            if concept.kind == "categorical" and concept.k < 2:
                raise ConceptError(
                    f"{name} has one class only ({concept.names[0]!r}, {self.kept[name]} tokens): nothing can be erased; pass "
                    f"labels with at least two classes"
                )
        self.concepts = found

    def _join(
        self, found: dict[str, Concept], name: str, number: int, batch: Mapping[str, Any], labels: Labels
    ) -> None:
        self.kept[name] = self.kept.get(name, 0) + int(labels.keep.sum())
        if not len(labels.values):
            return
        concept = found.get(name)
        if concept is not None and labels.kind != concept.kind:
            raise ConceptError(
                f"batch {number}: {name} is {labels.kind} (shape {np.shape(batch[name])}), before it was {concept.kind}: pass one "
                f"kind of labels"
            )
        try:
            found[name] = (concept or Concept.of(labels.values, kind=labels.kind)).extend(labels.values)[0]
        except ConceptError as error:
            raise ConceptError(f"batch {number}: {error}") from None

    def __iter__(self) -> Iterator[tuple[int, Mapping[str, Any], Side]]:
        """(number, batch, labels by name) of every batch.

        Raises:
            ExciseError: they are not what they were the first time.
        """
        number = -1
        for number, batch in enumerate(self._batches):
            known = self._seen.get(number)
            if known is not None and known[0] == _state(batch):
                yield number, batch, known[1]
                continue
            if number >= len(self.sizes) or self._print(batch) != self._prints[number]:
                raise ExciseError(
                    f"batch {number} is not the one that came the first time: batches must come in the same order every time "
                    f"(a DataLoader with shuffle=False)"
                )
            yield number, batch, self._read(batch, number)
        if number + 1 != len(self.sizes):
            raise ExciseError(f"batches ended after {number + 1}, the first time there were {len(self.sizes)}")

    @property
    def concept(self) -> Concept:
        """What is erased, where there is one side only."""
        return next(iter(self.concepts.values()))

    @property
    def tokens(self) -> int:
        return sum(B * T for B, T in self.sizes)

    @property
    def fingerprint(self) -> str:
        """Of all inputs and labels, in their order."""
        return f"{zlib.crc32(repr((self.sizes, self._prints)).encode()):08x}"

    def _read(self, batch: Any, number: int) -> Side:
        if not isinstance(batch, Mapping):
            raise InputError(f"batch {number} must be a dict with input_ids and concept, got {type(batch).__name__}")
        try:
            main = main_input(batch)
        except InputError as error:
            raise InputError(f"batch {number}: {error}") from None
        given = [name for name in CONCEPTS if batch.get(name) is not None]
        if not given:
            raise InputError(f"batch {number} has no 'concept'; it has {', '.join(map(str, batch)) or 'nothing'}")
        shape = np.shape(batch[main])
        if len(shape) < 2 or 0 in shape or len(shape) != TEXT.get(main, len(shape)):
            raise InputError(f"batch {number}: {main} has shape {shape}, expected (B, T), at least one token")
        out: Side = {}
        for name in given:
            decoder = name != "concept"
            tokens = np.shape(batch["decoder_input_ids"])[1] if decoder else shape[1] if main in TEXT else None
            mask = batch.get("decoder_attention_mask" if decoder else "attention_mask")
            frames = None if tokens is not None else lambda rows, mask=mask: _frames(self._model, rows, mask)
            try:
                out[name] = BatchLabels(batch[name], shape[0], tokens, mask, frames)
            except ConceptError as error:
                raise ConceptError(f"batch {number}: {error}") from None
        return out

    def _remember(self, batch: Mapping[str, Any], number: int, labels: Side) -> None:
        tensors = [value for value in batch.values() if hasattr(value, "is_cuda")]
        if tensors and all(value.is_cuda for value in tensors):
            # The values are held, so that no other tensor can get the id of one of them.
            self._seen[number] = _state(batch), labels, list(batch.values())

    def _print(self, batch: Mapping[str, Any]) -> int:
        sum_ = 0
        for name in sorted(batch):
            value = batch[name]
            if value is None or not (name in CONCEPTS or self._names is None or name in self._names):
                continue
            array = np.ascontiguousarray(host(value) if hasattr(value, "dtype") else np.asarray(value))
            sum_ = zlib.crc32(array.tobytes(), zlib.crc32(name.encode(), sum_))
        return sum_


def _state(batch: Any) -> Any:
    """Changes whenever a batch of tensors is another one, or was written to."""
    if not isinstance(batch, Mapping):
        return None
    return [(name, id(value), getattr(value, "_version", None)) for name, value in batch.items()]


def _frames(model: Any, rows: int, mask: Any) -> Any:
    """(B, rows) which frames of clips are no padding, by the model's own count; None if it has none."""
    count = getattr(model, "_get_feature_vector_attention_mask", None)
    if count is None:
        return None
    import torch

    return host(count(rows, torch.as_tensor(mask))).astype(bool)
