"""Linear classifiers of a concept, and the activations that they are trained on."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from excise.errors import ConceptError, InputError
from excise.numerics.arrays import host
from excise.numerics.linalg import inverse_root
from excise.scrubbing.batches import read_labels
from excise.scrubbing.capture import capture

__all__ = ["Probe", "Rows", "activations", "constant", "fit_probe", "fitted_scores", "held_out_scores"]

RIDGE = 1e-3  # of classifiers that are measured on new text; without it the loss there says how few the tokens were


@dataclass(frozen=True)
class Probe:
    """Softmax of (x - center) @ weights + bias; `classes` are the codes of its columns."""

    center: Any  # (d,)
    weights: Any  # (d, k)
    bias: Any  # (k,)
    classes: Any  # (k,)

    def scores(self, X: Any, z: Any) -> tuple[float, float]:
        """Mean loss in nats and accuracy. A class that was not there to learn from counts as an error of the least chance."""
        logits = (np.asarray(X, dtype=np.float64) - self.center) @ self.weights + self.bias
        top = logits.max(axis=1, keepdims=True)
        logp = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
        place = np.searchsorted(self.classes, z).clip(max=len(self.classes) - 1)
        known = self.classes[place] == z
        own = np.where(known, logp[np.arange(len(z)), place], logp.min(axis=1))
        return float(-own.mean()), float((known & (logp.argmax(axis=1) == place)).mean())


def fit_probe(X: Any, z: Any, ridge: float = 0.0, steps: int = 200) -> Probe:
    """Logistic regression in whitened coordinates; without a ridge the loss is the best that a linear model can have.

    Args:
        X: activations (n, d).
        z: codes (n,).
        ridge: adds ridge / 2 times the squared weights to the mean loss.
        steps: at most so many of L-BFGS; in whitened coordinates a few dozen are enough.

    Raises:
        ConceptError: one class only.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    X, z = np.asarray(X, dtype=np.float64), np.asarray(z)
    if len(np.unique(z)) < 2:
        raise ConceptError(f"concept has one class only on {len(z)} tokens: there is nothing to predict")
    center = X.mean(axis=0)
    Xc = X - center
    to_white = np.asarray(inverse_root(Xc.T @ Xc / len(X)))  # (d, r)
    if to_white.shape[1] == 0:
        classes, counts = np.unique(z, return_counts=True)
        return Probe(center, np.zeros((X.shape[1], len(classes))), np.log(counts / len(z)), classes)
    strength = np.inf if ridge == 0.0 else 1.0 / (ridge * len(z))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # separable classes have no optimum to reach
        model = LogisticRegression(C=strength, tol=1e-4, max_iter=steps).fit(Xc @ to_white, z)
    weights, bias = model.coef_.T, model.intercept_
    if len(model.classes_) == 2:  # one column for two classes
        weights, bias = np.concatenate([0.0 * weights, weights], axis=1), np.append(0.0, bias)
    return Probe(center, to_white @ weights, bias, model.classes_)


@dataclass(frozen=True)
class Rows:
    """Activations of tokens (n, d) by site, with the label and the number of the batch of each."""

    sites: dict[str, Any]
    labels: Any  # (n,)
    batch: Any  # (n,)

    @property
    def trains(self) -> Any:
        """(n,) the tokens of every second batch: a classifier is trained on them and measured on the others.

        Raises:
            InputError: there is one batch only.
        """
        if len(np.unique(self.batch)) < 2:
            raise InputError(
                "held-out figures need two batches or more: classifiers are trained on one half and measured on the other; "
                "use a smaller batch size, or more text"
            )
        return self.batch % 2 == 0


def fitted_scores(X: Any, z: Any) -> tuple[float, float]:
    """Loss and accuracy of the best linear classifier on the tokens that it was trained on."""
    return fit_probe(X, z).scores(X, z)


def held_out_scores(X: Any, z: Any, trains: Any) -> tuple[float, float]:
    """Loss and accuracy, on the other tokens, of a classifier with a small ridge that was trained on those of `trains`.

    Both halves are text that the eraser has not seen: a classifier that is trained on the eraser's own tokens finds nothing
    there, by the theorem, and would say nothing of new ones.
    """
    return fit_probe(X[trains], z[trains], RIDGE).scores(X[~trains], z[~trains])


def constant(z: Any, z_new: Any = None) -> tuple[float, float]:
    """Loss and accuracy of the best constant for z, measured on z or on new labels."""
    classes, counts = np.unique(z, return_counts=True)
    center = np.zeros(1)
    probe = Probe(center, np.zeros((1, len(classes))), np.log(counts / counts.sum()), classes)
    labels = np.asarray(z if z_new is None else z_new)
    return probe.scores(np.zeros((len(labels), 1)), labels)


def activations(
    model: torch.nn.Module,
    batches: Iterable[Mapping[str, Any]],
    sites: Sequence[str],
    scrubber: Any = None,
    max_tokens: int | None = None,
) -> Rows:
    """What a model reads at some sites, in float32; tokens without a label are left out.

    With a scrubber it is what is left after erasure. Stops after the batch that reaches `max_tokens`.
    """
    rows: dict[str, list[Any]] = {site: [] for site in sites}
    labels: list[Any] = []
    for number, batch in enumerate(batches):
        B, T = np.shape(batch["input_ids"])
        read = read_labels(batch["concept"], (B, T), batch.get("attention_mask"))
        if read.values.ndim > 1:
            raise ConceptError("a linear classifier needs classes: the concept of these batches is numbers")
        if scrubber is None:
            found = capture(model, batch, sites)
        else:
            with scrubber.attached(model, concept=batch["concept"], first_draw=number):
                found = capture(model, batch, sites)
        for site, x in found.items():
            rows[site].append(host(x.reshape(B * T, -1)).astype(np.float32)[read.keep])
        labels.append(read.values)
        if max_tokens is not None and sum(map(len, labels)) >= max_tokens:
            break
    if not labels:
        raise ConceptError("there are no batches: the data set is empty")
    batch_of = np.repeat(np.arange(len(labels)), [len(part) for part in labels])
    joined = {site: np.concatenate(parts)[:max_tokens] for site, parts in rows.items()}
    return Rows(joined, np.concatenate(labels)[:max_tokens], batch_of[:max_tokens])
