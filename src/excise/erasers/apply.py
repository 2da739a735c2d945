"""Edits of many rows, chunk by chunk, without losing what the dtype of x can hold.

float32 and float64 data are computed in float64: with float32 factors a trace of the concept stays in the direction
that should have no variance left. 16-bit data are computed in float32. On the host the chunks fit the cache and run
on all cores: about the time of a copy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.concepts.encoded import Encoded
from excise.errors import InputError
from excise.moments.statistics import not_finite
from excise.numerics.arrays import (
    Array,
    convert,
    dtype_name,
    exact_products,
    host,
    is_16_bit,
    is_numpy,
    is_torch,
    namespace,
    on_host,
)
from excise.numerics.chunks import chunked, worker_count
from excise.numerics.rounding import round_randomly

__all__ = [
    "Constants",
    "differentiable",
    "normalised",
    "refuse_not_finite",
    "subtract_by_label",
    "subtract_projection",
]

FLOAT32_SAFE = 1e36  # factors beyond it do not fit into float32
NO_DIRECTION = 1e-290  # a row of no greater length cannot be divided by it

# (x of a chunk, its first row, its last, scratch) -> what to subtract. On the host the result is put into `scratch`:
# temporaries of this size would be given back to the system and faulted in again at every chunk, which took longer than
# the arithmetic. On a device there is none.
Edit = Callable[[Array, int, int, Array | None], Array]


@dataclass(frozen=True)
class Constants:
    """Features that an eraser empties, and the constant that each of them comes out as."""

    at: np.ndarray[Any, Any]  # (m,) numbers of the features
    values: np.ndarray[Any, Any]  # (m,)

    def put(self, out: Array) -> None:
        """Write them into rows (..., d)."""
        if is_numpy(out):
            out[..., self.at] = self.values
        else:
            out[..., convert(self.at, out)] = convert(self.values, out, dtype_name(out))


def normalised(rows: Array) -> Array:
    """Rows (..., d) divided by their lengths.

    Raises:
        InputError: a row of length zero, which has no direction.
    """
    xp = namespace(rows)
    length = xp.sqrt(xp.sum(rows * rows, axis=-1))
    if bool(xp.any(length <= NO_DIRECTION)):
        at = int(np.flatnonzero(host(length).reshape(-1) <= NO_DIRECTION)[0])
        raise InputError(
            f"row {at} becomes zero, which has no direction and cannot be normalised: drop it (a zero row in X?)",
            code="zero-row",
        )
    return rows / length[..., None]


def subtract_projection(
    X: Array,
    left: Array,
    right: Array,
    center: Array,
    seed: int | None,
    constants: Constants | None = None,
    normalize: bool = False,
) -> Array:
    """x - ((x - center) @ right) @ left.T for the rows of X (n, d), in the dtype of X. `seed`: round at random.

    Raises:
        InputError: X has values that are not finite, or the result does not fit into its dtype.
    """
    dtype = _compute_dtype(X, left, right, center)
    left_t, right, center = (_placed(f, X, dtype) for f in (left.T, right, center))

    # float64 has digits to spare for whatever offset float32 data can have, so there the centring can wait until the
    # coordinates: one pass over the chunk less.
    late = dtype_name(X) == "float32"
    offset = center @ right

    def edit(x: Array, begin: int, end: int, scratch: Array | None) -> Array:
        if late:
            coordinates = x @ right - offset  # (rows, r); NaN times anything is NaN
        else:
            coordinates = (x - center if scratch is None else np.subtract(x, center, out=scratch)) @ right
        return coordinates @ left_t if scratch is None else np.matmul(coordinates, left_t, out=scratch)

    return _edited(X, edit, dtype, _Finish(seed, constants, normalize))


def subtract_by_label(
    X: Array, z: Encoded, coefficients: Array, mean_z: Array, seed: int | None, constants: Constants | None = None
) -> Array:
    """x - coefficients @ (z - mean_z) for the rows of X (n, d) with labels z, in the dtype of X.

    Raises:
        InputError: X has values that are not finite, or the result does not fit into its dtype.
    """
    dtype = _compute_dtype(X, coefficients)
    per_column, mean_z = (_placed(f, X, "float64") for f in (coefficients.T, mean_z))  # (k, d) and (k,)
    average = mean_z @ per_column
    finish = _Finish(seed, constants, False)
    if z.has_classes:
        table = _placed(per_column - average[None, :], X, dtype)  # (k, d): the edit of each class
        codes: Any = z.codes if on_host(X) else z.codes_like(X)

        def edit(x: Array, begin: int, end: int, scratch: Array | None) -> Array:
            rows = codes[begin:end]
            return table[rows] if scratch is None else np.take(table, rows, axis=0, out=scratch, mode="clip")

        return _edited(X, edit, dtype, finish)
    assert z.matrix is not None
    centred = z.matrix - host(mean_z)  # before anything is rounded: the labels may have an offset
    matrix, per_column = (_placed(f, X, dtype) for f in (centred, per_column))

    def edit_numbers(x: Array, begin: int, end: int, scratch: Array | None) -> Array:
        if scratch is None:
            return matrix[begin:end] @ per_column
        return np.matmul(matrix[begin:end], per_column, out=scratch)

    return _edited(X, edit_numbers, dtype, finish)


def differentiable(
    x: Array, left: Array, right: Array, center: Array, constants: Constants | None = None, normalize: bool = False
) -> Array:
    """The projection in one piece; PyTorch differentiates it. Factors are float64 on the device of x."""
    xp = namespace(x)
    with exact_products(x):
        dtype = xp.float32 if is_16_bit(x) else xp.float64
        exact = xp.astype(x, dtype)
        out = exact - (exact - xp.astype(center, dtype)) @ xp.astype(right, dtype) @ xp.astype(left, dtype).T
        if constants is not None:
            constants.put(out)
        if normalize:
            out = out / xp.sqrt(xp.sum(out * out, axis=-1))[..., None]
        return xp.astype(out, x.dtype)


@dataclass(frozen=True)
class _Finish:
    """What is done to the exact rows before they are rounded, and how they are rounded."""

    seed: int | None
    constants: Constants | None
    normalize: bool

    @property
    def is_plain(self) -> bool:
        return self.seed is None and self.constants is None and not self.normalize

    def exact(self, x: Array) -> Array:
        if self.constants is not None:
            self.constants.put(x)
        return normalised(x) if self.normalize else x

    def rounded(self, x: Array, dtype: Any, chunk: int) -> Array:
        return x if self.seed is None else round_randomly(x, dtype, (self.seed, chunk))


def _compute_dtype(x: Array, *factors: Array) -> str:
    if not is_16_bit(x):
        return "float64"
    sizes = [float(abs(f).max()) for f in factors if min(f.shape)]
    return "float32" if all(size < FLOAT32_SAFE for size in sizes) else "float64"


def _placed(factor: Array, X: Array, dtype: str) -> Array:
    if on_host(X):
        return np.ascontiguousarray(host(factor).astype(dtype, copy=False))
    return convert(factor, X, dtype)


def _edited(X: Array, edit: Edit, dtype: str, finish: _Finish) -> Array:
    if on_host(X):
        out, finite = _on_host(X, edit, dtype, finish)
    else:
        with exact_products(X):
            out, finite = _on_device(X, edit, dtype, finish)
    if not finite:
        raise refuse_not_finite(X)
    return out


def _is_finite(part: Array) -> bool:
    """Whether all numbers are finite. A sum is several times faster than a look at each; it may overflow by itself."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(part.sum())) or bool(np.isfinite(part).all())


def _on_host(X: Array, edit: Edit, dtype: str, finish: _Finish) -> tuple[Array, bool]:
    n, d = X.shape
    # NumPy has no bfloat16 of its own: there PyTorch converts. Elsewhere NumPy allocates, also for PyTorch, because it
    # asks for huge pages: half of the time of an edit can go into the page faults of its output.
    through_torch = is_torch(X) and dtype_name(X) == "bfloat16"
    source: Any = X if through_torch or is_numpy(X) else X.numpy()
    target: Any = X.new_empty(X.shape) if through_torch else np.empty(source.shape, source.dtype)
    rows = max(2**17 // d, 16)

    def start() -> list[Any]:
        size = min(rows, n)
        return [np.empty((size, d), dtype), np.empty((size, d), dtype), True]

    def work(state: list[Any], begin: int, end: int) -> None:
        x = state[0][: end - begin]
        part = target[begin:end]
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(x, host(source[begin:end]) if through_torch else source[begin:end], casting="unsafe")
            change = edit(x, begin, end, state[1][: end - begin])
            if finish.is_plain and not through_torch:
                np.subtract(x, change, out=part, casting="unsafe")
            else:
                np.subtract(x, change, out=x)
                exact: Any = finish.exact(x)
                exact = sys.modules["torch"].from_numpy(exact) if through_torch else exact
                part[...] = finish.rounded(exact, target.dtype, begin // rows)
        state[2] &= _is_finite(part) if not through_torch else bool(part.isfinite().all())

    workers = worker_count() if n * d > 2**18 and not through_torch else 1
    finite = all(state[2] for state in chunked(n, rows, start, work, workers))
    return (target if through_torch or is_numpy(X) else sys.modules["torch"].from_numpy(target)), finite


def _on_device(X: Array, edit: Edit, dtype: str, finish: _Finish) -> tuple[Array, bool]:
    xp = namespace(X)
    n, d = X.shape
    rows = max(2**25 // d, 16)  # smaller chunks are slower: their launches cost more than the cache saves
    out = xp.empty_like(X)
    total: Array = 0.0  # finite only where all of the result is
    for begin in range(0, n, rows):
        end = min(n, begin + rows)
        x = xp.astype(X[begin:end], getattr(xp, dtype))
        x -= edit(x, begin, end, None)
        out[begin:end] = finish.rounded(finish.exact(x), X.dtype, begin // rows)
        total = total + xp.sum(xp.astype(out[begin:end], getattr(xp, dtype)))
    finite = n == 0 or bool(xp.isfinite(total)) or bool(xp.all(xp.isfinite(out)))
    return out, finite


def refuse_not_finite(X: Array) -> InputError:
    """The error for rows that are not finite, or do not fit into their dtype after the edit."""
    values = host(X)
    if np.isfinite(values).all():
        return InputError(
            f"the edit leaves the range of {dtype_name(X)} (largest |x| is {float(np.abs(values).max()):.5g}): rescale the "
            f"features, or use a wider dtype",
            code="out-of-range",
        )
    return not_finite(X)
