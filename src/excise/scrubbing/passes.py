"""Passes over the data through a part of a model, by the model's own forward.

The blocks before the wanted one are replaced for the time of a pass by stubs that hand over the cached hidden states:
so the model itself makes masks and positions for the block, and only what is needed of it is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from excise.erasers.protocol import Eraser
from excise.scrubbing.batches import Data, Labels
from excise.scrubbing.cache import Cache
from excise.scrubbing.capture import Stop, first_tensor, hooked, model_inputs, module_of, run
from excise.scrubbing.scrubber import apply_eraser, placed_at
from excise.scrubbing.sites import Group, Layout

__all__ = ["Passes"]


class Passes:
    """Where the cached states stand, and how to go on from there.

    `start` is the first block that a pass has to run: the cache holds the output of the block before it.
    """

    def __init__(
        self, model: torch.nn.Module, data: Data, layout: Layout, cache: Cache, tick: Callable[[int], Any]
    ) -> None:
        self.model, self.data, self.layout, self.cache, self.tick = model, data, layout, cache, tick
        self.start = 0
        self._tail: str | None = None  # the cache holds this site's tensor before its erasure

    def gather(
        self, group: Group, level: Collection[str], erasers: dict[str, Eraser], add: Callable[[str, Any, Labels], None]
    ) -> None:
        """Give `add` the activations of every batch at the sites of one level, with earlier erasers at work."""
        waiting, erasers = set(level), self._at_work(erasers)
        keep = self.cached and group.tail in waiting and group.block + 1 < len(self.layout.blocks)
        for number, inputs, labels in self._batches():
            missing = set(waiting)

            def visit(path: str, x: torch.Tensor, labels: Labels = labels, missing: set[str] = missing) -> Any:
                if path not in waiting:
                    return apply_eraser(erasers[path], path, x, labels)
                add(path, x, labels)
                missing.discard(path)
                if not missing and not keep:
                    raise Stop
                return None

            with self._from(number), hooked(self.model, [*erasers, *level], visit):
                if keep:
                    self._store(number, inputs, group.block)
                else:
                    run(self.model, inputs)
        if keep:
            self.start, self._tail = group.block + 1, group.tail

    def advance(self, block: int, erasers: dict[str, Eraser]) -> None:
        """Bring the cache to the output of the block before `block`, erased."""
        if not self.cached or block <= 0:
            return
        if self._tail is not None:
            self._erase_tail(self._tail, erasers)
        if block <= self.start:
            return
        at_work = self._at_work(erasers)
        for number, inputs, labels in self._batches():

            def visit(path: str, x: torch.Tensor, labels: Labels = labels) -> torch.Tensor:
                return apply_eraser(at_work[path], path, x, labels)

            with self._from(number), hooked(self.model, at_work, visit):
                self._store(number, inputs, block - 1)
        self.start = block

    @property
    def cached(self) -> bool:
        return self.cache.mode != "none"

    def _batches(self) -> Iterator[tuple[int, dict[str, Any], Labels]]:
        for number, batch, labels in self.data:
            yield number, model_inputs(self.model, batch), labels
            self.tick(self.data.sizes[number][0] * self.data.sizes[number][1])

    def _erase_tail(self, path: str, erasers: dict[str, Eraser]) -> None:
        """The output of the last block was kept when its last site was looked at: now that site's eraser is known."""
        eraser = placed_at(erasers[path], module_of(self.model, path), self.model)
        for number, _, labels in self.data:
            x = self.cache.read(number, self._device(self.start - 1))
            self.cache.write(number, apply_eraser(eraser, path, x, labels))
        self._tail = None

    def _at_work(self, erasers: dict[str, Eraser]) -> dict[str, Eraser]:
        """The erasers in the blocks that a pass really runs, on their devices."""
        groups = self.layout.groups
        real = {path for group in groups for path in group.paths if group.block >= self.start or self.start == 0}
        return {
            path: placed_at(eraser, module_of(self.model, path), self.model)
            for path, eraser in erasers.items()
            if path in real
        }

    def _device(self, block: int) -> torch.device:
        module = module_of(self.model, self.layout.blocks[block])
        return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))

    @contextmanager
    def _from(self, number: int) -> Iterator[None]:
        """The model with its blocks before `start` replaced by the cached states of a batch."""
        with ExitStack() as stack:
            if self.start:
                hidden = self.cache.read(number, self._device(self.start - 1))
                for path, parts in zip(self.layout.blocks[: self.start], self.layout.parts, strict=False):
                    output = hidden if parts is None else (hidden, *[None] * (parts - 1))
                    stack.enter_context(_replaced(module_of(self.model, path), output))
            yield

    def _store(self, number: int, inputs: dict[str, Any], block: int) -> None:
        """Run up to and with a block, and keep its output. Its hook comes after those of the sites."""

        def after(_: Any, args: Any, output: Any) -> None:
            x = first_tensor(output)
            assert x is not None
            self.cache.write(number, x)
            raise Stop

        handle = module_of(self.model, self.layout.blocks[block]).register_forward_hook(after)
        try:
            run(self.model, inputs)
        finally:
            handle.remove()


@contextmanager
def _replaced(module: torch.nn.Module, output: Any) -> Iterator[None]:
    """A module that returns `output`, whatever it is given."""
    own = module.__dict__.get("forward")

    def forward(*args: Any, **kwargs: Any) -> Any:
        return output

    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if own is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = own
