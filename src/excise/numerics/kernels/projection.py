"""One fused kernel for r(x) = x - ((x - center) @ right) @ left.T: x is read from memory once, or nearly so.

A program takes a block of rows. Its first loop walks over the features and adds up the coordinates x @ right; its second
walks back, reads x again (mostly from the cache, hence backwards) and subtracts coordinates @ left.T. float32 and
float64 rows are computed in float64, on the tensor cores. bfloat16 rows are exact factors of bfloat16 products: right,
left and the coordinates are split into two bfloat16 parts each, summed in float32. float16 rows are computed in
float32. For rank 1 whole rows stay in registers, and there are no matrix products. Tensor cores take a power of two of
directions: in float64 one more than that (17, from 18 classes) is added up beside them, which is cheaper than to double
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from excise.numerics.kernels import interpreted

__all__ = ["Factors", "nearest_bfloat16", "project", "split"]


@triton.jit
def _project(
    x_ptr,
    out_ptr,
    right_ptr,
    left_ptr,
    offset_ptr,
    center_ptr,
    one_more_ptr,
    flag_ptr,
    n,
    d,
    row_stride,
    out_stride,
    seed,
    MODE: tl.constexpr,  # "parts", "float32" or "float64"
    RANK: tl.constexpr,
    ONE_MORE: tl.constexpr,  # a direction beside those on the tensor cores
    R: tl.constexpr,  # columns for the tensor cores: a power of 2 from 16
    STACK: tl.constexpr,  # in parts: columns of the three products that make up the edit
    BM: tl.constexpr,
    BD: tl.constexpr,
    EVEN: tl.constexpr,  # whether BD divides d
    STOCHASTIC: tl.constexpr,
    BITS: tl.constexpr,  # explicit bits of the mantissa of x
    LEAST: tl.constexpr,  # its smallest normal exponent
    LARGEST: tl.constexpr,  # its largest number
    CHECK: tl.constexpr,
    CENTRED: tl.constexpr,  # float64 rows: centred before the product, which could lose their digits
    UPCAST: tl.constexpr,  # the interpreter multiplies raw bits of bfloat16, and truncates to it
):
    PARTS: tl.constexpr = MODE == "parts"
    WIDE: tl.constexpr = tl.float64 if MODE == "float64" else tl.float32
    K1: tl.constexpr = 2 * R if PARTS else R  # right in two parts, side by side
    K2: tl.constexpr = STACK if PARTS else R
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    present = rows[:, None] < n
    x_rows = x_ptr + rows.to(tl.int64)[:, None] * row_stride
    out_rows = out_ptr + rows.to(tl.int64)[:, None] * out_stride
    first = tl.arange(0, K1)
    acc = tl.zeros([BM, K1], WIDE)
    beside = tl.zeros([BM], WIDE)
    blocks = tl.cdiv(d, BD)
    for b in range(blocks):
        cols = b * BD + tl.arange(0, BD)
        inside = cols < d
        if EVEN:
            x = tl.load(x_rows + cols[None, :], mask=present, other=0.0)
            v = tl.load(right_ptr + cols[:, None] * K1 + first[None, :])
        else:
            x = tl.load(x_rows + cols[None, :], mask=present & inside[None, :], other=0.0)
            v = tl.load(right_ptr + cols[:, None] * K1 + first[None, :], mask=inside[:, None], other=0.0)
        if CENTRED:
            x -= tl.load(center_ptr + cols, mask=inside, other=0.0)[None, :]
        if ONE_MORE:
            w = tl.load(one_more_ptr + cols, mask=inside, other=0.0)
            beside += tl.sum(x.to(WIDE) * w[None, :], axis=1)
        if PARTS and not UPCAST:
            acc = tl.dot(x, v, acc)
        elif MODE == "float64":
            acc = tl.dot(x.to(tl.float64), v, acc, out_dtype=tl.float64)
        else:
            acc = tl.dot(x.to(tl.float32), v.to(tl.float32), acc, input_precision="ieee")
    minus = -acc
    if PARTS:
        minus = tl.sum(tl.reshape(minus, [BM, 2, R]), axis=1)
    ranks = tl.arange(0, R)
    if not CENTRED:
        minus += tl.load(offset_ptr + ranks)[None, :]
        if ONE_MORE:
            beside -= tl.load(offset_ptr + R)
    if PARTS:
        # The edit is high u0 + low u0 + high u1: one product of stacked columns. A product with 0 and 1 is exact.
        high = minus.to(tl.bfloat16)
        low = (minus - high.to(tl.float32)).to(tl.bfloat16)
        place = tl.arange(0, STACK)
        of_high = (place[None, :] == ranks[:, None]) | (place[None, :] == ranks[:, None] + 2 * RANK)
        of_high = of_high & (ranks[:, None] < RANK)
        of_low = (place[None, :] == ranks[:, None] + RANK) & (ranks[:, None] < RANK)
        if UPCAST:
            stacked = tl.dot(high.to(tl.float32), of_high.to(tl.float32))
            stacked = tl.dot(low.to(tl.float32), of_low.to(tl.float32), stacked)
        else:
            stacked = tl.dot(high, of_high.to(tl.bfloat16))
            stacked = tl.dot(low, of_low.to(tl.bfloat16), stacked)
        coordinates = stacked.to(tl.bfloat16)
    else:
        coordinates = minus
    second = tl.arange(0, K2)
    check = tl.zeros([BM], tl.float32)  # becomes NaN where the result is not finite
    cols = (blocks - 1) * BD + tl.arange(0, BD)
    ahead = tl.load(x_rows + cols[None, :], mask=present & (cols < d)[None, :], other=0.0)
    for back in range(blocks):
        cols = (blocks - 1 - back) * BD + tl.arange(0, BD)
        inside = cols < d
        x = ahead
        # The next block of x comes while this one is worked on.
        ahead = tl.load(x_rows + (cols - BD)[None, :], mask=present & (cols >= BD)[None, :], other=0.0)
        if EVEN:
            u = tl.load(left_ptr + cols[None, :] * K2 + second[:, None])  # (K2, BD): left transposed
        else:
            u = tl.load(left_ptr + cols[None, :] * K2 + second[:, None], mask=inside[None, :], other=0.0)
        y = x.to(WIDE)
        if ONE_MORE:
            w = tl.load(one_more_ptr + d + cols, mask=inside, other=0.0)
            y -= beside[:, None] * w[None, :]
        if PARTS and not UPCAST:
            y = tl.dot(coordinates, u, y)
        elif MODE == "float64":
            y = tl.dot(coordinates, u, y, out_dtype=tl.float64)
        else:
            y = tl.dot(coordinates.to(tl.float32), u.to(tl.float32), y, input_precision="ieee")
        if STOCHASTIC:
            place_of = rows.to(tl.int64)[:, None] * d + cols[None, :]
            y = _dithered(y, tl.rand(seed, place_of.to(tl.int32)), BITS, LEAST, LARGEST)
        if UPCAST and x.dtype == tl.bfloat16:
            y = nearest_bfloat16(y)
        out = y.to(x.dtype)
        if CHECK:
            check += tl.sum(out.to(tl.float32) * 0.0, axis=1)
        if EVEN:
            tl.store(out_rows + cols[None, :], out, mask=present)
        else:
            tl.store(out_rows + cols[None, :], out, mask=present & inside[None, :])
    if CHECK:
        total = tl.sum(check, axis=0)
        tl.atomic_max(flag_ptr, 1, mask=total != total)


@triton.jit
def _project_direction(
    x_ptr,
    out_ptr,
    right_ptr,
    left_ptr,
    offset_ptr,
    center_ptr,
    one_more_ptr,
    flag_ptr,
    n,
    d,
    row_stride,
    out_stride,
    seed,
    WIDE: tl.constexpr,
    BM: tl.constexpr,
    BD: tl.constexpr,  # at least d: whole rows stay in registers, so x is read once
    STOCHASTIC: tl.constexpr,
    BITS: tl.constexpr,
    LEAST: tl.constexpr,
    LARGEST: tl.constexpr,
    CHECK: tl.constexpr,
    CENTRED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """The same for rank 1."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.arange(0, BD)
    inside = cols < d
    present = (rows[:, None] < n) & inside[None, :]
    x = tl.load(x_ptr + rows.to(tl.int64)[:, None] * row_stride + cols[None, :], mask=present, other=0.0)
    v = tl.load(right_ptr + cols, mask=inside, other=0.0)
    if CENTRED:
        c = tl.load(center_ptr + cols, mask=inside, other=0.0)
        coordinate = tl.sum((x - c[None, :]).to(WIDE) * v[None, :], axis=1)
    else:
        coordinate = tl.sum(x.to(WIDE) * v[None, :], axis=1) - tl.load(offset_ptr)
    u = tl.load(left_ptr + cols, mask=inside, other=0.0)
    y = x.to(WIDE) - coordinate[:, None] * u[None, :]
    if STOCHASTIC:
        place = rows.to(tl.int64)[:, None] * d + cols[None, :]
        y = _dithered(y, tl.rand(seed, place.to(tl.int32)), BITS, LEAST, LARGEST)
    if UPCAST and x.dtype == tl.bfloat16:
        y = nearest_bfloat16(y)
    out = y.to(x.dtype)
    tl.store(out_ptr + rows.to(tl.int64)[:, None] * out_stride + cols[None, :], out, mask=present)
    if CHECK:
        total = tl.sum(tl.sum(out.to(tl.float32) * 0.0, axis=1), axis=0)  # NaN where something is not finite
        tl.atomic_max(flag_ptr, 1, mask=total != total)


@triton.jit
def nearest_bfloat16(y):
    """float32 numbers that are bfloat16 numbers: the nearest ones, ties to even."""
    bits = y.to(tl.int32, bitcast=True)
    bits += 0x7FFF + ((bits >> 16) & 1)
    return (bits & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _dithered(y, u, BITS: tl.constexpr, LEAST: tl.constexpr, LARGEST: tl.constexpr):
    """y plus a uniform number of up to half a unit in the last place on either side: rounding to nearest then rounds y
    up or down, the nearer neighbour more often."""
    size = tl.abs(y).to(tl.float32)
    exponent = ((size.to(tl.int32, bitcast=True) >> 23) & 0xFF) - 127
    exponent = tl.maximum(exponent, LEAST) - BITS
    unit = tl.exp2(exponent.to(tl.float32)).to(y.dtype)
    y = y + (u.to(y.dtype) - 0.5) * unit
    return tl.minimum(tl.maximum(y, -LARGEST), LARGEST)


FORMATS = {  # explicit bits of the mantissa, smallest normal exponent
    torch.bfloat16: (7, -126),
    torch.float16: (10, -14),
    torch.float32: (23, -126),
    torch.float64: (52, -126),
}


def split(factor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A float64 factor as the sum of two bfloat16 parts, to 2^-17 of each number."""
    high = factor.to(torch.bfloat16)
    return high, (factor - high.double()).to(torch.bfloat16)


@dataclass(frozen=True)
class Factors:
    """left and right (d, r) and the coordinates of the center, laid out for the kernel and for one kind of rows."""

    right: torch.Tensor  # (d, R), in parts (d, 2 R); (d,) for rank 1
    left: torch.Tensor  # (d, R), in parts (d, stack); (d,) for rank 1
    offset: torch.Tensor  # (R,), with one more direction (R + 1,)
    center: torch.Tensor  # (d,) float64
    one_more: torch.Tensor  # (2, d): right and left of a direction beside the others; (2, 0) if there is none
    rank: int
    mode: str

    @staticmethod
    def of(left: torch.Tensor, right: torch.Tensor, center: torch.Tensor, dtype: torch.dtype) -> Factors:
        """From float64 factors on the device, for rows of the given dtype."""
        mode = {torch.bfloat16: "parts", torch.float16: "float32"}.get(dtype, "float64")
        wide = torch.float64 if mode == "float64" else torch.float32
        r = left.shape[1]
        center = center.contiguous()
        none = left.new_zeros((2, 0), dtype=wide)
        if r == 1:
            narrow = [factor.reshape(-1).to(wide).contiguous() for factor in (right, left)]
            return Factors(narrow[0], narrow[1], (center @ right).to(wide), center, none, 1, mode)
        main, columns = columns_of(r, mode)
        offset = left.new_zeros(columns + r - main)
        offset[:main] = center @ right[:, :main]
        if r > main:
            offset[columns:] = center @ right[:, main:]
            none = torch.stack([right[:, main], left[:, main]]).to(wide).contiguous()
            left, right = left[:, :main], right[:, :main]
        if mode != "parts":
            placed = [_padded([factor], [0], columns).to(wide) for factor in (right, left)]
            return Factors(placed[0], placed[1], offset.to(wide), center, none, r, mode)
        (v0, v1), (u0, u1) = split(right), split(left)
        stacked = _padded([u0, u0, u1], [0, main, 2 * main], max(16, triton.next_power_of_2(3 * main)))
        return Factors(_padded([v0, v1], [0, columns], 2 * columns), stacked, offset.to(wide), center, none, r, mode)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.right, self.left, self.offset, self.center, self.one_more


def columns_of(rank: int, mode: str) -> tuple[int, int]:
    """How many directions the tensor cores take of a rank, and in how many columns."""
    columns = int(max(16, triton.next_power_of_2(rank)))
    if mode == "float64" and columns > 16 and rank == columns // 2 + 1:
        return columns // 2, columns // 2
    return rank, columns


def _padded(parts: list[torch.Tensor], places: list[int], width: int) -> torch.Tensor:
    """(d, width): the parts (d, r) at their places, zeros elsewhere."""
    out = parts[0].new_zeros((parts[0].shape[0], width))
    for part, place in zip(parts, places, strict=True):
        out[:, place : place + part.shape[1]] = part
    return out


def project(
    x: torch.Tensor,
    factors: Factors,
    out: torch.Tensor | None = None,
    seed: int | None = None,
    check: bool = True,
    shape: tuple[int, int, int, int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """r(x) for rows x (n, d), and a flag (1,) that is positive if some of the result is not finite.

    Args:
        x: rows whose last dimension is contiguous.
        out: where to put the result; may be x itself.
        seed: of stochastic rounding; None rounds to nearest.
        check: whether to look for infinities and NaN; without it the flag stays 0.
        shape: rows and features of a block, warps and stages, for benchmarks; chosen by the size unless given.
    """
    n, d = x.shape
    out = torch.empty((n, d), dtype=x.dtype, device=x.device) if out is None else out
    flag = torch.zeros(1, dtype=torch.int32, device=x.device)
    if n == 0:
        return out, flag
    bits, least = FORMATS[x.dtype]
    common = {
        "STOCHASTIC": seed is not None,
        "BITS": bits,
        "LEAST": least,
        "LARGEST": float(torch.finfo(x.dtype).max),
        "CHECK": check,
        "CENTRED": x.dtype == torch.float64,
        "UPCAST": interpreted(),
    }
    sizes = (n, d, x.stride(0), out.stride(0), 0 if seed is None else seed % 2**31)
    if factors.rank == 1:
        bd = triton.next_power_of_2(d)
        bm, warps = direction_shape(bd, x.element_size())
        _project_direction[(triton.cdiv(n, bm),)](
            x,
            out,
            *factors.tensors(),
            flag,
            *sizes,
            WIDE=tl.float64 if factors.mode == "float64" else tl.float32,
            BM=bm,
            BD=bd,
            num_warps=warps,
            **common,
        )
        return out, flag
    main, columns = columns_of(factors.rank, factors.mode)
    bm, bd, warps, stages = block_shape(columns, factors.mode, d) if shape is None else shape
    _project[(triton.cdiv(n, bm),)](
        x,
        out,
        *factors.tensors(),
        flag,
        *sizes,
        MODE=factors.mode,
        RANK=main,
        ONE_MORE=factors.rank > main,
        R=columns,
        STACK=factors.left.shape[1] if factors.mode == "parts" else 16,
        BM=bm,
        BD=bd,
        EVEN=d % bd == 0,
        num_warps=warps,
        num_stages=stages,
        **common,
    )
    return out, flag


def direction_shape(width: int, size: int) -> tuple[int, int]:
    """Rows of a block and warps for rank 1: 16 KB of 16-bit rows in the registers of a program, 32 KB of others."""
    rows = max(1, 2 ** (14 if size == 2 else 15) // (width * size))
    return rows, 4 if size == 2 else 8


def block_shape(columns: int, mode: str, d: int) -> tuple[int, int, int, int]:
    """Rows and features of a block, warps, pipeline stages; measured on a Hopper device."""
    widest = 16 if d <= 16 else min(128, triton.next_power_of_2(d))
    if mode == "parts":
        return (64, min(widest, 128), 4, 3) if columns <= 64 else (64, min(widest, 64), 8, 2)
    if columns <= 32:
        return 64, min(widest, 64), 4, 3
    return 32, min(widest, 32), 4, 2
