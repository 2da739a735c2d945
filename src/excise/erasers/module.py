"""An eraser as a torch.nn.Module, to be put into a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from excise.erasers.apply import differentiable
from excise.errors import InputError, missing_extra
from excise.numerics.arrays import convert

try:
    import torch
except ImportError:
    raise missing_extra("as_module() makes a layer for PyTorch, which is not installed", "torch") from None

if TYPE_CHECKING:
    from excise.erasers.affine import AffineEraser

__all__ = ["EraserModule", "eraser_module"]


def eraser_module(eraser: AffineEraser) -> EraserModule:
    return EraserModule(eraser)


class EraserModule(torch.nn.Module):
    """r(x) as a layer. It moves with its model, and keeps its factors in float64 when the model is cast."""

    left: torch.Tensor
    right: torch.Tensor
    center: torch.Tensor
    emptied: torch.Tensor

    def __init__(self, eraser: AffineEraser) -> None:
        super().__init__()
        like = eraser.left if isinstance(eraser.left, torch.Tensor) else torch.zeros(0)
        for name in ("left", "right", "center"):
            self.register_buffer(name, convert(getattr(eraser, name), like, "float64").clone())
        self.constants = eraser._constants
        self.normalize = eraser.normalize
        mask = torch.zeros(eraser.d, dtype=torch.bool, device=self.left.device)
        if self.constants is not None:
            mask[torch.from_numpy(self.constants.at).to(mask.device)] = True
        self.register_buffer("emptied", mask, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] != self.left.shape[0]:
            raise InputError(
                f"x has {x.shape[-1]} features (shape {tuple(x.shape)}), this eraser was fitted on {self.left.shape[0]}"
            )
        if not x.is_floating_point():
            x = x.to(torch.float64)
        if torch.compiler.is_compiling():
            return self._in_one_graph(x)
        result: torch.Tensor = differentiable(x, self.left, self.right, self.center, self.constants, self.normalize)
        return result

    def _in_one_graph(self, x: torch.Tensor) -> torch.Tensor:
        """The same map for torch.compile and torch.export: nothing but operations on tensors.

        In float64 whatever the dtype of x: neither autocast nor TF32 touches it, so neither has to be switched off.
        """
        wide = x.to(torch.float64)
        out = wide - (wide - self.center) @ self.right @ self.left.T
        if self.constants is not None:
            out = torch.where(self.emptied, self.center, out)
        if self.normalize:
            out = out / out.square().sum(dim=-1, keepdim=True).sqrt()
        return out.to(x.dtype)

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        # model.half() and model.to(dtype) come through here. The guarantee lives in the last digits of the factors,
        # so only the move to another device is taken over.
        before = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in before.items():
            moved = self._buffers[name]
            if moved is not None and moved.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(device=moved.device)
        return self

    def extra_repr(self) -> str:
        return f"d={self.left.shape[0]}, rank={self.left.shape[1]}"
