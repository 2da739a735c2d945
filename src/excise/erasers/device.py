"""r(x) for PyTorch tensors in one piece: by the fused kernel on a CUDA device, by two products elsewhere.

Nothing here waits for the device: NaN in gives NaN out. It is one operator for PyTorch, so that graphs that are compiled
or exported hold it whole, and gradients flow through it: for y = x - (x - center) V U^T the gradient of x is
g - (g U) V^T, the same map with the factors exchanged.
"""

from __future__ import annotations

from typing import Any

import torch

from excise.numerics import kernels

__all__ = ["TorchFactors", "by_products", "project"]


class TorchFactors:
    """left, right (d, r) and center (d,) in float64 on one device, and what the kernel makes of them for each dtype."""

    def __init__(self, left: torch.Tensor, right: torch.Tensor, center: torch.Tensor) -> None:
        self.left, self.right, self.center = left, right, center
        self.rank = int(left.shape[1])
        self.left_t, self.right_t = left.T, right.T
        self.minus_offset = -(center @ right)
        self._narrow: tuple[torch.Tensor, ...] | None = None
        self._prepared: dict[torch.dtype, tuple[Any, Any]] = {}

    @property
    def narrow(self) -> tuple[torch.Tensor, ...]:
        """The same in float32, for 16-bit rows."""
        if self._narrow is None:
            parts = (self.left, self.left_t, self.right, self.right_t, self.center)
            self._narrow = tuple(f.float() for f in parts)
        return self._narrow

    def prepared(self, dtype: torch.dtype) -> tuple[Any, Any]:
        """Factors of the kernel for rows of a dtype, and those of the gradient."""
        if dtype not in self._prepared:
            from excise.numerics.kernels.projection import Factors

            forward = Factors.of(self.left, self.right, self.center, dtype)
            backward = Factors.of(self.right, self.left, torch.zeros_like(self.center), dtype)
            self._prepared[dtype] = (forward, backward)
        return self._prepared[dtype]


def project(x: torch.Tensor, factors: TorchFactors) -> torch.Tensor:
    """x (..., d) -> r(x), same dtype; differentiable."""
    if kernels.project_rows(x, factors.rank):
        forward, backward = factors.prepared(x.dtype)
        result: torch.Tensor = torch.ops.excise.project(
            x, list(forward.tensors()), list(backward.tensors()), forward.rank, forward.mode
        )
        return result
    return by_products(x, factors)


def by_products(x: torch.Tensor, f: TorchFactors) -> torch.Tensor:
    """r(x) by two ordinary products, in float64 (float32 for 16-bit rows)."""
    if torch.is_autocast_enabled(x.device.type):
        with torch.autocast(device_type=x.device.type, enabled=False):
            return by_products(x, f)
    if x.ndim > 2:
        return by_products(x.reshape(-1, x.shape[-1]), f).reshape(x.shape)
    if x.dtype in (torch.float16, torch.bfloat16):
        left, left_t, right, right_t, center = f.narrow
        wide = x.float()
    else:
        left, left_t, right, right_t, center = f.left, f.left_t, f.right, f.right_t, f.center
        wide = x.double()
    if x.dtype == torch.float32:  # float64 has digits to spare for its offsets: the center can wait
        shifted, start = wide, f.minus_offset
    else:
        shifted, start = wide - center, torch.zeros_like(f.minus_offset, dtype=wide.dtype)
    if x.ndim == 1:
        return torch.addmv(wide, left, torch.addmv(start, right_t, shifted), alpha=-1).to(x.dtype)
    return torch.addmm(wide, torch.addmm(start, shifted, right), left_t, alpha=-1).to(x.dtype)


@torch.library.custom_op("excise::project", mutates_args=())
def _project(
    x: torch.Tensor, forward: list[torch.Tensor], backward: list[torch.Tensor], rank: int, mode: str
) -> torch.Tensor:
    from excise.numerics.kernels.projection import Factors, project

    rows = x.reshape(-1, x.shape[-1])
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    right, left, offset, center = forward
    factors = Factors(right, left, offset, center, rank, mode)
    return project(rows, factors, check=False)[0].reshape(x.shape)


@_project.register_fake
def _(x: torch.Tensor, forward: Any, backward: Any, rank: int, mode: str) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    _, forward, backward, rank, mode = inputs
    ctx.save_for_backward(*forward, *backward)
    ctx.rank, ctx.mode = rank, mode


def _gradient(ctx: Any, g: torch.Tensor) -> Any:
    saved = ctx.saved_tensors
    half = len(saved) // 2
    back = torch.ops.excise.project(g.contiguous(), list(saved[half:]), list(saved[:half]), ctx.rank, ctx.mode)
    return back, [None] * half, [None] * half, None, None


_project.register_autograd(_gradient, setup_context=_keep)
