"""The figures of a language model under an intervention, and the table of several: sums over sequences, ratios, standard errors.

Every figure is a ratio of two sums over sequences (nats over tokens, nats over bytes, hits over tokens). Its standard
error treats sequences as independent: with R = sum y / sum x and residuals e = y - R x, it is
sqrt(n / (n - 1) sum e^2) / sum x.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from excise.files import versions
from excise.tables import markdown, show, write_csv, write_json
from excise.text.words import IGNORE

__all__ = ["Evaluation", "EvaluationTable", "LabelFigures", "Tally", "ratio"]


def ratio(y: Any, x: Any) -> tuple[float | None, float | None]:
    """sum y / sum x over sequences, and its standard error; None where there is nothing to divide by, or one sequence.

    >>> ratio([1.0, 3.0], [1.0, 1.0])
    (2.0, 1.0)
    """
    y, x = np.asarray(y, dtype=np.float64), np.asarray(x, dtype=np.float64)
    total = float(x.sum())
    if total == 0.0:
        return None, None
    value = float(y.sum()) / total
    n = int((x > 0).sum())
    if n < 2:
        return value, None
    return value, float(np.sqrt(n / (n - 1) * ((y - value * x) ** 2).sum())) / total


@dataclass(frozen=True)
class LabelFigures:
    """Loss and accuracy on the predicted tokens that carry one label."""

    label: Any
    tokens: int
    loss: float
    accuracy: float


@dataclass(frozen=True)
class Evaluation:
    """What a model does on a text, with one scrubber or with none. Losses in nats per predicted token.

    For a causal model every token after the first of a sequence is predicted. For a masked one `loss` and `accuracy` are those
    of the masked tokens; the `unmasked_` figures are those of all tokens of the text when none is masked, as in amnesic probing.
    `kl` is KL(clean || scrubbed) per predicted token. Standard errors (`_se`) are over sequences.
    """

    name: str
    kind: str  # "causal" or "masked"
    sequences: int
    tokens: int  # predicted
    bytes: int | None  # UTF-8 bytes of the predicted tokens
    loss: float
    loss_se: float | None
    accuracy: float
    accuracy_se: float | None
    perplexity: float | None = None
    bits_per_byte: float | None = None
    bits_per_byte_se: float | None = None
    kl: float | None = None
    kl_se: float | None = None
    unmasked_loss: float | None = None
    unmasked_loss_se: float | None = None
    unmasked_accuracy: float | None = None
    unmasked_accuracy_se: float | None = None
    unmasked_kl: float | None = None
    by_label: list[LabelFigures] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "versions": versions()}

    def to_json(self, path: str | os.PathLike[str]) -> None:
        write_json(path, self.to_dict())

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        EvaluationTable([self]).to_csv(path)

    def to_markdown(self) -> str:
        lines = [EvaluationTable([self]).to_markdown()]
        if self.by_label:
            rows = ([str(b.label), str(b.tokens), show(b.loss), show(b.accuracy)] for b in self.by_label)
            lines += ["", markdown(["label", "tokens", "loss", "accuracy"], rows)]
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{_heading(self)}\n\n{self.to_markdown()}"


@dataclass(frozen=True)
class EvaluationTable:
    """Several interventions on the same model and text, as in the paper's table; `print` it, or write it."""

    rows: list[Evaluation]
    about: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Evaluation:
        return next(row for row in self.rows if row.name == name)

    def to_dict(self) -> dict[str, Any]:
        return {"rows": [asdict(row) for row in self.rows], **self.about, "versions": versions()}

    def to_json(self, path: str | os.PathLike[str]) -> None:
        write_json(path, self.to_dict())

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """One line per intervention; the figures by label are in the JSON."""
        write_csv(path, self.rows, leave_out=["by_label"])

    def to_markdown(self) -> str:
        masked = self.rows[0].kind == "masked"
        names = ["loss", "accuracy"] if masked else ["bits_per_byte", "loss", "perplexity", "accuracy"]
        names += ["unmasked_loss", "unmasked_accuracy"] if masked else []
        names += ["kl"] if any(row.kl is not None for row in self.rows) else []
        names = [name for name in names if any(getattr(row, name) is not None for row in self.rows)]
        titles = {"bits_per_byte": "bits per byte", "loss": "nats per token", "kl": "KL from clean"}
        titles |= {"loss": "masked loss", "accuracy": "masked acc."} if masked else {}
        head = ["erased", *(titles.get(name, name.replace("_", " ")) for name in names)]
        return markdown(head, ([row.name, *(_cell(row, name) for name in names)] for row in self.rows))

    def __str__(self) -> str:
        return f"{_heading(self.rows[0])}\n\n{self.to_markdown()}"


def _heading(row: Evaluation) -> str:
    size = "" if row.bytes is None else f" ({row.bytes:,} bytes)"
    return (
        f"{row.kind} language model: {row.tokens:,} predicted tokens{size} in {row.sequences:,} sequences; ± one standard error over "
        f"sequences"
    )


def _cell(row: Evaluation, name: str) -> str:
    return show(getattr(row, name), getattr(row, f"{name}_se", None), 1 if name == "perplexity" else 3)


class Tally:
    """Sums over sequences, gathered batch by batch; NumPy arrays (B, T) of which only `counted` positions count."""

    def __init__(self) -> None:
        self._sums: list[Any] = []  # (B, 5): nats, hits, tokens, bytes, KL
        self._labels: dict[int, Any] = {}  # code -> (tokens, nats, hits)
        self._has_bytes = self._has_kl = True

    def add(self, counted: Any, nats: Any, hits: Any, kl: Any, size: Any, labels: Any) -> None:
        """`nats`, `hits` and, where known, `kl` are of the counted positions, in order; `size` (bytes) and `labels` are (B, T)."""
        rows = np.nonzero(counted)[0]

        def per_sequence(values: Any) -> Any:
            return np.bincount(rows, weights=values, minlength=len(counted))

        self._has_bytes &= size is not None
        self._has_kl &= kl is not None
        ones = np.ones(len(rows))
        sizes = np.zeros(len(rows)) if size is None else size[counted]
        divergence = np.zeros(len(rows)) if kl is None else kl
        self._sums.append(np.stack([per_sequence(v) for v in (nats, hits, ones, sizes, divergence)], axis=1))
        if labels is not None:
            codes = labels[counted]
            for code in np.unique(codes[codes != IGNORE]).tolist():
                of = codes == code
                old = self._labels.get(code, np.zeros(3))
                self._labels[code] = old + np.array([of.sum(), nats[of].sum(), hits[of].sum()])

    @property
    def tokens(self) -> int:
        return int(sum(part[:, 2].sum() for part in self._sums))

    def figures(self) -> dict[str, Any]:
        """loss, accuracy, kl and their errors; sequences, tokens, bytes and bits per byte."""
        nats, hits, tokens, size, kl = np.concatenate(self._sums).T
        out: dict[str, Any] = {"sequences": int((tokens > 0).sum()), "tokens": int(tokens.sum()), "bytes": None}
        out["loss"], out["loss_se"] = ratio(nats, tokens)
        out["accuracy"], out["accuracy_se"] = ratio(hits, tokens)
        if self._has_kl:
            out["kl"], out["kl_se"] = ratio(kl, tokens)
        if self._has_bytes:
            out["bytes"] = int(size.sum())
            out["bits_per_byte"], out["bits_per_byte_se"] = ratio(nats / np.log(2.0), size)
        return out

    def by_label(self, names: Sequence[Any] | None) -> list[LabelFigures]:
        out = []
        for code, (tokens, nats, hits) in sorted(self._labels.items()):
            name = names[code] if names is not None and code < len(names) else code
            out.append(LabelFigures(name, int(tokens), float(nats / tokens), float(hits / tokens)))
        return out
