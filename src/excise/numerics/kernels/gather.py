"""One pass over float32 rows on a CUDA device: sums in float64, and the rows as three bfloat16 parts.

The pass subtracts the shift and adds up x^2 and the rows of each class. The three parts add up to x to the last bit;
six of the nine products of three parts are as accurate as float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from excise.numerics.kernels import interpreted
from excise.numerics.kernels.projection import nearest_bfloat16

__all__ = ["MOST_CLASSES", "ROWS_AT_ONCE", "Gathered", "gather_rows", "sums_of_squares"]

MOST_CLASSES = 128  # columns of labels whose sums fit into the registers of a program
ROWS_AT_ONCE = 2**27  # numbers of a part


@triton.jit
def _gather(
    x_ptr,
    shift_ptr,
    codes_ptr,
    weight_ptr,
    parts_ptr,
    sums_ptr,
    squares_ptr,
    n,
    d,
    row_stride,
    rows_per_program,
    WEIGHTED: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BD: tl.constexpr,
    UPCAST: tl.constexpr,
):
    cols = tl.program_id(0) * BD + tl.arange(0, BD)
    inside = cols < d
    first = tl.program_id(1) * rows_per_program
    classes = tl.arange(0, K)
    shift = tl.load(shift_ptr + cols, mask=inside, other=0.0)
    sums = tl.zeros([K, BD], tl.float64)
    squares = tl.zeros([BD], tl.float64)
    part = n.to(tl.int64) * d
    for start in range(0, rows_per_program, BM):
        rows = first + start + tl.arange(0, BM)
        known = (rows < n) & (start + tl.arange(0, BM) < rows_per_program)
        present = known[:, None] & inside[None, :]
        at = rows.to(tl.int64)[:, None]
        x = tl.load(x_ptr + at * row_stride + cols[None, :], mask=present, other=0.0)
        code = tl.load(codes_ptr + rows, mask=known, other=-1)
        x = tl.where(present, x.to(tl.float64) - shift[None, :], 0.0)
        label = (classes[:, None] == code[None, :]).to(tl.float64)
        scaled = x
        if WEIGHTED:
            w = tl.load(weight_ptr + rows, mask=known, other=0.0)
            label = label * w[None, :]
            scaled = x * tl.sqrt(w)[:, None]
        sums = tl.dot(label, x, sums, out_dtype=tl.float64)
        squares += tl.sum(scaled * scaled, axis=0)
        rest = scaled.to(tl.float32)
        out = parts_ptr + at * d + cols[None, :]
        for p in tl.static_range(3):
            piece = rest.to(tl.bfloat16)
            if UPCAST:
                piece = nearest_bfloat16(rest).to(tl.bfloat16)
            tl.store(out + p * part, piece, mask=present)
            rest = rest - piece.to(tl.float32)
    place = tl.program_id(1).to(tl.int64)
    tl.store(sums_ptr + (place * K + classes[:, None]) * d + cols[None, :], sums, mask=inside[None, :])
    tl.store(squares_ptr + place * d + cols, squares, mask=inside)


@dataclass(frozen=True)
class Gathered:
    """About the shift, of n rows: parts of x times the roots of the weights, and sums in float64."""

    parts: torch.Tensor  # (3, n, d)
    cross: torch.Tensor  # (k, d): weighted sums of the rows of each class
    squares: torch.Tensor  # (d,)


def gather_rows(
    x: torch.Tensor,
    shift: torch.Tensor,
    codes: torch.Tensor,
    k: int,
    weight: torch.Tensor | None = None,
) -> Gathered:
    """One pass over float32 rows x (n, d), contiguous in their last dimension.

    Args:
        shift: (d,) float64, near the mean.
        codes: (n,) int64 classes.
        k: how many classes, at most MOST_CLASSES.
        weight: (n,) float64, or None.
    """
    n, d = x.shape
    columns = max(16, triton.next_power_of_2(k))
    bd = 64 if columns <= 32 else 32
    bm = 32
    per_program = max(bm, triton.next_power_of_2(triton.cdiv(n * triton.cdiv(d, bd), 2048)))
    splits = triton.cdiv(n, per_program)
    pieces = torch.empty((3, n, d), dtype=torch.bfloat16, device=x.device)
    sums = torch.empty((splits, columns, d), dtype=torch.float64, device=x.device)
    squares = torch.empty((splits, d), dtype=torch.float64, device=x.device)
    _gather[(triton.cdiv(d, bd), splits)](
        x,
        shift,
        codes,
        shift if weight is None else weight,
        pieces,
        sums,
        squares,
        n,
        d,
        x.stride(0),
        per_program,
        WEIGHTED=weight is not None,
        K=columns,
        BM=bm,
        BD=bd,
        UPCAST=interpreted(),
        num_warps=4,
        num_stages=1,
    )
    return Gathered(pieces, sums.sum(0)[:k], squares.sum(0))


@triton.jit
def _squares(x_ptr, out_ptr, n, d, row_stride, rows_per_program, BM: tl.constexpr, BD: tl.constexpr):
    cols = tl.program_id(0) * BD + tl.arange(0, BD)
    inside = cols < d
    first = tl.program_id(1) * rows_per_program
    squares = tl.zeros([BM, BD], tl.float64)
    for start in range(0, rows_per_program, BM):
        rows = first + start + tl.arange(0, BM)
        present = (rows < n)[:, None] & (start + tl.arange(0, BM) < rows_per_program)[:, None] & inside[None, :]
        x = tl.load(x_ptr + rows.to(tl.int64)[:, None] * row_stride + cols[None, :], mask=present, other=0.0)
        x = x.to(tl.float32)
        squares += (x * x).to(tl.float64)  # exact in float32 for 16-bit numbers, but for their range
    tl.store(out_ptr + tl.program_id(1).to(tl.int64) * d + cols, tl.sum(squares, axis=0), mask=inside)


def sums_of_squares(x: torch.Tensor) -> torch.Tensor:
    """(d,) float64: of the columns of 16-bit rows x (n, d), contiguous in their last dimension."""
    n, d = x.shape
    bm, bd = 8, 128
    per_program = max(bm, triton.next_power_of_2(triton.cdiv(n * triton.cdiv(d, bd), 4096)))
    splits = triton.cdiv(n, per_program)
    out = torch.empty((splits, d), dtype=torch.float64, device=x.device)
    _squares[(triton.cdiv(d, bd), splits)](x, out, n, d, x.stride(0), per_program, BM=bm, BD=bd, num_warps=4)
    return out.sum(0)
