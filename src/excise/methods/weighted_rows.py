"""One round over the rows for erasure that survives normalising: sums weighted by one over the length of r(x).

Rows come from memory or, batch by batch, from files. Sums are float64. A round costs two thin products per chunk: the
lengths of r(x) follow from |x|^2 and from the coordinates of x along the edit, without making r(x).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from excise.concepts.encoded import Encoded
from excise.errors import InputError
from excise.numerics.arrays import Array, convert, dtype_name, exact_products, host, is_numpy, namespace, on_host
from excise.numerics.chunks import chunked, worker_count

__all__ = ["Batch", "Edit", "WeightedRows", "WeightedSums"]

CANCELLED = 1e-6  # |r|^2 below this share of |x|^2 is computed again, from r itself
SHORTEST = 1e-28  # |r|^2 counts as no less than this share of |x|^2: below are rounding errors
CHUNK = 2**19  # numbers in a chunk on the host: more cost the cache, fewer cost calls
DEVICE_CHUNK = 2**25


@dataclass(frozen=True)
class Batch:
    rows: Array  # (n, d)
    labels: Encoded
    weight: np.ndarray[Any, Any] | None


@dataclass(frozen=True)
class Edit:
    """r(x) = x - left (right^T (x - shift) + offset)."""

    left: Array  # (d, r)
    right: Array  # (d, r)
    offset: Array  # (r,)


@dataclass
class WeightedSums:
    """Sums over rows with w = 1 / sqrt(|r(x)|^2 + floor)."""

    total: float = 0.0  # of w
    by_column: Any = 0.0  # (k,) of w z
    cross: Any = 0.0  # (k, d) of w z (x - shift)^T
    square: float = 0.0  # of |r|^2
    rows: float = 0.0  # weight of the rows
    nearest: float = np.inf  # the smallest |r| / |x|
    at: int = -1  # its row
    empty: int = -1  # a row of zeros
    scratch: Any = None  # of the worker: temporaries of this size would be faulted in again at every chunk

    def add(self, other: WeightedSums) -> None:
        for name in ("total", "by_column", "cross", "square", "rows"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.nearest < self.nearest:
            self.nearest, self.at = other.nearest, other.at
        self.empty = max(self.empty, other.empty)


@dataclass
class WeightedRows:
    """Rows that can be gone through again and again.

    Args:
        batches: starts a new pass over all rows.
        shift: (d,) subtracted from x before products, where offsets are large.
        mean_z: (k,) subtracted from the columns of the concept.
        like: an array of the library and device to compute with.
    """

    batches: Callable[[], Iterator[Batch]]
    shift: Array
    mean_z: Array
    like: Array
    in_memory: bool = True
    _squares: dict[int, Any] = field(default_factory=dict)

    def sums(self, edit: Edit, floor: float = 0.0, narrow: bool = False) -> WeightedSums:
        """One pass. `narrow` takes products of 16- and 32-bit rows in float32: for the rounds that are only on their way.

        Raises:
            InputError: a row of zeros.
        """
        out = WeightedSums()
        begin = 0
        for number, batch in enumerate(self.batches()):
            sums = (self._on_host if on_host(batch.rows) and on_host(self.like) else self._on_device)(
                batch, edit, floor, number, narrow
            )
            sums.at += begin
            sums.empty += begin if sums.empty >= 0 else 0
            out.add(sums)
            begin += batch.rows.shape[0]
        if out.empty >= 0:
            raise InputError(
                f"row {out.empty} has zeros only: it has no direction and cannot be normalised; drop it, or erase without "
                f"normalize",
                code="zero-row",
            )
        return out

    def _labels(self, batch: Batch) -> Any:
        """Class codes, or centred columns."""
        if batch.labels.matrix is None:
            return batch.labels.codes
        return batch.labels.matrix - host(self.mean_z)

    def _on_host(self, batch: Batch, edit: Edit, floor: float, number: int, narrow: bool) -> WeightedSums:
        n, d = batch.rows.shape
        source = batch.rows if is_numpy(batch.rows) or dtype_name(batch.rows) == "bfloat16" else host(batch.rows)
        labels, k = self._labels(batch), batch.labels.k
        shift = host(self.shift) if bool((host(self.shift) != 0).any()) else None
        narrow = narrow and shift is None and dtype_name(batch.rows) != "float64"
        dtype = np.float32 if narrow else np.float64
        known = self._squares.get(number) if self.in_memory else None
        squares = np.empty(n) if known is None else known
        left, offset, r = host(edit.left), host(edit.offset), edit.left.shape[1]
        both = np.ascontiguousarray(np.concatenate([left, host(edit.right)], axis=1), dtype=dtype)
        gram = left.T @ left
        lift = np.zeros(r) if shift is None else shift @ left

        def start() -> WeightedSums:
            return WeightedSums(by_column=np.zeros(k), cross=np.zeros((k, d)))

        rows = max(CHUNK // d, 16)

        def work(sums: WeightedSums, begin: int, end: int) -> None:
            x = host(source[begin:end])
            if x.dtype != dtype:
                if sums.scratch is None:
                    sums.scratch = np.empty((min(rows, n), d), dtype)
                np.copyto(sums.scratch[: end - begin], x, casting="unsafe")
                x = sums.scratch[: end - begin]
            square = squares[begin:end]
            if known is None:
                square[...] = np.einsum("ij,ij->i", x, x)
            moved = x if shift is None else x - shift
            along = (moved @ both).astype(np.float64, copy=False)
            y = along[:, r:] + offset
            length = square + np.einsum("ij,ij->i", y, y @ gram - 2.0 * (along[:, :r] + lift))
            close = np.flatnonzero(length < CANCELLED * square)
            if len(close):
                left_over = x[close] - y[close] @ left.T
                length[close] = np.einsum("ij,ij->i", left_over, left_over)
            own = None if batch.weight is None else batch.weight[begin:end]
            zero = np.flatnonzero(square <= 0 if own is None else (square <= 0) & (own > 0))
            if len(zero):
                sums.empty = begin + int(zero[0])
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = length / square if own is None else np.where(own > 0, length / square, np.inf)
                w = 1.0 / np.sqrt(np.maximum(length, SHORTEST * square) + floor)
            low = int(np.argmin(ratio))
            if not ratio[low] >= sums.nearest**2:
                sums.nearest, sums.at = float(np.sqrt(max(ratio[low], 0.0))), begin + low
            if own is not None:
                w = np.where(own > 0, w * own, 0.0)
            sums.total += float(w.sum())
            sums.square += float(length.sum() if own is None else own @ length)
            sums.rows += float(end - begin if own is None else own.sum())
            if labels.ndim == 2:
                weighted = (labels[begin:end] * w[:, None]).T
                sums.by_column += weighted.sum(axis=1)
                sums.cross += weighted.astype(dtype, copy=False) @ moved
            else:
                codes = labels[begin:end]
                sums.by_column += np.bincount(codes, weights=w, minlength=k)
                sums.cross += class_products(moved, codes, k, w.astype(dtype, copy=False))

        parts = chunked(n, rows, start, work, worker_count() if n * d > 2**18 else 1)
        out = parts[0]
        out.scratch = None
        for part in parts[1:]:
            out.add(part)
        if self.in_memory and known is None and not narrow:
            self._squares[number] = squares
        if batch.labels.matrix is None:  # columns about their means
            out.cross -= host(self.mean_z)[:, None] * out.cross.sum(axis=0)[None, :]
            out.by_column -= host(self.mean_z) * out.total
        return out

    def _on_device(self, batch: Batch, edit: Edit, floor: float, number: int, narrow: bool) -> WeightedSums:
        like = self.like
        xp = namespace(like)
        n, d = batch.rows.shape
        mean_z, shift = convert(self.mean_z, like, "float64"), convert(self.shift, like, "float64")
        dense = None if batch.labels.matrix is None else convert(self._labels(batch), like, "float64")
        codes = convert(batch.labels.codes_like(like), like) if dense is None else None
        classes = convert(np.arange(batch.labels.k), like)
        out = WeightedSums()
        with exact_products(like):
            for begin in range(0, n, step := max(1, DEVICE_CHUNK // d)):
                x = convert(batch.rows[begin : begin + step], like, "float64")
                square = xp.sum(x * x, axis=1)
                moved = x - shift
                left_over = x - (moved @ edit.right + edit.offset) @ edit.left.T
                length = xp.sum(left_over * left_over, axis=1)
                if dense is not None:
                    z = dense[begin : begin + step]
                else:
                    assert codes is not None
                    z = xp.astype(codes[begin : begin + step, None] == classes[None, :], xp.float64) - mean_z
                w = 1.0 / xp.sqrt(xp.where(length > SHORTEST * square, length, SHORTEST * square) + floor)
                ratio = xp.where(square > 0, length / xp.where(square > 0, square, 1.0), xp.zeros_like(square))
                rows = float(x.shape[0])
                weight, zero = None, square <= 0
                if batch.weight is not None:
                    weight = convert(batch.weight[begin : begin + step], like, "float64")
                    ratio = xp.where(weight > 0, ratio, xp.full_like(ratio, np.inf))
                    w = xp.where(weight > 0, w * weight, xp.zeros_like(w))
                    rows = float(xp.sum(weight))
                    zero = zero & (weight > 0)
                low = int(xp.argmin(ratio))
                part = WeightedSums(
                    float(xp.sum(w)), z.T @ w, (z * w[:, None]).T @ moved,
                    float(xp.sum(length if weight is None else length * weight)), rows,
                    float(ratio[low]) ** 0.5, begin + low,
                    begin + int(xp.argmax(xp.astype(zero, xp.int8))) if bool(xp.any(zero)) else -1,
                )  # fmt: skip
                out.add(part)
        return out


def class_products(x: Any, codes: Any, k: int, w: Any) -> Any:
    """(k, d) weighted sums of the rows of each class."""
    m = len(codes)
    if k == 2:
        second = np.where(codes == 1, w, w.dtype.type(0))
        return np.stack([w - second, second]) @ x
    if m * k <= 2**16:
        labels = np.zeros((k, m), dtype=w.dtype)
        labels[codes, np.arange(m)] = w
        return labels @ x
    from scipy.sparse import csr_array

    return csr_array((w, (codes, np.arange(m))), shape=(k, m)) @ x
