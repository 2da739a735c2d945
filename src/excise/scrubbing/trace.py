"""One traced forward pass: which module made a tensor, and which read it.

Tensors are told apart by the memory they live in and by how often it was written to, so views of a tensor are that
tensor and a sum that was formed in place is another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from excise.scrubbing.capture import evaluating, first_tensor, hidden_slot, run, tokens_of

__all__ = ["Call", "Key", "Trace", "sample_of", "trace"]

Key = tuple[int, int, int]
SAMPLE = (1, 16)  # sequences and tokens: who reads what does not depend on how many there are


@dataclass
class Call:
    """One call of one module."""

    path: str
    module: torch.nn.Module
    began: int  # place in the order of all beginnings and ends
    arguments: set[Key]
    hidden: Key | None  # the tensor in the argument where hidden states stand
    shape_in: tuple[int, ...] | None
    ended: int = -1
    output: Key | None = None
    shape_out: tuple[int, ...] | None = None
    parts: int | None = None  # length of a tuple of outputs; None for a plain tensor
    dtype: torch.dtype | None = None

    @property
    def projects(self) -> bool:
        """Whether the module itself holds a matrix and was given numbers: Linear and its likes."""
        own = self.module.parameters(recurse=False)
        return self.hidden is not None and any(p.ndim >= 2 and p.is_floating_point() for p in own)

    @property
    def normalises(self) -> bool:
        """Whether the module is a norm: no children, no matrix, shape kept; vectors of weights, or its class says so."""
        if next(self.module.children(), None) is not None or self.shape_in is None or self.shape_in != self.shape_out:
            return False
        own = list(self.module.parameters(recurse=False))
        return all(p.ndim == 1 for p in own) and (bool(own) or "norm" in type(self.module).__name__.lower())


@dataclass
class Trace:
    """All calls of a pass, in the order in which they began."""

    calls: list[Call] = field(default_factory=list)
    makers: dict[Key, Call] = field(default_factory=dict)  # the innermost module that first gave out a tensor
    by_path: dict[str, list[Call]] = field(default_factory=dict)

    def under(self, path: str) -> Iterator[Call]:
        """Calls of modules inside `path`."""
        return (call for call in self.calls if call.path.startswith(path + "."))


def sample_of(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The first tokens of the first sequences of a batch, none of them masked: what is masked reads nothing."""
    B, T = tokens_of(inputs)

    def cut(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.ndim == 0 or value.shape[0] != B:
            return value
        value = value[: SAMPLE[0]]
        return value[:, : SAMPLE[1]] if value.ndim >= 2 and value.shape[1] == T else value

    out = {name: cut(value) for name, value in inputs.items()}
    if isinstance(out.get("attention_mask"), torch.Tensor):
        out["attention_mask"] = torch.ones_like(out["attention_mask"])
    return out


def trace(model: torch.nn.Module, inputs: Mapping[str, Any]) -> Trace:
    """Run the model once on a few tokens and look on."""
    out = Trace()
    open_calls: list[Call] = []
    alive: list[torch.Tensor] = []  # memory that is given back would be handed out again
    clock = iter(range(2**62))

    def key(x: Any) -> Key | None:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.numel() == 0:
            return None
        alive.append(x)
        return x.data_ptr(), x._version, x.numel()

    def before(path: str) -> Any:
        def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            slot = hidden_slot(args, kwargs)
            hidden = None if slot is None else (args[slot] if isinstance(slot, int) else kwargs[slot])
            keys = {found for value in (*args, *kwargs.values()) if (found := key(value)) is not None}
            shape = None if hidden is None else tuple(hidden.shape)
            call = Call(path, module, next(clock), keys, key(hidden), shape)
            open_calls.append(call)
            out.calls.append(call)
            out.by_path.setdefault(path, []).append(call)

        return hook

    def after(module: torch.nn.Module, args: Any, output: Any) -> None:
        call = open_calls.pop()
        call.ended = next(clock)
        call.parts = len(output) if isinstance(output, (tuple, list)) else None
        x = first_tensor(output)
        if x is not None:
            call.output, call.shape_out, call.dtype = key(x), tuple(x.shape), x.dtype
        for value in output if isinstance(output, (tuple, list)) else (output,):
            made = key(value)
            if made is not None and made not in call.arguments:
                out.makers.setdefault(made, call)

    with evaluating(model), ExitStack() as stack:
        for path, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(before(path), with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(after).remove)
        run(model, inputs)
    return out
