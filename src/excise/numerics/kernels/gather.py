"""Sums over rows on a CUDA device: one pass that reads x once, and products of its parts on the tensor cores.

The pass subtracts the shift, adds up x and x^2 and the rows of each class in float64, and writes x as one 16-bit part
(16-bit rows, two if they are weighted) or as three bfloat16 parts (float32 rows: their sum is x to the last bit). Products of parts are summed in
float32 over a stretch of rows that is short enough for it, and in float64 from there on. Only one triangle of blocks is
computed. Six of the nine products of three parts are as accurate as float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
import triton
import triton.language as tl

from excise.numerics.kernels import interpreted
from excise.numerics.kernels.projection import nearest_bfloat16

__all__ = ["MOST_CLASSES", "ROWS_AT_ONCE", "Gathered", "blocks_of", "gather_rows", "product_of_parts"]

MOST_CLASSES = 128  # columns of labels whose sums fit into the registers of a program
STRETCH = 2048  # rows that are summed in float32
ROWS_AT_ONCE = 2**27  # numbers of a part


@triton.jit
def _gather(
    x_ptr,
    shift_ptr,
    codes_ptr,
    labels_ptr,
    weight_ptr,
    parts_ptr,
    sums_ptr,
    total_ptr,
    squares_ptr,
    n,
    d,
    row_stride,
    rows_per_program,
    k,
    CODES: tl.constexpr,  # classes of rows, or numbers (n, k)
    WEIGHTED: tl.constexpr,
    PARTS: tl.constexpr,
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
    total = tl.zeros([BD], tl.float64)
    squares = tl.zeros([BD], tl.float64)
    part = n.to(tl.int64) * d
    for start in range(0, rows_per_program, BM):
        rows = first + start + tl.arange(0, BM)
        known = (rows < n) & (start + tl.arange(0, BM) < rows_per_program)
        present = known[:, None] & inside[None, :]
        at = rows.to(tl.int64)[:, None]
        x = tl.load(x_ptr + at * row_stride + cols[None, :], mask=present, other=0.0).to(tl.float64) - shift[None, :]
        x = tl.where(present, x, 0.0)
        if CODES:
            code = tl.load(codes_ptr + rows, mask=known, other=-1)
            label = (classes[:, None] == code[None, :]).to(tl.float64)
        else:
            label = tl.load(
                labels_ptr + at.trans() * k + classes[:, None], mask=known[None, :] & (classes[:, None] < k), other=0.0
            )
        if WEIGHTED:
            w = tl.load(weight_ptr + rows, mask=known, other=0.0)
            label = label * w[None, :]
            total += tl.sum(x * w[:, None], axis=0)
            scaled = x * tl.sqrt(w)[:, None]
        else:
            total += tl.sum(x, axis=0)
            scaled = x
        sums = tl.dot(label, x, sums, out_dtype=tl.float64)
        squares += tl.sum(scaled * scaled, axis=0)
        out = parts_ptr + at * d + cols[None, :]
        rest = scaled.to(tl.float32)
        for p in tl.static_range(PARTS):
            piece = rest.to(parts_ptr.dtype.element_ty)
            if UPCAST and parts_ptr.dtype.element_ty == tl.bfloat16:
                piece = nearest_bfloat16(rest).to(tl.bfloat16)
            tl.store(out + p * part, piece, mask=present)
            rest = rest - piece.to(tl.float32)
    place = tl.program_id(1).to(tl.int64)
    tl.store(sums_ptr + (place * K + classes[:, None]) * d + cols[None, :], sums, mask=inside[None, :])
    tl.store(total_ptr + place * d + cols, total, mask=inside)
    tl.store(squares_ptr + place * d + cols, squares, mask=inside)


@dataclass(frozen=True)
class Gathered:
    """About the shift, of n rows: parts of x times the roots of the weights, and sums in float64."""

    parts: torch.Tensor  # (p, n, d)
    cross: torch.Tensor  # (k, d): sums of the rows of each class, or Z^T (X - shift)
    total: torch.Tensor  # (d,)
    squares: torch.Tensor  # (d,)


def gather_rows(
    x: torch.Tensor,
    shift: torch.Tensor,
    codes: torch.Tensor | None,
    labels: torch.Tensor | None,
    k: int,
    weight: torch.Tensor | None,
    parts: int,
) -> Gathered:
    """One pass over rows x (n, d) of 16 or 32 bits, contiguous in their last dimension.

    Args:
        shift: (d,) float64, near the mean.
        codes: (n,) int64 classes; or
        labels: (n, k) float64 numbers.
        k: columns of the concept, at most MOST_CLASSES.
        weight: (n,) float64, or None.
        parts: into how many to split x: 3 hold all digits of float32, 2 those of 16-bit rows that are shifted or weighted.
    """
    n, d = x.shape
    kind = torch.float16 if x.dtype == torch.float16 else torch.bfloat16
    columns = max(16, triton.next_power_of_2(k))
    bd = 64 if columns <= 32 else 32
    bm = 32
    per_program = max(bm, triton.next_power_of_2(triton.cdiv(n * triton.cdiv(d, bd), 2048)))
    splits = triton.cdiv(n, per_program)
    pieces = torch.empty((parts, n, d), dtype=kind, device=x.device)
    sums = torch.empty((splits, columns, d), dtype=torch.float64, device=x.device)
    total, squares = (torch.empty((splits, d), dtype=torch.float64, device=x.device) for _ in range(2))
    none = shift  # an argument that is not read
    _gather[(triton.cdiv(d, bd), splits)](
        x,
        shift,
        none if codes is None else codes,
        none if labels is None else labels,
        none if weight is None else weight,
        pieces,
        sums,
        total,
        squares,
        n,
        d,
        x.stride(0),
        per_program,
        k,
        CODES=codes is not None,
        WEIGHTED=weight is not None,
        PARTS=parts,
        K=columns,
        BM=bm,
        BD=bd,
        UPCAST=interpreted(),
        num_warps=4,
        num_stages=2,
    )
    return Gathered(pieces, sums.sum(0)[:k], total.sum(0), squares.sum(0))


# Pairs of parts whose products count: what is left out is below the last bit of float32.
PAIRS = {1: ((0, 0),), 2: ((0, 1), (1, 0), (0, 0)), 3: ((0, 2), (2, 0), (1, 1), (0, 1), (1, 0), (0, 0))}


def product_of_parts(parts: torch.Tensor, one_part: Sequence[bool] | None = None) -> torch.Tensor:
    """(d, d) float64: X^T X of rows X = sum of parts (p, n, d), block by block of one triangle.

    `one_part` says which blocks of features (`blocks_of(d)`) are whole in their first part; products with their other
    parts are left out.
    """
    p, n, d = parts.shape
    out = torch.zeros((d, d), dtype=torch.float64, device=parts.device)
    edges = blocks_of(d)
    short = [False] * (len(edges) - 1) if one_part is None else list(one_part)
    whole = n - n % STRETCH
    for rows, stretches in ((slice(0, whole), n // STRETCH), (slice(whole, n), 1)):
        if rows.stop == rows.start:
            continue
        part = parts[:, rows].reshape(p, stretches, -1, d)
        for i, j in combinations_with_replacement(range(len(short)), 2):
            a, b = (slice(edges[block], edges[block + 1]) for block in (i, j))
            for left, right in PAIRS[p]:
                # On the diagonal a product and its mirror image are one.
                if (left and short[i]) or (right and short[j]) or (i == j and left < right):
                    continue
                block = _batched(part[left, :, :, a].transpose(1, 2), part[right, :, :, b]).double().sum(0)
                out[a, b] += block + block.T if i == j and left != right else block
    upper = out.triu()
    return upper + upper.triu(1).T


def blocks_of(d: int) -> list[int]:
    """Edges of the blocks of features."""
    count = max(1, min(8, d // 512))
    return [round(d * i / count) for i in range(count + 1)]


def _batched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Products of 16-bit matrices, summed and given out in float32."""
    if a.device.type == "cuda":
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())
