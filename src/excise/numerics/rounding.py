"""Stochastic rounding: up or down at random, so that the mean of many roundings is the exact value.

Rounding to nearest loses every edit smaller than half a unit in the last place, and with it the guarantee; rounding at
random keeps it on average. Works on the bits of float16, bfloat16 and float32, in NumPy, PyTorch and CuPy.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from excise.errors import ExciseError
from excise.numerics.arrays import Array, dtype_name, is_numpy, is_torch, namespace

__all__ = ["Rounding", "check_rounding", "round_randomly"]

Rounding = str  # "nearest" or "stochastic"
BITS = {"float16": 16, "bfloat16": 16, "float32": 32}


def check_rounding(rounding: str, like: Array) -> bool:
    """Whether to round at random.

    Raises:
        ExciseError: an unknown name, or a dtype that is not narrower than the arithmetic.
    """
    if rounding not in ("nearest", "stochastic"):
        raise ExciseError(f"rounding must be 'nearest' or 'stochastic', got {rounding!r}")
    if rounding == "stochastic" and dtype_name(like) not in BITS:
        raise ExciseError(
            f"stochastic rounding is for {', '.join(BITS)}, got {dtype_name(like)}: nothing is rounded there; use 'nearest'"
        )
    return rounding == "stochastic"


def round_randomly(exact: Array, dtype: Any, seed: tuple[int, int]) -> Array:
    """`exact` (float32 or float64) as `dtype`: one of its two neighbours, the nearer one more often."""
    xp = namespace(exact)
    most = float(namespace(exact).finfo(dtype).max) if not is_numpy(exact) else _largest(dtype)
    exact = xp.clip(exact, -most, most)  # beyond it there is only infinity, which would be an invention
    near = xp.astype(exact, dtype)
    wide = xp.astype(near, exact.dtype)
    low = _step(near, wide > exact, up=False)  # the largest value <= exact
    high = _step(low, xp.astype(low, exact.dtype) < exact, up=True)
    below, above = xp.astype(low, exact.dtype), xp.astype(high, exact.dtype)
    gap = above - below
    share = xp.where(gap > 0, (exact - below) / xp.where(gap > 0, gap, xp.ones_like(gap)), xp.zeros_like(gap))
    return xp.where(_uniform(exact, seed) < share, high, low)


def _largest(dtype: Any) -> float:
    return 2.0**128 - 2.0**120 if str(dtype) == "bfloat16" else float(np.finfo(dtype).max)


def _step(x: Array, where: Array, up: bool) -> Array:
    """The next representable value up or down, where asked. Floats are sign and magnitude: the bits count away from 0."""
    integer = f"int{BITS[dtype_name(x)]}"
    xp = namespace(x)
    bits = x.view(getattr(sys.modules["torch"], integer) if is_torch(x) else np.dtype(integer))
    one = xp.ones_like(bits)
    lowest = xp.full_like(bits, -(2 ** (BITS[dtype_name(x)] - 1)))  # the bits of -0.0
    zero = (bits == 0) | (bits == lowest)
    outwards = bits < 0 if not up else bits >= 0
    moved = xp.where(outwards, bits + one, bits - one)
    moved = xp.where(zero, one if up else lowest + one, moved)  # the smallest number on that side of zero
    return xp.where(where, moved, bits).view(x.dtype)


def _uniform(like: Array, seed: tuple[int, int]) -> Array:
    """Uniform numbers in [0, 1): the same for the same seed and chunk."""
    if is_torch(like) and like.device.type != "cpu":
        torch: Any = sys.modules["torch"]
        key = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)
        generator = torch.Generator(device=like.device).manual_seed(key)
        return torch.rand(like.shape, generator=generator, device=like.device, dtype=like.dtype)
    draws = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed))).random(like.shape, dtype=np.float32)
    if is_numpy(like):
        return draws
    return namespace(like).asarray(draws, device=like.device)
