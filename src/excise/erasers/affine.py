"""AffineEraser: the form of LEACE and of every other method that needs no labels when it is applied."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from excise import files
from excise.concepts.concept import Concept
from excise.erasers.apply import Constants, differentiable, normalised, refuse_not_finite, subtract_projection
from excise.erasers.protocol import (
    Rows,
    check_stored,
    needs_gradient,
    placed,
    read_concept,
    read_names,
    read_rows,
    with_gradient_of,
)
from excise.errors import ExciseError, InputError, need
from excise.numerics import kernels
from excise.numerics.arrays import Array, convert, host, is_numpy, is_torch, namespace
from excise.numerics.linalg import singular_values

__all__ = ["AffineEraser"]

SMALL = 2**15  # numbers in an array that is erased in one piece
DEVICE_SMALL = 2**22  # the same on a device


@dataclass(frozen=True, eq=False)
class AffineEraser:
    """r(x) = x - ((x - center) @ right) @ left.T, with left and right (d, r) and center (d,), in float64.

    In the letters of the paper, left is U, right is V and P = I - U V^T. With `normalize`, r(x) is divided by its length.
    Features in `emptied` come out as the constant `center`: nothing would be left of them but rounding errors.

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
    concept: Concept | None = None
    feature_names: tuple[str, ...] | None = None
    normalize: bool = False
    emptied: Array | None = None  # (m,) numbers of features, ascending

    needs_labels = False

    def __post_init__(self) -> None:
        shapes = tuple(self.left.shape), tuple(self.right.shape), tuple(self.center.shape)
        if len(shapes[0]) != 2 or shapes[0] != shapes[1] or shapes[2] != shapes[0][:1]:
            raise InputError(
                f"left, right and center must be (d, r), (d, r) and (d,), got {', '.join(map(str, shapes))}"
            )
        if self.feature_names is not None and len(self.feature_names) != shapes[0][0]:
            raise InputError(f"{len(self.feature_names)} feature_names for {shapes[0][0]} features")

    def __call__(
        self, X: Any, z: Any = None, *, rounding: str = "nearest", rounding_seed: int | None = None, seed: Any = None
    ) -> Any:
        """Erase from X (..., d), any float dtype; the same library, dtype, device and shape come back, frames too.

        Args:
            X: features; never changed. Integers are read as float64. Of a data frame the fitted columns are taken by
                name, and other columns come back untouched.
            z: ignored: this eraser needs no labels.
            rounding: how the exact result becomes the dtype of X. "stochastic" (float16, bfloat16, float32) keeps small
                edits alive on average where "nearest" would lose them.
            rounding_seed: for "stochastic"; the same seed gives the same result. None draws a new one. `seed` is an alias.

        Raises:
            InputError: another number of features, a missing column, NaN or infinity, or not a real dense array.
        """
        if rounding == "nearest":
            quick = self._quick(X)
            if quick is not None:
                return quick
        rows = read_rows(X, self.d, self.feature_names, rounding, rounding_seed if rounding_seed is not None else seed)
        if needs_gradient(rows.given):
            return self._with_gradient(rows)
        return rows.restore(self._erased(rows))

    def _quick(self, X: Any) -> Any:
        """A few rows of NumPy or of PyTorch on the CPU, without the checks that cost more than the arithmetic."""
        if type(X) is np.ndarray:
            return self._small(X) if X.size <= SMALL else None
        torch: Any = sys.modules.get("torch")
        if torch is None or type(X) is not torch.Tensor or X.requires_grad or kernels.interpreted():
            return None
        if X.is_cuda:
            return self._quick_on_device(X, torch)
        if (
            not X.is_cpu
            or X.numel() > SMALL
            or X.layout is not torch.strided
            or X.dtype not in (torch.float32, torch.float64)
        ):
            return None
        small = self._small(X.numpy())
        return None if small is None else torch.from_numpy(small)

    def _quick_on_device(self, X: Any, torch: Any) -> Any:
        """The same for a CUDA tensor: whatever needs a closer look goes the long way."""
        if X.layout is not torch.strided or X.ndim == 0 or X.shape[-1] != self.d or not X.is_floating_point():
            return None
        if kernels.project_rows(X, self.rank):
            return self._by_kernel(X.reshape(-1, self.d), None).reshape(X.shape)
        if X.numel() > DEVICE_SMALL:
            return None
        from excise.erasers.device import by_products

        return self._finished(by_products(X, self._torch_factors(X.device)), X)

    def erase_(self, X: Any) -> Any:
        """Erase in place from an array or tensor X (..., d) that can be written to, and give it back."""
        if is_torch(X) and X.is_contiguous() and kernels.project_rows(X, self.rank) and not X.requires_grad:
            self._by_kernel(X.reshape(-1, self.d), None, in_place=True)
        else:
            X[...] = self(X)
        return X

    def _by_kernel(self, X: Any, seed: int | None, in_place: bool = False) -> Any:
        """The fused kernel on rows (n, d); one flag is read at the end."""
        from excise.numerics.kernels.projection import project

        X = X if X.stride(-1) == 1 else X.contiguous()
        out, flag = project(X, self._torch_factors(X.device).prepared(X.dtype)[0], X if in_place else None, seed)
        return self._finished(out, X, flag)

    def _finished(self, out: Any, X: Any, flag: Any = None) -> Any:
        """Constants and lengths; and one look whether all of it is finite."""
        if self._constants is not None:
            self._constants.put(out)
        if self.normalize:
            out = normalised(out.double()).to(X.dtype)
        # A sum is quicker than a look at each number, but may overflow by itself.
        bad = (
            not math.isfinite(out.sum().item()) and not bool(out.isfinite().all()) if flag is None else flag.item() > 0
        )
        if bad:
            raise refuse_not_finite(X.reshape(-1, self.d))
        return out

    def _torch_factors(self, device: Any) -> Any:
        from excise.erasers.device import TorchFactors

        if device not in self._devices:
            like = sys.modules["torch"].zeros(0, device=device)
            left, right, center = (convert(f, like, "float64") for f in (self.left, self.right, self.center))
            self._devices[device] = TorchFactors(left, right, center)
        return self._devices[device]

    @cached_property
    def _devices(self) -> dict[Any, Any]:
        return {}

    def _erased(self, rows: Rows) -> Array:
        values = rows.values
        if is_torch(values) and (not values.is_cpu or kernels.interpreted()):
            from excise.erasers.device import by_products

            if kernels.project_rows(values, self.rank):
                return self._by_kernel(values, rows.seed)
            if rows.seed is None and values.numel() <= DEVICE_SMALL:
                return self._finished(by_products(values, self._torch_factors(values.device)), values)
        return subtract_projection(
            rows.values, self.left, self.right, self.center, rows.seed, self._constants, self.normalize
        )

    def _small(self, X: Any) -> Any:
        """float32 or float64 rows in NumPy, without chunks and threads; None where something needs a closer look."""
        if X.dtype.char not in "df" or X.ndim == 0 or X.shape[-1] != self.left.shape[0] or not is_numpy(self.left):
            return None
        right, left_t, offset = self._factors
        if X.dtype.char == "d":
            out = X - ((X - self.center) @ right) @ left_t
        else:  # float64 has digits to spare for whatever offset float32 data can have
            wide = X.astype(np.float64)
            out = wide - (wide @ right - offset) @ left_t
        if self._constants is not None:
            self._constants.put(out)
        if self.normalize:
            out = normalised(out)
        if X.dtype.char == "f":
            with np.errstate(over="ignore"):
                out = out.astype(np.float32)
        return out if np.isfinite(out).all() else None  # the long way says what is wrong

    @cached_property
    def _factors(self) -> tuple[Any, Any, Any]:
        right, left_t = np.ascontiguousarray(self.right), np.ascontiguousarray(self.left.T)
        return right, left_t, self.center @ right

    @cached_property
    def _constants(self) -> Constants | None:
        if self.emptied is None or not len(self.emptied):
            return None
        at = host(self.emptied).astype(np.int64)
        return Constants(at, host(self.center)[at])

    def _with_gradient(self, rows: Rows) -> Any:
        X = rows.given
        out = rows.restore(self._erased(rows))
        left, right, center = (convert(f, X, "float64") for f in (self.left, self.right, self.center))
        smooth = differentiable(X, left, right, center, self._constants, self.normalize)
        return with_gradient_of(out, smooth)

    def transform(self, X: Any) -> Array:
        """The (..., q) coordinates of what is kept, for methods that reduce the dimension (Fair PCA).

        Raises:
            ExciseError: this eraser has none.
        """
        if self.components is None:
            raise ExciseError(f"{self.info.get('method', 'this eraser')} keeps all {self.d} features: use eraser(X)")
        given = read_rows(X, self.d, self.feature_names)
        rows = given.given.reshape(-1, self.d) if needs_gradient(given.given) else given.values
        xp = namespace(rows)
        if not bool(xp.all(xp.isfinite(rows))):
            raise refuse_not_finite(rows)
        center, components = convert(self.center, rows, "float64"), convert(self.components, rows, "float64")
        out = xp.astype((xp.astype(rows, xp.float64) - center) @ components, rows.dtype)
        return out.reshape((*given.given.shape[:-1], components.shape[1]))

    @property
    def d(self) -> int:
        return int(self.left.shape[0])

    @property
    def rank(self) -> int:
        """Dimensions removed; 0 is the identity."""
        return int(self.left.shape[1])

    @property
    def P(self) -> Array:
        """(d, d) matrix of the map, made on request: r(x) = P x + bias (before the division by the length, if any)."""
        xp = namespace(self.left)
        P = xp.eye(self.d, dtype=self.left.dtype, device=self.left.device) - self.left @ self.right.T
        if self.emptied is not None and len(self.emptied):
            P[convert(self.emptied, P), :] = 0.0
        return P

    @property
    def bias(self) -> Array:
        """(d,)"""
        bias = self.left @ (self.right.T @ self.center)
        if self.emptied is not None and len(self.emptied):
            at = convert(self.emptied, bias)
            bias[at] = self.center[at]
        return bias

    @property
    def spectral_norm(self) -> float:
        """The largest factor by which r can lengthen a difference of two inputs; 1 for orthogonal projections."""
        # P is the identity off the span of left and right, so a matrix of at most 2r x 2r holds all the rest.
        xp = namespace(self.left)
        if self.rank == 0:
            return 1.0
        Q, _ = xp.linalg.qr(xp.concat([self.left, self.right], axis=1))
        small = xp.eye(Q.shape[1], dtype=Q.dtype, device=Q.device) - (Q.T @ self.left) @ (self.right.T @ Q)
        largest = float(xp.max(singular_values(small)))
        return largest if Q.shape[1] >= self.d else max(1.0, largest)

    def drawn(self, number: int) -> AffineEraser:
        """Itself: nothing is drawn at random."""
        return self

    def to(self, device: Any = None, dtype: Any = None) -> AffineEraser:
        """The factors on another device (as PyTorch tensors; "numpy" for NumPy) or in another dtype."""
        left, right, center = (placed(f, device, dtype) for f in (self.left, self.right, self.center))
        components = None if self.components is None else placed(self.components, device, dtype)
        emptied = None if self.emptied is None else placed(self.emptied, device, None)
        return AffineEraser(
            left, right, center, self.info, components, self.concept, self.feature_names, self.normalize, emptied
        )

    def as_module(self) -> Any:
        """A torch.nn.Module of the same map; gradients flow through it, `.half()` does not touch its factors.

        Raises:
            ExciseError: PyTorch is not installed.
        """
        need("torch", "as_module", "torch")
        from excise.erasers.module import eraser_module

        return eraser_module(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file that `excise.load` reads; a crash leaves no half file."""
        arrays = {"left": self.left, "right": self.right, "center": self.center}
        if self.components is not None:
            arrays["components"] = self.components
        if self.emptied is not None:
            arrays["emptied"] = self.emptied
        about = {
            "info": self.info,
            "concept": None if self.concept is None else self.concept.to_dict(),
            "feature_names": None if self.feature_names is None else list(self.feature_names),
            "normalize": self.normalize,
        }
        files.write(path, "AffineEraser", arrays, about)

    @staticmethod
    def from_stored(arrays: dict[str, Array], about: dict[str, Any]) -> AffineEraser:
        about = about if "info" in about else {"info": about}  # files of format 1 hold the info alone
        d, r = arrays["left"].shape
        check_stored(arrays, {"right": (d, r), "center": (d,)})
        emptied = arrays.get("emptied")
        if emptied is not None and len(emptied) and not (emptied.min() >= 0 and emptied.max() < d):
            raise InputError("emptied features beyond the last")
        return AffineEraser(
            arrays["left"],
            arrays["right"],
            arrays["center"],
            about["info"],
            arrays.get("components"),
            read_concept(about),
            read_names(about),
            bool(about.get("normalize", False)),
            emptied,
        )

    def __repr__(self) -> str:
        more = ", normalize=True" if self.normalize else ""
        return f"AffineEraser(method={self.info.get('method')!r}, d={self.d}, rank={self.rank}{more})"
