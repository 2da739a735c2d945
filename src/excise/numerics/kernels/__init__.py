"""Triton kernels for CUDA devices. They are chosen here and nowhere else.

`available(x)` says whether a kernel can run on a tensor: a CUDA device with Triton, or any tensor while Triton
interprets its kernels on the CPU (TRITON_INTERPRET=1), which is how they are tested without a device.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

__all__ = ["available", "interpreted", "project_rows"]

MOST_COLUMNS = 256  # directions that the fused projection takes
WHOLE_ROW = 2**15  # bytes of a row that fits into the registers of a program, for rank 1
SMALL = 2**18  # numbers: for fewer, a few ordinary products are quicker than starting a kernel

# Decided once: Triton too reads this variable when it is imported. Plain values, which compiled graphs can hold.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_HAS_TRITON = importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton runs kernels as Python on the CPU."""
    return _INTERPRETED


def available(x: Any) -> bool:
    """Whether the kernels can run on a PyTorch tensor."""
    return (x.is_cuda or _INTERPRETED) and _HAS_TRITON


def project_rows(x: Any, rank: int) -> bool:
    """Whether the fused projection should take a tensor x (..., d)."""
    if not available(x) or (x.numel() < SMALL and not interpreted()):
        return False
    return 2 <= rank <= MOST_COLUMNS or (rank == 1 and x.shape[-1] * x.element_size() <= WHOLE_ROW)
