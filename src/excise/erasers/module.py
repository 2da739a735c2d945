"""An eraser as a torch.nn.Module, to be put into a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from excise.errors import InputError, missing_extra
from excise.numerics.arrays import convert

try:
    import torch
except ImportError:
    raise missing_extra("as_module() makes a layer for PyTorch, which is not installed", "torch") from None

from excise.erasers.device import TorchFactors, project

if TYPE_CHECKING:
    from excise.erasers.affine import AffineEraser

__all__ = ["EraserModule", "eraser_module"]


def eraser_module(eraser: AffineEraser) -> EraserModule:
    return EraserModule(eraser)


class EraserModule(torch.nn.Module):
    """r(x) as a layer. It moves with its model, and keeps its factors in float64 when the model is cast.

    It never waits for the device: it raises no error on NaN or infinity, which come out as NaN.
    """

    left: torch.Tensor
    right: torch.Tensor
    center: torch.Tensor
    emptied: torch.Tensor  # (d,) features that come out as the constant `center`

    def __init__(self, eraser: AffineEraser) -> None:
        super().__init__()
        like = eraser.left if isinstance(eraser.left, torch.Tensor) else torch.zeros(0)
        for name in ("left", "right", "center"):
            self.register_buffer(name, convert(getattr(eraser, name), like, "float64").clone())
        self.d = eraser.d
        self.normalize = eraser.normalize
        self.empties = eraser.emptied is not None and len(eraser.emptied) > 0
        if self.empties:
            emptied = torch.zeros(eraser.d, dtype=torch.bool, device=like.device)
            emptied[convert(eraser.emptied, like).long()] = True
            self.register_buffer("emptied", emptied)
        self.register_load_state_dict_post_hook(lambda module, _: module._prepare())  # type: ignore[no-untyped-call]
        self._prepare()

    def _prepare(self) -> None:
        self._factors = TorchFactors(self.left, self.right, self.center)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] != self.d:
            raise InputError(
                f"x has {x.shape[-1]} features (shape {tuple(x.shape)}), this eraser was fitted on {self.d}",
                code="feature-count",
            )
        if not x.is_floating_point():
            x = x.to(torch.float64)
        out = project(x, self._factors)
        if self.empties:
            out = torch.where(self.emptied, self.center.to(out.dtype), out)
        if self.normalize:
            wide = out.double() if out.dtype in (torch.float32, torch.float64) else out.float()
            out = (wide / wide.norm(dim=-1, keepdim=True)).to(out.dtype)
        return out

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        # model.half() and model.to(dtype) come through here. The guarantee lives in the last digits of the factors,
        # so only the move to another device is taken over.
        before = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in before.items():
            moved = self._buffers[name]
            if moved is not None and moved.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(device=moved.device)
        self._prepare()
        return self

    def extra_repr(self) -> str:
        return f"d={self.left.shape[0]}, rank={self.left.shape[1]}"
