"""One traced forward pass: the calls of all modules, what each was given and gave out, and how that was computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from excise.scrubbing.addresses import Address
from excise.scrubbing.capture import evaluating, first_tensor, hidden_slot, run
from excise.scrubbing.flow import Flow, Read, Value, Watch
from excise.scrubbing.inputs import sample_of

__all__ = ["Call", "Trace", "sample_of", "trace"]

CONSTANT_INPUTS = ("mask", "position", "type_ids", "bbox")  # they say where tokens stand, not what they are


@dataclass(eq=False)
class Call:
    """One call of one module."""

    number: int
    path: str
    module: torch.nn.Module
    visit: int  # the how-manieth call of this module
    parent: Call | None
    began: int  # place in the order of all beginnings and ends
    arguments: set[Value]
    hidden: Value | None  # the tensor in the argument where hidden states stand
    shape_in: tuple[int, ...] | None
    ended: int = -1
    output: Value | None = None
    shape_out: tuple[int, ...] | None = None
    parts: int | None = None  # length of a tuple of outputs; None for a plain tensor
    dtype: torch.dtype | None = None
    reads: list[Read] = field(default_factory=list)  # products with weights in this call, not in calls inside it

    @property
    def address(self) -> str:
        return str(Address(self.path, self.visit))

    @property
    def projects(self) -> bool:
        """Whether the module itself multiplies what it was given by a matrix: Linear and its likes."""
        return bool(self.reads)

    @property
    def normalises(self) -> bool:
        """Whether the module is a norm: no matrix, shape kept; vectors of weights of its own, or its class says so."""
        if self.shape_in is None or self.shape_in != self.shape_out or self.reads:
            return False
        own = next(self.module.parameters(recurse=False), None)
        if any(p.ndim > 1 for p in self.module.parameters()):
            return False
        return own is not None or "norm" in type(self.module).__name__.lower()

    def contains(self, other: Call) -> bool:
        """Whether the other call happened inside this one."""
        return self.began < other.began and other.ended < self.ended


@dataclass
class Trace:
    """All calls of a pass, in the order in which they began."""

    flow: Flow
    calls: list[Call] = field(default_factory=list)
    by_path: dict[str, list[Call]] = field(default_factory=dict)

    def under(self, path: str) -> Iterator[Call]:
        """Calls of modules inside `path`."""
        return (call for call in self.calls if call.path.startswith(path + "."))

    def within(self, call: Call) -> Iterator[Call]:
        """Calls that happened inside a call, wherever their modules are registered."""
        return (other for other in self.calls[call.number + 1 :] if call.contains(other))

    def at(self, site: Address) -> Call | None:
        """The call that a site means."""
        calls = self.by_path.get(site.path, [])
        return calls[site.visit - 1] if len(calls) >= site.visit else None

    def makers(self, value: Value) -> Call | None:
        """The innermost call that first gave out a value, if it was not handed in."""
        return self._makers.get(value.origin)

    def __post_init__(self) -> None:
        self._makers: dict[Value, Call] = {}

    def note_maker(self, value: Value, call: Call) -> None:
        if value.origin not in {argument.origin for argument in call.arguments}:
            self._makers.setdefault(value.origin, call)


def trace(model: torch.nn.Module, inputs: Mapping[str, Any]) -> Trace:
    """Run the model once on a few tokens and look on."""
    out = Trace(Flow([*model.parameters(), *model.buffers()]))
    flow = out.flow
    open_calls: list[Call] = []
    ticks = [0]

    def tick() -> int:
        ticks[0] += 1
        return ticks[0]

    def before(path: str) -> Any:
        def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            slot = hidden_slot(args, kwargs)
            hidden = None if slot is None else (args[slot] if isinstance(slot, int) else kwargs[slot])
            values = {v for x in tree_leaves((args, kwargs)) if (v := _float_value(flow, x)) is not None}
            shape = None if hidden is None else tuple(hidden.shape)
            visit = len(out.by_path.get(path, ())) + 1
            parent = open_calls[-1] if open_calls else None
            call = Call(len(out.calls), path, module, visit, parent, tick(), values, flow.value(hidden), shape)
            open_calls.append(call)
            out.calls.append(call)
            out.by_path.setdefault(path, []).append(call)

        return hook

    def after(module: torch.nn.Module, args: Any, output: Any) -> None:
        call = open_calls.pop()
        call.ended = tick()
        call.parts = len(output) if isinstance(output, (tuple, list)) else None
        x = first_tensor(output)
        if x is not None:
            call.output, call.shape_out, call.dtype = flow.value(x), tuple(x.shape), x.dtype
        for value in output if isinstance(output, (tuple, list)) else (output,):
            made = _float_value(flow, value)
            if made is not None:
                out.note_maker(made, call)

    with evaluating(model), ExitStack() as stack:
        for path, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(before(path), with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(after).remove)
        for name, value in inputs.items():
            if not any(word in name for word in CONSTANT_INPUTS):
                flow.give(value, name)
        flow.clock, flow.open_call = tick, lambda: open_calls[-1].number if open_calls else -1
        with Watch(flow):
            run(model, inputs)
    for read in flow.reads:
        if read.call >= 0:
            out.calls[read.call].reads.append(read)
    return out


def _float_value(flow: Flow, x: Any) -> Value | None:
    return flow.value(x) if isinstance(x, torch.Tensor) and x.is_floating_point() and x.numel() else None
