"""Erasers: what is done to x. Small, frozen, callable, saved as safetensors.

The choice of method lives in `methods`; an eraser only knows the form of the result.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from excise import _files
from excise._apply import differentiable, refuse_not_finite, subtract_by_label, subtract_projection
from excise._array import (
    Array,
    as_rows,
    check_features,
    computable,
    convert,
    give_back,
    is_torch,
    namespace,
)
from excise._linalg import basis, scales, singular_values
from excise._rounding import check_rounding
from excise.concept import Concept
from excise.errors import ConceptError, ExciseError, InputError
from excise.moments import flat_labels

__all__ = ["AffineEraser", "OracleEraser", "fresh_seed", "needs_gradient", "placed"]


@dataclass(frozen=True, eq=False)
class AffineEraser:
    """r(x) = x - ((x - center) @ right) @ left.T, with left and right (d, r) and center (d,), in float64.

    >>> import numpy as np
    >>> e = AffineEraser(np.array([[1.0], [0.0]]), np.array([[1.0], [0.0]]), np.array([5.0, 0.0]))
    >>> e(np.array([7.0, 3.0])), e.rank
    (array([5., 3.]), 1)
    """

    left: Array
    right: Array
    center: Array
    info: dict[str, Any] = field(default_factory=dict)
    components: Array | None = None  # (d, q): coordinates of what is kept, for methods that reduce the dimension

    def __post_init__(self) -> None:
        shapes = tuple(self.left.shape), tuple(self.right.shape), tuple(self.center.shape)
        if len(shapes[0]) != 2 or shapes[0] != shapes[1] or shapes[2] != shapes[0][:1]:
            raise InputError(
                f"left, right and center must be (d, r), (d, r) and (d,), got {', '.join(map(str, shapes))}"
            )

    def __call__(self, X: Array, rounding: str = "nearest", seed: int | None = None) -> Array:
        """Erase from X (..., d), any float dtype; the same library, dtype, device and shape come back.

        Args:
            X: features; never changed. Integers are read as float64.
            rounding: how the exact result becomes the dtype of X. "stochastic" (float16, bfloat16, float32) keeps small
                edits alive on average where "nearest" would lose them.
            seed: for "stochastic"; the same seed gives the same result. None draws a new one.

        Raises:
            InputError: another number of features, NaN or infinity, or not a real dense array.
        """
        X = _check_width(X, self.d)
        random = check_rounding(rounding, X)
        rows = as_rows(computable(X))
        out = subtract_projection(rows, self.left, self.right, self.center, fresh_seed(random, seed))
        out = give_back(out.reshape(X.shape), X)
        if not needs_gradient(X):
            return out
        factors = (convert(f, X, "float64") for f in (self.left, self.right, self.center))
        return with_gradient_of(out, differentiable(X, *factors))

    def transform(self, X: Array) -> Array:
        """The (..., q) coordinates of what is kept, for methods that reduce the dimension (Fair PCA).

        Raises:
            ExciseError: this eraser has none.
        """
        if self.components is None:
            raise ExciseError(f"{self.info.get('method', 'this eraser')} keeps all {self.d} features: use eraser(X)")
        X = _check_width(X, self.d)
        rows = as_rows(X if needs_gradient(X) else computable(X))
        xp = namespace(rows)
        if not bool(xp.all(xp.isfinite(rows))):
            raise refuse_not_finite(rows)
        center, components = convert(self.center, rows, "float64"), convert(self.components, rows, "float64")
        out = xp.astype((xp.astype(rows, xp.float64) - center) @ components, rows.dtype)
        return give_back(out.reshape((*X.shape[:-1], components.shape[1])), X)

    @property
    def d(self) -> int:
        return int(self.left.shape[0])

    @property
    def rank(self) -> int:
        """Dimensions removed; 0 is the identity."""
        return int(self.left.shape[1])

    @property
    def P(self) -> Array:
        """(d, d) matrix of the map, made on request: r(x) = P x + bias."""
        xp = namespace(self.left)
        return xp.eye(self.d, dtype=self.left.dtype, device=self.left.device) - self.left @ self.right.T

    @property
    def bias(self) -> Array:
        """(d,)"""
        return self.left @ (self.right.T @ self.center)

    @property
    def spectral_norm(self) -> float:
        """The greatest factor by which r can lengthen a difference of two inputs; 1 for orthogonal projections."""
        # P is the identity off the span of left and right, so a matrix of at most 2r x 2r holds all the rest.
        xp = namespace(self.left)
        if self.rank == 0:
            return 1.0
        Q, _ = xp.linalg.qr(xp.concat([self.left, self.right], axis=1))
        small = xp.eye(Q.shape[1], dtype=Q.dtype, device=Q.device) - (Q.T @ self.left) @ (self.right.T @ Q)
        greatest = float(xp.max(singular_values(small)))
        return greatest if Q.shape[1] >= self.d else max(1.0, greatest)

    def to(self, device: Any = None, dtype: Any = None) -> AffineEraser:
        """The factors on another device (as PyTorch tensors; "numpy" for NumPy) or in another dtype."""
        left, right, center = (placed(f, device, dtype) for f in (self.left, self.right, self.center))
        components = None if self.components is None else placed(self.components, device, dtype)
        return AffineEraser(left, right, center, self.info, components)

    def as_module(self) -> Any:
        """A torch.nn.Module of the same map; gradients flow through it, `.half()` does not touch its factors."""
        from excise._module import EraserModule

        return EraserModule(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file that `excise.load` reads; a crash leaves no half file."""
        arrays = {"left": self.left, "right": self.right, "center": self.center}
        if self.components is not None:
            arrays["components"] = self.components
        _files.write(path, "AffineEraser", arrays, self.info)

    @staticmethod
    def from_stored(arrays: dict[str, Array], about: dict[str, Any]) -> AffineEraser:
        return AffineEraser(arrays["left"], arrays["right"], arrays["center"], about, arrays.get("components"))

    def __repr__(self) -> str:
        return f"AffineEraser(method={self.info.get('method')!r}, d={self.d}, rank={self.rank})"


@dataclass(frozen=True, eq=False)
class OracleEraser:
    """r(x, z) = x - coefficients @ (z - mean_z): needs the label of every row when it is applied."""

    coefficients: Array  # (d, k)
    mean_z: Array  # (k,)
    concept: Concept
    info: dict[str, Any] = field(default_factory=dict)

    def __call__(self, X: Array, z: Any, rounding: str = "nearest", seed: int | None = None) -> Array:
        """Erase from X (..., d) with one label per row; the same library, dtype, device and shape come back.

        Raises:
            InputError: another number of features, NaN or infinity.
            ConceptError: labels of another number than rows, or of a class that was not fitted.
        """
        X = _check_width(X, self.d)
        random = check_rounding(rounding, X)
        rows = as_rows(computable(X))
        encoded = self.concept.read(flat_labels(z, tuple(X.shape[:-1])))
        if encoded.n != rows.shape[0]:
            raise ConceptError(f"X has {rows.shape[0]} rows, but there are {encoded.n} labels: pass one label per row")
        out = subtract_by_label(rows, encoded, self.coefficients, self.mean_z, fresh_seed(random, seed))
        out = give_back(out.reshape(X.shape), X)
        return with_gradient_of(out, X) if needs_gradient(X) else out  # the edit depends on the label alone

    @property
    def d(self) -> int:
        return int(self.coefficients.shape[0])

    @property
    def rank(self) -> int:
        """Dimensions in which the edit lives; 0 is the identity."""
        scaled = self.coefficients / scales(namespace(self.coefficients).sum(self.coefficients**2, axis=1))[:, None]
        return int(basis(scaled)[0].shape[1])

    def to(self, device: Any = None, dtype: Any = None) -> OracleEraser:
        """The coefficients on another device (as PyTorch tensors; "numpy" for NumPy) or in another dtype."""
        coefficients, mean_z = (placed(f, device, dtype) for f in (self.coefficients, self.mean_z))
        return OracleEraser(coefficients, mean_z, self.concept, self.info)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file that `excise.load` reads; a crash leaves no half file."""
        arrays = {"coefficients": self.coefficients, "mean_z": self.mean_z}
        _files.write(path, "OracleEraser", arrays, {"info": self.info, "concept": self.concept.to_dict()})

    @staticmethod
    def from_stored(arrays: dict[str, Array], about: dict[str, Any]) -> OracleEraser:
        concept = Concept.from_dict(about["concept"])
        return OracleEraser(arrays["coefficients"], arrays["mean_z"], concept, about["info"])

    def __repr__(self) -> str:
        return f"OracleEraser(d={self.d}, k={self.concept.k})"


def _check_width(X: Array, d: int) -> Array:
    X = check_features(X)
    if X.shape[-1] != d:
        raise InputError(f"X has {X.shape[-1]} features (shape {tuple(X.shape)}), this eraser was fitted on {d}")
    return X


def needs_gradient(X: Array) -> bool:
    return is_torch(X) and X.requires_grad and bool(namespace(X).is_grad_enabled())


def with_gradient_of(value: Array, smooth: Array) -> Array:
    """`value` to the bit, with the gradient of `smooth`."""
    return value + (smooth - smooth.detach())


def fresh_seed(random: bool, seed: int | None) -> int | None:
    """The seed of the rounding: None to round to nearest, a fresh one where none was given."""
    if not random:
        return None
    if seed is not None and seed < 0:
        raise ExciseError(f"seed must not be negative, got {seed}")
    return int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed


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
