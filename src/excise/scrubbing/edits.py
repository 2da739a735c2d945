"""Edits: what an eraser does to the tensor at a site; the one way for fitting and application."""

from __future__ import annotations

from collections.abc import Callable

import torch

from excise.erasers.affine import AffineEraser
from excise.erasers.protocol import Eraser
from excise.errors import InputError
from excise.scrubbing.labels import Labels

__all__ = ["apply_eraser", "edit_of", "placed_at"]

FEW = 2**15  # numbers; below this the checks of an eraser take longer than its arithmetic
Edit = Callable[[torch.Tensor], torch.Tensor]


def edit_of(eraser: Eraser, path: str) -> Edit:
    """The edit of an eraser that needs no labels, made ready once for many calls.

    On a device nothing is looked at, so that nothing waits for it: NaN in a row gives NaN in that row. On the CPU the few
    vectors of a step of generation take a short way.
    """
    if not isinstance(eraser, AffineEraser):
        return lambda x: apply_eraser(eraser, path, x, None)
    found: dict[torch.device, Edit] = {}

    def edit(x: torch.Tensor) -> torch.Tensor:
        if x.device not in found:
            found[x.device] = _on_cpu(eraser, path) if x.is_cpu else eraser.as_module().to(x.device)
        return found[x.device](x)

    return edit


def _on_cpu(eraser: AffineEraser, path: str) -> Edit:
    """Few vectors in as few operations as can be: their number, not the arithmetic, is what takes time."""
    plain = not eraser.normalize and not (eraser.emptied is not None and len(eraser.emptied))
    left, right, center = (torch.as_tensor(f).cpu().double() for f in (eraser.left, eraser.right, eraser.center))
    left_t, start, d = left.T.contiguous(), -(center @ right), eraser.d
    one = (start[None, None], right[None], left_t[None])  # for one sequence (1, T, d)

    def edit(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not torch.float32 or x.numel() > FEW or not plain or torch.is_autocast_enabled("cpu"):
            return apply_eraser(eraser, path, x, None)
        # float64 has digits to spare for the offsets of float32.
        if x.ndim == 3 and x.shape[0] == 1:
            rows = x.double()
            return torch.baddbmm(rows, torch.baddbmm(one[0], rows, one[1]), one[2], alpha=-1).float()
        rows = x.reshape(-1, d).double()
        return torch.addmm(rows, torch.addmm(start, rows, right), left_t, alpha=-1).float().view(x.shape)

    return edit


def apply_eraser(
    eraser: Eraser,
    path: str,
    x: torch.Tensor,
    labels: Labels | None,
    time_first: bool = False,
) -> torch.Tensor:
    """What a site becomes, looked at for numbers that are not finite.

    Rows that are not finite stay as they are: attention makes them where a whole window is padding. `time_first`: the
    vectors come in the order (T, B), the labels in the order (B, T). With labels, vectors without one stay as they are.

    Raises:
        InputError: the edit leaves the range of the dtype; the message names the site.
    """
    if labels is not None:
        ordered = x.transpose(0, 1) if time_first else x
        rows = ordered.reshape(-1, x.shape[-1])
        edited = rows.clone()
        if len(labels.values):
            edited[labels.index(x.device)] = eraser(labels.kept(rows), labels.values)
        edited = edited.reshape(ordered.shape)
        return edited.transpose(0, 1) if time_first else edited
    try:
        erased: torch.Tensor = eraser(x)
        return erased
    except InputError as error:
        rows = x.reshape(-1, x.shape[-1])
        finite = rows.isfinite().all(dim=1)
        if bool(finite.all()):
            raise InputError(f"at {path}: {error}") from None
        return _some(rows, finite, eraser).reshape(x.shape)


def _some(rows: torch.Tensor, keep: torch.Tensor, edit: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    out = rows.clone()
    if bool(keep.any()):
        out[keep] = edit(rows[keep])
    return out


def placed_at(eraser: Eraser, module: torch.nn.Module, model: torch.nn.Module) -> Eraser:
    """Factors on the device of the site, so that they do not travel at every call."""
    parameter = next(module.parameters(), next(model.parameters(), None))
    if parameter is None or parameter.device.type == "cpu":
        return eraser
    return eraser.to(device=parameter.device)
