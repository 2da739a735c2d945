"""Edits of many rows, chunk by chunk, without losing what the dtype of x can hold.

float32 and float64 data are computed in float64: with float32 factors a trace of the concept stays in the direction
that should have no variance left. 16-bit data are computed in float32. On the host the chunks fit the cache and run
on all cores: about the time of a copy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from excise._array import (
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
from excise._chunks import chunked, worker_count
from excise._rounding import round_randomly
from excise._statistics import not_finite
from excise.concept import Encoded
from excise.errors import InputError

__all__ = ["differentiable", "refuse_not_finite", "subtract_by_label", "subtract_projection"]

FLOAT32_SAFE = 1e36  # factors beyond it do not fit into float32

# (x of a chunk, its first row, its last, scratch) -> (what to subtract, something that is finite exactly where x is).
# On the host the result is put into `scratch`: temporaries of this size would be given back to the system and
# faulted in again at every chunk, which took longer than the arithmetic. On a device there is none.
Edit = Callable[[Array, int, int, Array | None], tuple[Array, Array]]


def subtract_projection(X: Array, left: Array, right: Array, center: Array, seed: int | None) -> Array:
    """x - ((x - center) @ right) @ left.T for the rows of X (n, d), in the dtype of X. `seed`: round at random.

    Raises:
        InputError: X has values that are not finite.
    """
    dtype = _compute_dtype(X, left, right, center)
    left_t, right, center = (_placed(f, X, dtype) for f in (left.T, right, center))

    # float64 has digits to spare for whatever offset float32 data can have, so there the centring can wait until the
    # coordinates: one pass over the chunk less.
    late = dtype_name(X) == "float32"
    offset = center @ right

    def edit(x: Array, begin: int, end: int, scratch: Array | None) -> tuple[Array, Array]:
        if late:
            coordinates = x @ right - offset  # (rows, r); NaN times anything is NaN
        else:
            coordinates = (x - center if scratch is None else np.subtract(x, center, out=scratch)) @ right
        change = coordinates @ left_t if scratch is None else np.matmul(coordinates, left_t, out=scratch)
        return change, coordinates if right.shape[1] else x

    return _edited(X, edit, dtype, seed)


def subtract_by_label(X: Array, z: Encoded, coefficients: Array, mean_z: Array, seed: int | None) -> Array:
    """x - coefficients @ (z - mean_z) for the rows of X (n, d) with labels z, in the dtype of X.

    Raises:
        InputError: X has values that are not finite.
    """
    dtype = _compute_dtype(X, coefficients)
    per_column = coefficients.T  # (k, d)
    average = mean_z @ per_column
    if z.codes is not None:
        table = _placed(per_column - average[None, :], X, dtype)  # (k, d): the edit of each class
        codes = z.codes if on_host(X) else convert(z.codes, X)

        def edit(x: Array, begin: int, end: int, scratch: Array | None) -> tuple[Array, Array]:
            rows = codes[begin:end]
            return table[rows] if scratch is None else np.take(table, rows, axis=0, out=scratch, mode="clip"), x

        return _edited(X, edit, dtype, seed)
    assert z.matrix is not None
    centred = z.matrix - host(mean_z)  # before anything is rounded: the labels may have an offset
    matrix, per_column = (_placed(f, X, dtype) for f in (centred, per_column))

    def edit_numbers(x: Array, begin: int, end: int, scratch: Array | None) -> tuple[Array, Array]:
        if scratch is None:
            return matrix[begin:end] @ per_column, x
        return np.matmul(matrix[begin:end], per_column, out=scratch), x

    return _edited(X, edit_numbers, dtype, seed)


def differentiable(x: Array, left: Array, right: Array, center: Array) -> Array:
    """The projection in one piece; PyTorch differentiates it. Factors are float64 on the device of x."""
    xp = namespace(x)
    with exact_products(x):
        dtype = xp.float32 if is_16_bit(x) else xp.float64
        exact = xp.astype(x, dtype)
        edit = (exact - xp.astype(center, dtype)) @ xp.astype(right, dtype) @ xp.astype(left, dtype).T
        return xp.astype(exact - edit, x.dtype)


def _compute_dtype(x: Array, *factors: Array) -> str:
    if not is_16_bit(x):
        return "float64"
    sizes = [float(abs(f).max()) for f in factors if min(f.shape)]
    return "float32" if all(size < FLOAT32_SAFE for size in sizes) else "float64"


def _placed(factor: Array, X: Array, dtype: str) -> Array:
    if on_host(X):
        return np.ascontiguousarray(host(factor).astype(dtype, copy=False))
    return convert(factor, X, dtype)


def _edited(X: Array, edit: Edit, dtype: str, seed: int | None) -> Array:
    if on_host(X):
        out, finite = _on_host(X, edit, dtype, seed)
    else:
        with exact_products(X):
            out, finite = _on_device(X, edit, dtype, seed)
    if not finite:
        raise refuse_not_finite(X)
    return out


def _on_host(X: Array, edit: Edit, dtype: str, seed: int | None) -> tuple[Array, bool]:
    n, d = X.shape
    # NumPy has no bfloat16 of its own: there PyTorch converts. Elsewhere NumPy allocates, also for PyTorch, because it
    # asks for huge pages: half of the time of an edit can go into the page faults of its output.
    through_torch = is_torch(X) and dtype_name(X) == "bfloat16"
    source: Any = X if through_torch or is_numpy(X) else X.numpy()
    target: Any = X.new_empty(X.shape) if through_torch else np.empty(source.shape, source.dtype)
    rows = max(2**17 // d, 16)

    def start() -> list[Any]:
        return [np.empty((rows, d), dtype), np.empty((rows, d), dtype), True]

    def work(state: list[Any], begin: int, end: int) -> None:
        x = state[0][: end - begin]
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(x, host(source[begin:end]) if through_torch else source[begin:end], casting="unsafe")
            change, witness = edit(x, begin, end, state[1][: end - begin])
            state[2] &= bool(np.isfinite(witness).all())
            if seed is None and not through_torch:
                np.subtract(x, change, out=target[begin:end], casting="unsafe")
                return
            np.subtract(x, change, out=x)
        exact = sys.modules["torch"].from_numpy(x) if through_torch else x
        target[begin:end] = exact if seed is None else round_randomly(exact, target.dtype, (seed, begin // rows))

    def work_and_check(state: list[Any], begin: int, end: int) -> None:
        work(state, begin, end)
        if dtype_name(X) == "float16":  # its greatest number is 65504: an edit can leave its range
            state[2] &= bool(np.isfinite(target[begin:end]).all())

    workers = worker_count() if n * d > 2**18 and not through_torch else 1
    finite = all(state[2] for state in chunked(n, rows, start, work_and_check, workers))
    return (target if through_torch or is_numpy(X) else sys.modules["torch"].from_numpy(target)), finite


def _on_device(X: Array, edit: Edit, dtype: str, seed: int | None) -> tuple[Array, bool]:
    xp = namespace(X)
    n, d = X.shape
    rows = max(2**25 // d, 16)  # smaller chunks are slower: their launches cost more than the cache saves
    out = xp.empty_like(X)
    total: Array = 0.0  # finite exactly where all of X is
    for begin in range(0, n, rows):
        end = min(n, begin + rows)
        x = xp.astype(X[begin:end], getattr(xp, dtype))
        change, witness = edit(x, begin, end, None)
        total = total + xp.sum(witness)
        x -= change
        out[begin:end] = x if seed is None else round_randomly(x, X.dtype, (seed, begin // rows))
    finite = n == 0 or bool(xp.isfinite(total))
    if dtype_name(X) == "float16":
        finite = finite and bool(xp.all(xp.isfinite(out)))
    return out, finite


def refuse_not_finite(X: Array) -> InputError:
    """The error for rows that are not finite, or do not fit into their dtype after the edit."""
    values = host(X)
    if np.isfinite(values).all():
        return InputError(
            f"the edit leaves the range of {dtype_name(X)} (largest |x| is {float(np.abs(values).max()):.5g}): rescale the "
            f"features, or use a wider dtype"
        )
    return not_finite(X)
