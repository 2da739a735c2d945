"""One fused kernel for r(x) = x - ((x - center) @ right) @ left.T: x is read from memory once, or nearly so.

A program takes a block of rows. Its first loop walks over the features and adds up the coordinates x @ right; its second
walks back, reads x again (mostly from the cache, hence backwards) and subtracts coordinates @ left.T. float32 and
float64 rows are computed in float64, on the tensor cores. bfloat16 rows are exact factors of bfloat16 products: right,
left and the coordinates are split into two bfloat16 parts each, summed in float32. float16 rows are computed in
float32. Ranks are a multiple of 16 for the tensor cores and at most one further column by ordinary arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from excise.numerics.kernels import interpreted

__all__ = ["MOST_COLUMNS", "Factors", "nearest_bfloat16", "project", "split"]

MOST_COLUMNS = 256  # ranks beyond are left to ordinary products
WHOLE_ROW = 2**15  # bytes of a row that fits into the registers of a program


@triton.jit
def _project(
    x_ptr,
    out_ptr,
    right_ptr,
    left_ptr,
    right_one_ptr,
    left_one_ptr,
    offset_ptr,
    center_ptr,
    flag_ptr,
    n,
    d,
    row_stride,
    out_stride,
    seed,
    MODE: tl.constexpr,  # "parts", "float32" or "float64"
    R: tl.constexpr,  # columns for the tensor cores, 0 or 16 and up
    ONE: tl.constexpr,  # whether there is one more column
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
    WIDE: tl.constexpr = tl.float64 if MODE == "float64" else tl.float32
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    present = rows[:, None] < n
    x_rows = x_ptr + rows.to(tl.int64)[:, None] * row_stride
    out_rows = out_ptr + rows.to(tl.int64)[:, None] * out_stride
    ranks = tl.arange(0, R if R > 0 else 16)
    part = d * R  # distance between the two parts of a factor
    acc = tl.zeros([BM, R if R > 0 else 16], WIDE)
    one = tl.zeros([BM], WIDE)
    blocks = tl.cdiv(d, BD)
    for b in range(blocks):
        cols = b * BD + tl.arange(0, BD)
        inside = cols < d
        if EVEN:
            x = tl.load(x_rows + cols[None, :], mask=present, other=0.0)
        else:
            x = tl.load(x_rows + cols[None, :], mask=present & inside[None, :], other=0.0)
        if CENTRED:
            x -= tl.load(center_ptr + cols, mask=inside, other=0.0)[None, :]
        if ONE:
            v = tl.load(right_one_ptr + cols, mask=inside, other=0.0)
            one += tl.sum(x.to(WIDE) * v[None, :], axis=1)
        if R > 0:
            at = right_ptr + cols[:, None] * R + ranks[None, :]
            v0 = tl.load(at, mask=inside[:, None], other=0.0)
            if MODE == "parts":
                v1 = tl.load(at + part, mask=inside[:, None], other=0.0)
                if UPCAST:
                    acc = tl.dot(x.to(tl.float32), v0.to(tl.float32), acc)
                    acc = tl.dot(x.to(tl.float32), v1.to(tl.float32), acc)
                else:
                    acc = tl.dot(x, v0, acc)
                    acc = tl.dot(x, v1, acc)
            elif MODE == "float32":
                acc = tl.dot(x.to(tl.float32), v0, acc, input_precision="ieee")
            else:
                acc = tl.dot(x.to(tl.float64), v0, acc, out_dtype=tl.float64)
    if not CENTRED:
        if R > 0:
            acc -= tl.load(offset_ptr + ranks)[None, :]
        if ONE:
            one -= tl.load(offset_ptr + R)
    high = acc.to(tl.bfloat16)
    low = (acc - high.to(WIDE)).to(tl.bfloat16)
    bad = tl.zeros([BM], tl.int32)
    for back in range(blocks):
        b = blocks - 1 - back
        cols = b * BD + tl.arange(0, BD)
        inside = cols < d
        if EVEN:
            x = tl.load(x_rows + cols[None, :], mask=present, other=0.0)
        else:
            x = tl.load(x_rows + cols[None, :], mask=present & inside[None, :], other=0.0)
        y = x.to(WIDE)
        if ONE:
            u = tl.load(left_one_ptr + cols, mask=inside, other=0.0)
            y -= one[:, None] * u[None, :]
        if R > 0:
            at = left_ptr + cols[None, :] * R + ranks[:, None]  # (R, BD): left transposed
            u0 = tl.load(at, mask=inside[None, :], other=0.0)
            if MODE == "parts":
                u1 = tl.load(at + part, mask=inside[None, :], other=0.0)
                if UPCAST:
                    edit = tl.dot(high.to(tl.float32), u1.to(tl.float32))
                    edit = tl.dot(low.to(tl.float32), u0.to(tl.float32), edit)
                    edit = tl.dot(high.to(tl.float32), u0.to(tl.float32), edit)
                else:
                    edit = tl.dot(high, u1)
                    edit = tl.dot(low, u0, edit)
                    edit = tl.dot(high, u0, edit)
                y -= edit
            elif MODE == "float32":
                y -= tl.dot(acc, u0, input_precision="ieee")
            else:
                y -= tl.dot(acc, u0, out_dtype=tl.float64)
        if STOCHASTIC:
            place = rows.to(tl.int64)[:, None] * d + cols[None, :]
            u = tl.rand(seed, place.to(tl.int32))
            y = _dithered(y, u, BITS, LEAST, LARGEST)
        if UPCAST and x.dtype == tl.bfloat16:
            y = nearest_bfloat16(y)
        out = y.to(x.dtype)
        if CHECK:
            wrong = (out != out) | (tl.abs(out.to(WIDE)) == float("inf"))
            bad += tl.sum(tl.where(present & inside[None, :], wrong.to(tl.int32), 0), axis=1)
        tl.store(out_rows + cols[None, :], out, mask=present & inside[None, :])
    if CHECK:
        total = tl.sum(bad, axis=0)
        tl.atomic_max(flag_ptr, total, mask=total > 0)


@triton.jit
def _project_direction(
    x_ptr,
    out_ptr,
    right_ptr,
    left_ptr,
    offset_ptr,
    center_ptr,
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
        wrong = (out != out) | (tl.abs(out.to(WIDE)) == float("inf"))
        bad = tl.sum(tl.sum(tl.where(present, wrong.to(tl.int32), 0), axis=1), axis=0)
        tl.atomic_max(flag_ptr, bad, mask=bad > 0)


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


def split(factor: torch.Tensor) -> torch.Tensor:
    """(2, ...) bfloat16: a float64 factor as the sum of two parts, to 2^-17 of each number."""
    high = factor.to(torch.bfloat16)
    return torch.stack([high, (factor - high.double()).to(torch.bfloat16)])


@dataclass(frozen=True)
class Factors:
    """left and right (d, r) and the coordinates of the center, laid out for the kernel and for one kind of rows."""

    right: torch.Tensor  # (d, R), or (2, d, R) in parts
    left: torch.Tensor
    right_one: torch.Tensor  # (d,), or empty
    left_one: torch.Tensor
    offset: torch.Tensor  # (R + 1,)
    center: torch.Tensor  # (d,) float64
    columns: int  # R
    mode: str

    @staticmethod
    def of(left: torch.Tensor, right: torch.Tensor, center: torch.Tensor, dtype: torch.dtype) -> Factors:
        """From float64 factors on the device, for rows of the given dtype."""
        mode = {torch.bfloat16: "parts", torch.float16: "float32"}.get(dtype, "float64")
        wide = torch.float64 if mode == "float64" else torch.float32
        d, r = left.shape
        one = r % 16 == 1
        plain = r - 1 if one else r
        columns = 0 if plain == 0 else max(16, triton.next_power_of_2(plain))

        def padded(factor: torch.Tensor) -> torch.Tensor:
            out = factor.new_zeros((d, columns))
            out[:, :plain] = factor[:, :plain]
            return split(out) if mode == "parts" else out.to(wide)

        offset = left.new_zeros(columns + 1)
        coordinates = center @ right
        offset[:plain] = coordinates[:plain]
        last = slice(plain, r)
        offset[columns : columns + int(one)] = coordinates[last]
        return Factors(
            padded(right).contiguous(),
            padded(left).contiguous(),
            right[:, last].reshape(-1).to(wide).contiguous(),
            left[:, last].reshape(-1).to(wide).contiguous(),
            offset.to(wide),
            center.contiguous(),
            columns,
            mode,
        )

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.right, self.left, self.right_one, self.left_one, self.offset, self.center


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
    if factors.columns == 0 and d * x.element_size() <= WHOLE_ROW:
        bd = triton.next_power_of_2(d)
        bm, warps = direction_shape(bd, x.element_size())
        _project_direction[(triton.cdiv(n, bm),)](
            x,
            out,
            factors.right_one,
            factors.left_one,
            factors.offset,
            factors.center,
            flag,
            *sizes,
            WIDE=tl.float64 if factors.mode == "float64" else tl.float32,
            BM=bm,
            BD=bd,
            num_warps=warps,
            **common,
        )
        return out, flag
    bm, bd, warps, stages = block_shape(factors.columns, factors.mode, d) if shape is None else shape
    _project[(triton.cdiv(n, bm),)](
        x,
        out,
        *factors.tensors(),
        flag,
        *sizes,
        MODE=factors.mode,
        R=factors.columns,
        ONE=factors.right_one.numel() > 0,
        BM=bm,
        BD=bd,
        EVEN=d % bd == 0,
        num_warps=warps,
        num_stages=stages,
        **common,
    )
    return out, flag


def direction_shape(width: int, size: int) -> tuple[int, int]:
    """Rows of a block and warps for rank 1: about 32 KB of x in the registers of a program."""
    rows = max(1, 2**15 // (width * size))
    return rows, 4 if rows * width * size <= 2**14 else 8


def block_shape(columns: int, mode: str, d: int) -> tuple[int, int, int, int]:
    """Rows and features of a block, warps, pipeline stages; measured on a Hopper device."""
    widest = 16 if d <= 16 else min(128, triton.next_power_of_2(d))
    if mode == "parts":
        return (64, min(widest, 128), 4, 3) if columns <= 64 else (64, min(widest, 64), 8, 2)
    if columns <= 32:
        return 64, min(widest, 64), 4, 2
    return 32, min(widest, 32), 4, 2
