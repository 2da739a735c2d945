"""Readers: the linear layers that receive the tensor of a site, found by watching one forward pass.

Each site hands out a copy of its tensor, and every operation on that copy is seen, inside modules and between them. So
the residual stream, which no module reads, is found too, and no list of architectures is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from excise.errors import ExciseError
from excise.exporting.scrubbed import evaluating, hooked

__all__ = ["Reader", "is_linear", "readers_of"]

# They look at the shape of a tensor and not at its numbers.
SHAPE_ONLY = ("empty_like", "zeros_like", "ones_like", "full_like", "new_empty", "new_zeros", "new_ones", "new_full")
# They give out the same numbers, row by row.
COPIES = ("clone", "contiguous", "detach", "alias", "lift_fresh")
LISTED = 3  # sites and readers that a message names


@dataclass(frozen=True)
class Reader:
    """A linear layer y = W x + b that reads a site. Conv1D, GPT-2's, holds W transposed."""

    path: str
    module: torch.nn.Module
    site: str
    transposed: bool


@dataclass
class _Seen:
    """What one pass has shown."""

    sites: dict[int, str] = field(default_factory=dict)  # by the address of the memory that holds a copy of the site
    alive: list[torch.Tensor] = field(default_factory=list)  # memory that is given back would be handed out again
    linear: dict[str, list[str]] = field(default_factory=dict)  # site -> paths of linear layers
    other: dict[str, list[str]] = field(default_factory=dict)  # site -> descriptions of other readers
    calls: dict[str, int] = field(default_factory=dict)  # of each module
    visits: dict[str, int] = field(default_factory=dict)  # of each site
    stack: list[tuple[str, torch.nn.Module, int]] = field(default_factory=list)  # open modules and their input's memory
    paused: bool = False

    def site_of(self, value: Any) -> str | None:
        return self.sites.get(_memory(value)) if isinstance(value, torch.Tensor) else None

    def note(self, kind: dict[str, list[str]], site: str, what: str) -> None:
        if what not in kind.setdefault(site, []):
            kind[site].append(what)


def readers_of(model: torch.nn.Module, sites: Iterable[str], inputs: Mapping[str, Any]) -> dict[str, list[Reader]]:
    """The linear layers that read each site, in the order in which they are called.

    Raises:
        ExciseError: a site is read by something that is no linear layer (a norm, a product, the residual stream), or a
            layer reads more than the site. The message lists the readers.
    """
    paths = list(sites)
    seen = _watch(model, paths, inputs)
    again = [path for path in paths if seen.visits.get(path, 0) != 1]
    if again:
        raise ExciseError(
            f"{again[0]} runs {seen.visits.get(again[0], 0)} times in one forward pass: one layer would need a different "
            f"edit each time, so it cannot be moved into weights; keep the hooks (scrubber.attached)",
            code="shared-weights",
        )
    if seen.other:
        raise _refuse(seen)
    out = {
        site: [Reader(path, model.get_submodule(path), site, _is_conv1d(model.get_submodule(path))) for path in found]
        for site, found in seen.linear.items()
    }
    _check_calls(seen, out)
    _check_reached(model, seen, out)
    return out


def is_linear(module: torch.nn.Module) -> bool:
    """Linear and its subclasses (quantised ones too), and GPT-2's Conv1D."""
    return isinstance(module, torch.nn.Linear) or _is_conv1d(module)


def _is_conv1d(module: torch.nn.Module) -> bool:
    try:
        from transformers.pytorch_utils import Conv1D
    except ImportError:
        return False
    return isinstance(module, Conv1D)


def _is_affine(module: Any, args: tuple[Any, ...], output: Any) -> bool:
    """Whether a layer with a forward of its own does what Linear does. Quantised layers are compared elsewhere."""
    stock = type(module).forward is torch.nn.Linear.forward or type(module).__name__ == "Conv1D"
    if stock or not module.weight.is_floating_point() or len(args) != 1 or not isinstance(output, torch.Tensor):
        return stock or not module.weight.is_floating_point()
    x, weight = args[0].double(), module.weight.double()
    expected = x @ weight.T + (0.0 if module.bias is None else module.bias.double())
    rounding = 100 * torch.finfo(output.dtype).eps * float((x.abs() @ weight.abs().T).max())
    return bool((output.double() - expected).abs().max() <= rounding)


def _memory(x: torch.Tensor) -> int:
    try:
        return x.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a tensor without memory of its own
        return 0


def _watch(model: torch.nn.Module, paths: list[str], inputs: Mapping[str, Any]) -> _Seen:
    seen = _Seen()

    def visit(path: str, x: torch.Tensor) -> torch.Tensor:
        earlier = seen.site_of(x)
        if earlier is not None:
            raise ExciseError(
                f"{earlier} and {path} are two sites on the same tensor: fold needs one eraser for each tensor; scrub with "
                f"only one of them",
                code="cannot-fold",
            )
        seen.paused = True
        copy = x.clone()
        seen.paused = False
        seen.sites[_memory(copy)] = path
        seen.alive.append(copy)
        seen.visits[path] = seen.visits.get(path, 0) + 1
        return copy

    def before(path: str) -> Any:
        def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = next((v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)), None)
            seen.stack.append((path, module, 0 if given is None else _memory(given)))
            seen.calls[path] = seen.calls.get(path, 0) + 1

        return hook

    def after(module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        path, _, given = seen.stack.pop()
        site = seen.sites.get(given)
        seen.paused = True
        if site is not None and path in seen.linear.get(site, []) and not _is_affine(module, args, output):
            seen.note(seen.other, site, f"{path}, a {type(module).__name__} that does not compute W x + b")
        seen.paused = False

    with evaluating(model), ExitStack() as stack:
        stack.enter_context(hooked(model, paths, visit))  # first: a layer must be seen with the input that it gets
        for path, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(before(path), with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(after).remove)
        with _Watcher(seen):
            output = model(**inputs)
    for value in tree_leaves(dict(output) if isinstance(output, Mapping) else output):
        site = seen.site_of(value)
        if site is not None:
            seen.note(seen.other, site, "the output of the model itself")
    return seen


class _Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of a pass and notes which of them read a site."""

    def __init__(self, seen: _Seen) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func).removeprefix("aten.").split(".")[0]
        if self.seen.paused or name in SHAPE_ONLY:
            return out
        for value in tree_leaves((args, kwargs)):
            site = self.seen.site_of(value)
            if site is not None:
                self._read(site, name, value, out)
        return out

    def _read(self, site: str, name: str, value: torch.Tensor, out: Any) -> None:
        seen = self.seen
        path, module, given = seen.stack[-1] if seen.stack else ("", None, 0)
        if module is not None and is_linear(module) and given == _memory(value):
            seen.note(seen.linear, site, path)
        elif isinstance(out, torch.Tensor) and seen.site_of(out) == site and not name.endswith("_"):
            pass  # a view
        elif name in COPIES and isinstance(out, torch.Tensor):
            seen.sites[_memory(out)] = site
            seen.alive.append(out)
        else:
            seen.note(seen.other, site, f"{name} in {path or 'the model'}")


def _refuse(seen: _Seen) -> ExciseError:
    lines = []
    for site, others in list(seen.other.items())[:LISTED]:
        linear = seen.linear.get(site, [])
        lines.append(
            f"  {site}: {', '.join(others)}"
            + (f"; and by the linear layers {', '.join(linear)}" if linear else "; by no linear layer")
        )
    more = len(seen.other) - LISTED
    if more > 0:
        lines.append(f"  and {more} other sites")
    parents = dict.fromkeys(
        f"{path.rpartition('.')[0]}:in" for site in seen.other for path in seen.linear.get(site, []) if "." in path
    )
    instead = f" or scrub what the linear layers read (sites={list(parents)[:LISTED]}...)," if parents else ""
    return ExciseError(
        "these sites are not read by linear layers alone, so their edits cannot move into weights:\n"
        + "\n".join(lines)
        + f"\nAn addition is the residual stream, as in post-norm models. Keep the hooks (scrubber.attached),{instead} or put "
        f"the erasers into the model as layers (excise.exporting.graph.insert)",
        code="cannot-fold",
    )


def _check_calls(seen: _Seen, readers: dict[str, list[Reader]]) -> None:
    owner: dict[str, str] = {}
    for reader in (reader for found in readers.values() for reader in found):
        other = owner.setdefault(reader.path, reader.site)
        if other != reader.site or seen.calls[reader.path] > 1:
            raise ExciseError(
                f"{reader.path} runs {seen.calls[reader.path]} times in one forward pass (shared weights): an edit of what it "
                f"reads at {reader.site} would change its other uses; keep the hooks (scrubber.attached)",
                code="shared-weights",
            )


def _check_reached(model: torch.nn.Module, seen: _Seen, readers: dict[str, list[Reader]]) -> None:
    """Layers of the same block that this pass did not come by, as experts to which no token was sent, may read a site too."""
    blocks = {_block(reader.path): reader for found in readers.values() for reader in found}
    for path, module in model.named_modules():
        reader = blocks.get(_block(path))
        if reader is not None and _block(path) and is_linear(module) and path not in seen.calls:
            raise ExciseError(
                f"{path} was not called in the traced forward pass, so it is unknown what it reads (an expert to which no token "
                f"was sent?): {reader.site} cannot be folded safely; pass batch= with tokens that reach every layer, or keep "
                f"the hooks (scrubber.attached)",
                code="not-reached",
            )


def _block(path: str) -> str:
    """model.layers.3.mlp.up_proj -> model.layers.3: everything up to the first number."""
    parts = path.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    return "" if number is None else ".".join(parts[: number + 1])
