"""A batch as it comes in: rows of features, labels of the same rows, weights. Checked once, here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.concepts.concept import Concept
from excise.concepts.encoded import Encoded
from excise.errors import ConceptError, InputError
from excise.numerics.arrays import Array, as_rows, host, to_compute_array
from excise.numerics.frames import read_features

__all__ = ["LabelledRows", "check_weight", "flat_labels", "read_labelled_rows", "refuse_features_as_labels"]


@dataclass(frozen=True)
class LabelledRows:
    rows: Array  # (n, d), where excise computes
    lead: tuple[int, ...]  # X had the shape (*lead, d)
    names: tuple[str, ...] | None


def read_labelled_rows(X: Any, d: int | None = None, names: Sequence[str] | None = None, z: Any = None) -> LabelledRows:
    """X (..., d) as rows (n, d); `d` and `names` are what is expected, where something is. `z`: labels, for the messages.

    Raises:
        InputError: X is not real, not dense, or of another width.
    """
    hint = _swapped(X, z)
    try:
        given = read_features(X, names=names)
    except InputError as error:
        raise InputError(f"{error.message}{hint}", error.code) if hint else error from None
    values = given.values
    if values.ndim < 2 or hint:
        expected = "expected (..., d), at least two dimensions" if values.ndim < 2 else "a single column of labels"
        raise InputError(f"X has shape {tuple(values.shape)}: {expected}{hint}", code="feature-shape")
    if d is not None and values.shape[-1] != d:
        raise InputError(f"X has {values.shape[-1]} features, expected {d}", code="feature-count")
    if values.shape[-1] == 0:
        raise InputError(f"X has shape {tuple(values.shape)}: there are no features", code="feature-shape")
    return LabelledRows(as_rows(to_compute_array(values)), tuple(values.shape[:-1]), given.names)


def _swapped(X: Any, z: Any) -> str:
    """A question for the end of a message if X looks like labels and z like features; else nothing."""
    shapes = [tuple(getattr(part, "shape", ())) for part in (X, z)]
    if len(shapes[1]) != 2 or shapes[1][1] < 2 or len(shapes[0]) not in (1, 2):
        return ""
    is_label = len(shapes[0]) == 1 or (
        shapes[0][1] == 1 and str(getattr(X, "dtype", "float")).lower().find("float") < 0
    )
    return (
        f". z has shape {shapes[1]}: did you swap them? The features come first, then one label per row"
        if is_label
        else ""
    )


def refuse_features_as_labels(concept: Concept, encoded: Encoded, d: int, what: str = "labels") -> None:
    """Numbers as wide as the features are hardly a concept: erasing them erases everything.

    Raises:
        ConceptError: labels that look like features, unless the caller said that they are numbers.
    """
    if concept.k != d or d < 2 or concept.asked is not None or encoded.matrix is None:
        return
    if all(block.kind == "continuous" for block in concept.blocks) and not np.isin(encoded.matrix, (0.0, 1.0)).all():
        raise ConceptError(
            f"{what} have {concept.k} columns of numbers, as many as there are features: are they features too? Pass one label "
            f"per row, or kind='continuous' if these numbers are the concept",
            code="labels-like-features",
        )


def flat_labels(z: Any, lead: tuple[int, ...]) -> Any:
    """Labels of shape (*lead,) or (*lead, k) for features of shape (*lead, d), as (n,) or (n, k)."""
    shape = getattr(z, "shape", None)
    if len(lead) > 1 and shape is not None and tuple(shape[: len(lead)]) == lead:
        z = z if hasattr(z, "reshape") else np.asarray(z)
        return z.reshape((-1, *shape[len(lead) :]))
    return z


def check_weight(weight: Any, n: int) -> np.ndarray[Any, Any] | None:
    """One weight per row as float64; None where there are none.

    Raises:
        InputError: not numbers, another number of them, negative, or all zero.
    """
    if weight is None:
        return None
    try:
        w = np.asarray(host(weight) if hasattr(weight, "dtype") else weight, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise InputError("sample_weight must be numbers, one per row") from None
    if len(w) != n:
        raise InputError(f"X has {n} rows, but there are {len(w)} weights: pass one weight per row", code="row-count")
    bad = ~(np.isfinite(w) & (w >= 0))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InputError(f"{int(bad.sum())} weights are negative, NaN or infinite (first at row {row}: {w[row]:g})")
    if n and not w.any():
        raise InputError(f"all {n} weights are zero: there is nothing to learn from")
    return w
