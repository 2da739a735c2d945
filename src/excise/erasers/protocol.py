"""The one interface of all erasers, and what every form of it does with the rows it is given."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from excise.concepts.concept import Concept
from excise.concepts.encoded import Encoded
from excise.errors import ConceptError, ExciseError, FileFormatError, InputError
from excise.moments.labelled_rows import flat_labels
from excise.numerics.arrays import Array, as_rows, convert, is_torch, namespace, to_compute_array
from excise.numerics.frames import read_features
from excise.numerics.rounding import check_rounding

__all__ = [
    "Eraser",
    "Rows",
    "check_stored",
    "needs_gradient",
    "placed",
    "read_concept",
    "read_names",
    "read_rows",
    "with_gradient_of",
]


@runtime_checkable
class Eraser(Protocol):
    """What is done to x. Small, frozen, callable, saved as safetensors.

    `needs_labels` says whether it must be called with the label of every row; other erasers ignore `z`.
    """

    @property
    def info(self) -> dict[str, Any]:
        """How it was made: plain JSON values."""
        ...

    @property
    def d(self) -> int:
        """Number of features."""
        ...

    @property
    def rank(self) -> int:
        """Dimensions in which the edit lives; 0 is the identity."""
        ...

    @property
    def concept(self) -> Concept | None:
        """What it erases; None if that is not known (a random projection, a file of an old version)."""
        ...

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Names of the columns that it was fitted on, if these had names."""
        ...

    @property
    def needs_labels(self) -> bool: ...

    def __call__(
        self, X: Any, z: Any = None, *, rounding: str = "nearest", rounding_seed: int | None = None, seed: Any = None
    ) -> Any: ...

    def to(self, device: Any = None, dtype: Any = None) -> Eraser: ...

    def drawn(self, number: int) -> Eraser:
        """The eraser of one forward pass: itself, unless it draws at random."""
        ...

    def save(self, path: str | os.PathLike[str]) -> None: ...


@dataclass(frozen=True)
class Rows:
    """Rows on their way through an eraser."""

    given: Array  # (..., d): as the caller holds them, without a frame around
    values: Array  # (n, d): where excise computes
    seed: int | None  # of stochastic rounding; None rounds to nearest
    restore: Callable[[Array], Any]  # (n, d) -> the kind of object that came in

    def labels(self, z: Any, concept: Concept) -> Encoded:
        """The labels of these rows.

        Raises:
            ConceptError: none were given, another number of them, or a class that was not fitted.
        """
        if z is None:
            raise ConceptError(
                "this eraser needs the label of every row: eraser(X, z) (methods 'oracle' and 'quadratic')",
                code="labels-needed",
            )
        encoded = concept.read(flat_labels(z, tuple(self.given.shape[:-1])))
        if encoded.n != self.values.shape[0]:
            raise ConceptError(
                f"X has {self.values.shape[0]} rows, but there are {encoded.n} labels: pass one label per row",
                code="row-count",
            )
        return encoded


def read_rows(X: Any, d: int, names: Sequence[str] | None, rounding: str = "nearest", seed: int | None = None) -> Rows:
    """X (..., d) for an eraser of d features; columns of a data frame are taken by `names`.

    Raises:
        InputError: another number of features, a missing column, or not a real dense array.
        ExciseError: a rounding that does not exist, or not for this dtype.
    """
    features = read_features(X, names=names)
    values = features.values
    if values.shape[-1] != d:
        raise InputError(
            f"X has {values.shape[-1]} features (shape {tuple(values.shape)}), this eraser was fitted on {d}",
            code="feature-count",
        )
    shape = values.shape
    return Rows(
        values,
        as_rows(to_compute_array(values)),
        _rounding_seed(check_rounding(rounding, values), seed),
        lambda out: features.restore(out.reshape(shape)),
    )


def _rounding_seed(random: bool, seed: int | None) -> int | None:
    """None to round to nearest; a fresh seed where none was given."""
    if not random:
        return None
    if seed is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ExciseError(f"rounding_seed must be a whole number of at least 0, got {seed!r}")
    return int(seed)


def needs_gradient(X: Array) -> bool:
    return is_torch(X) and X.requires_grad and bool(namespace(X).is_grad_enabled())


def with_gradient_of(value: Array, smooth: Array) -> Array:
    """`value` to the bit, with the gradient of `smooth`."""
    return value + (smooth - smooth.detach())


def placed(factor: Array, device: Any, dtype: Any) -> Array:
    """A factor on another device, in another dtype; None leaves it."""
    name = None if dtype is None else str(np.dtype(dtype) if not str(dtype).startswith("torch.") else dtype)
    name = None if name is None else name.rsplit(".", 1)[-1]
    if device is None and str(dtype).startswith("torch.") and not is_torch(factor):
        device = "cpu"  # a PyTorch dtype means PyTorch
    if device is None:
        return convert(factor, factor, name)
    if device == "numpy":
        return convert(factor, np.zeros(0), name)
    import torch

    return convert(factor, torch.zeros(0, device=device), name)


def check_stored(arrays: dict[str, Array], shapes: dict[str, tuple[int, ...]]) -> None:
    """What a file holds must be finite and of the right shape.

    Raises:
        FileFormatError: it is not.
    """
    for name, shape in shapes.items():
        if name in arrays and tuple(arrays[name].shape) != shape:
            raise FileFormatError(f"its array {name!r} has the shape {tuple(arrays[name].shape)}, expected {shape}")
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise FileFormatError(f"its array {name!r} holds values that are NaN or infinite", code="not-finite")


def read_concept(about: dict[str, Any]) -> Concept | None:
    return None if about.get("concept") is None else Concept.from_dict(about["concept"])


def read_names(about: dict[str, Any]) -> tuple[str, ...] | None:
    return None if about.get("feature_names") is None else tuple(about["feature_names"])
