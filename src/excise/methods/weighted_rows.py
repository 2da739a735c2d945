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
from excise.numerics.arrays import Array, convert, exact_products, host, is_numpy, namespace, on_host
from excise.numerics.chunks import chunked, worker_count

__all__ = ["Batch", "Edit", "WeightedRows", "WeightedSums"]

CANCELLED = 1e-6  # |r|^2 below this share of |x|^2 is computed again, from r itself
NO_LENGTH = 1e-13  # a row of which less than this is left has no direction but that of its rounding errors
CHUNK = 2**17  # numbers in a chunk on the host
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

    def add(self, other: WeightedSums) -> None:
        for name in ("total", "by_column", "cross", "square", "rows"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.nearest < self.nearest:
            self.nearest, self.at = other.nearest, other.at


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

    def sums(self, edit: Edit | None, floor: float = 0.0) -> WeightedSums:
        """One pass; without an edit r(x) = x.

        Raises:
            InputError: a row of zeros, or a row that the edit maps to zero.
        """
        out = WeightedSums()
        begin = 0
        for number, batch in enumerate(self.batches()):
            sums = (self._on_host if on_host(batch.rows) and on_host(self.like) else self._on_device)(
                batch, edit, floor, number
            )
            sums.at += begin
            out.add(sums)
            begin += batch.rows.shape[0]
        least = NO_LENGTH if edit is not None else 0.0
        if floor == 0.0 and not out.nearest > least:
            what = "has zeros only" if edit is None else "is mapped to zero by the edit"
            raise InputError(
                f"row {out.at} {what}: it has no direction and cannot be normalised; drop it, or erase without normalize",
                code="zero-row",
            )
        return out

    def _labels(self, batch: Batch) -> Any:
        """Class codes, or centred columns."""
        if batch.labels.matrix is None:
            return batch.labels.codes
        return batch.labels.matrix - host(self.mean_z)

    def _on_host(self, batch: Batch, edit: Edit | None, floor: float, number: int) -> WeightedSums:
        n, d = batch.rows.shape
        source = batch.rows if is_numpy(batch.rows) or "bfloat16" in str(batch.rows.dtype) else host(batch.rows)
        labels, k = self._labels(batch), batch.labels.k
        shift = host(self.shift) if bool((host(self.shift) != 0).any()) else None
        known = self._squares.get(number) if self.in_memory else None
        squares = np.empty(n) if known is None else known
        both = gram = None
        if edit is not None:
            both = np.ascontiguousarray(np.concatenate([host(edit.left), host(edit.right)], axis=1))
            gram = host(edit.left).T @ host(edit.left)
            offset, r = host(edit.offset), edit.left.shape[1]
            lift = np.zeros(r) if shift is None else shift @ host(edit.left)

        def start() -> WeightedSums:
            return WeightedSums(by_column=np.zeros(k), cross=np.zeros((k, d)))

        def work(sums: WeightedSums, begin: int, end: int) -> None:
            x = host(source[begin:end]).astype(np.float64, copy=False)
            square = squares[begin:end]
            if known is None:
                np.einsum("ij,ij->i", x, x, out=square)
            moved = x if shift is None else x - shift
            length = square
            if edit is not None:
                along = moved @ both
                y = along[:, r:] + offset
                length = square - 2.0 * np.einsum("ij,ij->i", y, along[:, :r] + lift)
                length += np.einsum("ij,ij->i", y @ gram, y)
                close = np.flatnonzero(length < CANCELLED * square)
                if len(close):
                    left_over = x[close] - y[close] @ host(edit.left).T
                    length[close] = np.einsum("ij,ij->i", left_over, left_over)
            own = None if batch.weight is None else batch.weight[begin:end]
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = length / square if own is None else np.where(own > 0, length / square, np.inf)
                w = 1.0 / np.sqrt(length + floor)
            ratio = np.where(square > 0, ratio, 0.0) if own is None else np.where((square > 0) | (own == 0), ratio, 0.0)
            low = int(np.argmin(ratio))
            if ratio[low] < sums.nearest**2:
                sums.nearest, sums.at = float(np.sqrt(max(ratio[low], 0.0))), begin + low
            if own is not None:
                w = np.where(own > 0, w * own, 0.0)
            sums.total += float(w.sum())
            sums.square += float(length.sum() if own is None else own @ length)
            sums.rows += float(end - begin if own is None else own.sum())
            if labels.ndim == 2:
                weighted = (labels[begin:end] * w[:, None]).T
                sums.by_column += weighted.sum(axis=1)
                sums.cross += weighted @ moved
            else:
                codes = labels[begin:end]
                sums.by_column += np.bincount(codes, weights=w, minlength=k)
                sums.cross += class_products(moved, codes, k, w)

        rows = max(CHUNK // d, 16)
        parts = chunked(n, rows, start, work, worker_count() if n * d > 2**18 else 1)
        out = parts[0]
        for part in parts[1:]:
            out.add(part)
        if self.in_memory and known is None:
            self._squares[number] = squares
        if batch.labels.matrix is None:  # columns about their means
            out.cross -= host(self.mean_z)[:, None] * out.cross.sum(axis=0)[None, :]
            out.by_column -= host(self.mean_z) * out.total
        return out

    def _on_device(self, batch: Batch, edit: Edit | None, floor: float, number: int) -> WeightedSums:
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
                moved, length = x - shift, square
                if edit is not None:
                    y = moved @ edit.right + edit.offset
                    left_over = x - y @ edit.left.T
                    length = xp.sum(left_over * left_over, axis=1)
                if dense is not None:
                    z = dense[begin : begin + step]
                else:
                    assert codes is not None
                    z = xp.astype(codes[begin : begin + step, None] == classes[None, :], xp.float64) - mean_z
                w = 1.0 / xp.sqrt(length + floor)
                ratio = xp.where(square > 0, length / xp.where(square > 0, square, 1.0), xp.zeros_like(square))
                rows = float(x.shape[0])
                weight = None
                if batch.weight is not None:
                    weight = convert(batch.weight[begin : begin + step], like, "float64")
                    ratio = xp.where(weight > 0, ratio, xp.full_like(ratio, np.inf))
                    w = xp.where(weight > 0, w * weight, xp.zeros_like(w))
                    rows = float(xp.sum(weight))
                low = int(xp.argmin(ratio))
                part = WeightedSums(
                    float(xp.sum(w)), z.T @ w, (z * w[:, None]).T @ moved,
                    float(xp.sum(length if weight is None else length * weight)), rows,
                    float(ratio[low]) ** 0.5, begin + low,
                )  # fmt: skip
                out.add(part)
        return out


def class_products(x: Any, codes: Any, k: int, w: Any) -> Any:
    """(k, d) weighted sums of the rows of each class."""
    m = len(codes)
    if k == 2:
        second = np.where(codes == 1, w, 0.0)
        return np.stack([w - second, second]) @ x
    if m * k <= 2**16:
        labels = np.zeros((k, m))
        labels[codes, np.arange(m)] = w
        return labels @ x
    from scipy.sparse import csr_array

    return csr_array((w, (codes, np.arange(m))), shape=(k, m)) @ x
