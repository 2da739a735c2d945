"""Stubs: modules that, for the time of a pass, hand out what is in the cache instead of computing it.

The model's own forward runs around them, so it makes masks and positions itself. What a block hands on besides hidden
states (position biases, states that are shared between layers) may be lost: `find_carried` runs the model with and
without stubs on a few tokens, before any work, and compares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from excise.scrubbing.addresses import address
from excise.scrubbing.cache import Cache
from excise.scrubbing.capture import Stop, Visits, evaluating, first_tensor, module_of, run
from excise.scrubbing.inputs import sample_of
from excise.scrubbing.layout import Layout

__all__ = ["Carried", "find_carried", "replaced", "watched"]

PROBE = (2, 23, 19)  # sequences, tokens, tokens of a decoder: unlike each other and unlike most widths


@dataclass(frozen=True)
class Carried:
    """What has to be kept of a block, so that the next one runs as if nothing had been left out."""

    possible: bool = True  # False: blocks hand on something that cannot be kept
    whole: bool = False  # all tensors that a block gives out, not only the hidden states
    sublayers: frozenset[tuple[str, ...]] = frozenset()  # modules inside blocks that can be replaced too, by level
    shapes: tuple[tuple[tuple[int, ...], int], ...] = ()  # of what is kept of a batch of PROBE, and bytes per number

    def size(self, B: int, T: int) -> int:
        """Bytes that are kept of a batch of B examples with T vectors each."""
        longer = {PROBE[0]: B, PROBE[1]: T, PROBE[2]: T}
        return sum(item * math.prod(longer.get(n, n) for n in shape) for shape, item in self.shapes)


@contextmanager
def replaced(
    model: torch.nn.Module,
    outputs: Mapping[str, Callable[[], Any]],
    visits: Sequence[Visits],
    skipped: Mapping[str, Mapping[str, int]],
) -> Iterator[None]:
    """Modules that return an output, whatever they are given.

    Args:
        model: the model.
        outputs: by address: the output of a module at one of its visits. Other visits run as ever.
        visits: the counts of this pass; calls inside a module that is left out are added to them.
        skipped: by address: these calls, for modules that run several times.
    """
    by_path: dict[str, dict[int, Callable[[], Any]]] = {}
    for site, output in outputs.items():
        by_path.setdefault(address(site).path, {})[address(site).visit] = output
    with ExitStack() as stack:
        for path, by_visit in by_path.items():
            stack.enter_context(_replaced(module_of(model, path), path, by_visit, visits, skipped))
        yield


@contextmanager
def _replaced(
    module: torch.nn.Module,
    path: str,
    outputs: Mapping[int, Callable[[], Any]],
    visits: Sequence[Visits],
    skipped: Mapping[str, Mapping[str, int]],
) -> Iterator[None]:
    own = module.__dict__.get("forward")
    whole = module.forward
    calls = [0]

    def forward(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] not in outputs:
            return whole(*args, **kwargs)
        name = path if calls[0] == 1 else f"{path}@{calls[0]}"
        for count in visits:
            count.skip(skipped.get(name, {}))
        return outputs[calls[0]]()

    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if own is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = own


@contextmanager
def watched(model: torch.nn.Module, sites: Iterable[str], see: Callable[[str, Any], None]) -> Iterator[None]:
    """Call `see(address, output)` with the whole output of modules. Its hooks come after those of the sites."""
    wanted = set(sites)
    with ExitStack() as stack:
        for path in dict.fromkeys(address(site).path for site in wanted):
            calls = [0]

            def after(_: Any, args: Any, output: Any, path: str = path, calls: list[int] = calls) -> None:
                calls[0] += 1
                name = path if calls[0] == 1 else f"{path}@{calls[0]}"
                if name in wanted:
                    see(name, output)

            stack.callback(module_of(model, path).register_forward_hook(after).remove)
        yield


def find_carried(model: torch.nn.Module, layout: Layout, inputs: Mapping[str, Any]) -> Carried:
    """Try each block of the model alone, behind stubs, and compare with the whole model.

    Hidden states alone are tried first, then everything that blocks give out. A block that still gives out something
    else, or fails, cannot be run behind stubs.
    """
    if not layout.chained:
        return Carried(possible=False)
    sample = sample_of(inputs, PROBE, padded=True)
    seen: dict[str, Any] = {}
    inner = {name for group in layout.groups for found in group.finished for name in found}
    with evaluating(model):
        with watched(model, [*layout.blocks, *inner], seen.__setitem__):
            run(model, sample)
        for whole in (False, True):
            trial = _Trial(model, layout, sample, seen, whole)
            if not all(trial.agrees(number, ()) for number in range(1, len(layout.blocks))):
                continue
            levels = [(group.block, found) for group in layout.groups for found in group.finished if found]
            sublayers = {found for block, found in levels if trial.agrees(block, found)}
            return Carried(True, whole, frozenset(sublayers), trial.shapes(bool(sublayers)))
    return Carried(possible=False)


class _Trial:
    """One way of replacing blocks by what they gave out in the whole pass."""

    def __init__(
        self, model: torch.nn.Module, layout: Layout, sample: Mapping[str, Any], seen: Mapping[str, Any], whole: bool
    ) -> None:
        self.model, self.layout, self.sample, self.seen, self.whole = model, layout, sample, seen, whole

    def agrees(self, number: int, sublayers: Sequence[str]) -> bool:
        """Whether a block gives out the same behind stubs; with `sublayers`, with these inside it replaced too."""
        with Cache("gpu", whole=self.whole) as cache:
            stubs: dict[str, Callable[[], Any]] = {}
            for stack, last in last_blocks(self.layout, number).items():
                cache.write(stack, self.seen[last])
                for block in self.layout.blocks[:number]:
                    if self.layout.stacks[self.layout.blocks.index(block)] == stack:
                        stubs[block] = lambda stack=stack: cache.read(stack, self._device(stack))  # type: ignore[misc]
            for name in sublayers:
                cache.write(name, self.seen[name])
                stubs[name] = lambda name=name: cache.read(name, self._device(name))  # type: ignore[misc]
            found = self._output(self.layout.blocks[number], stubs)
        expected = self._kept(self.seen[self.layout.blocks[number]])
        return len(found) == len(expected) and all(same(a, b) for a, b in zip(found, expected, strict=True))

    def _kept(self, output: Any) -> list[torch.Tensor]:
        hidden = first_tensor(output)
        return [x for x in tree_leaves(output) if isinstance(x, torch.Tensor) and (self.whole or x is hidden)]

    def _device(self, key: Any) -> torch.device:
        name = key if isinstance(key, str) else last_blocks(self.layout, len(self.layout.blocks))[key]
        x = first_tensor(self.seen[name])
        return torch.device("cpu") if x is None else x.device

    def _output(self, block: str, stubs: Mapping[str, Callable[[], Any]]) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []

        def see(_: str, output: Any) -> None:
            found.extend(self._kept(output))
            raise Stop

        skipped = dict(zip(self.layout.blocks, self.layout.skipped, strict=True))
        try:
            with replaced(self.model, stubs, (), skipped), watched(self.model, [block], see):
                run(self.model, self.sample)
        except Exception:  # whatever a model does when a part of what it expects is missing
            return []
        return found

    def shapes(self, sublayers: bool) -> tuple[tuple[tuple[int, ...], int], ...]:
        """Of the most that is kept at a time; the output of a sublayer is taken to be as large as that of a block."""
        kept = {stack: self._kept(self.seen[last]) for stack, last in last_blocks(self.layout, 10**9).items()}
        found = [(tuple(x.shape), x.element_size()) for tensors in kept.values() for x in tensors]
        return tuple(found * (2 if sublayers else 1))


def last_blocks(layout: Layout, number: int) -> dict[int, str]:
    """By stack: the last of its blocks before the block of this number."""
    return {layout.stacks[i]: layout.blocks[i] for i in range(min(number, len(layout.blocks)))}


def same(a: torch.Tensor, b: torch.Tensor | None) -> bool:
    """Whether two tensors are equal up to the order of a few sums."""
    if b is None or a.shape != b.shape:
        return False
    dtype = b.dtype if b.is_floating_point() else torch.float64
    a, b = a.double().nan_to_num(), b.double().nan_to_num()
    if not b.numel():
        return True
    size = float(b.abs().max())
    return bool((a - b).abs().max() <= max(16 * torch.finfo(dtype).eps, 1e-9) * size)
