"""Passes over the data through a part of a model, by the model's own forward.

The blocks before the wanted one are replaced for the time of a pass by stubs that hand over the cached hidden states:
so the model itself makes masks and positions for the block, and only what is needed of it is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache as once
from typing import Any

import torch

from excise.erasers.protocol import Eraser
from excise.scrubbing.batches import BatchLabels, Data
from excise.scrubbing.cache import Cache
from excise.scrubbing.capture import Stop, Visits, first_tensor, hooked, model_inputs, module_of, run, with_first
from excise.scrubbing.coverage import Look
from excise.scrubbing.edits import apply_eraser, edit_of, placed_at
from excise.scrubbing.labels import Labels
from excise.scrubbing.layout import Group, Layout
from excise.scrubbing.stubs import Carried, last_blocks, replaced, watched

__all__ = ["Passes"]

Add = Callable[[str, torch.Tensor, Labels], None]


class Passes:
    """Where the cached states stand, and how to go on from there.

    `start` is the first block that a pass has to run: the cache holds the output of the block before it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        data: Data,
        layout: Layout,
        cache: Cache,
        carried: Carried,
        look: Look | None,
        tick: Callable[[int], Any],
        everywhere: bool = True,
    ) -> None:
        self.model, self.data, self.layout, self.cache, self.look, self.tick = model, data, layout, cache, look, tick
        self.everywhere = everywhere  # False: only vectors with a label are changed
        self.start = 0
        self.sublayers = carried.sublayers if cache.mode != "none" else frozenset()
        self._done: list[str] = []  # sublayers of the block `start` whose outputs are in the cache
        self._edits: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
        self._tail: str | None = None  # the cache holds this site's tensor before its erasure

    def gather(self, group: Group, number_of_level: int, erasers: dict[str, Eraser], add: Add) -> None:
        """Give `add` the activations of every batch at the sites of one level, with earlier erasers at work."""
        level = group.levels[number_of_level]
        waiting, erasers = set(level), self._at_work(erasers)
        keep = self.cached and group.tail in waiting and group.block + 1 < len(self.layout.blocks)
        horizon = min(self.layout.moments[path] for path in level)
        new = [] if keep else self._new_sublayers(group, number_of_level)
        fresh = [name for name in new if name not in self._done]
        for number, inputs, labels in self._batches():
            missing = set(waiting)

            def visit(path: str, x: torch.Tensor, labels: Any = labels, missing: set[str] = missing) -> Any:
                if path not in waiting:
                    return self._erase(erasers[path], path, x, labels)
                add(path, self._batch_first(path, x), self._labels(path, x, labels))
                missing.discard(path)
                if not missing and not keep:
                    raise Stop
                return None

            with self._pass(number, labels, [*erasers, *level], visit, horizon):
                self._run(number, inputs, [self.layout.blocks[group.block]] if keep else [], fresh)
        self._passed(horizon)
        self._replace(new)
        if keep:
            self._move(group.block + 1)
            self._tail = group.tail

    def advance(self, block: int, erasers: dict[str, Eraser], horizon: float) -> None:
        """Bring the cache to the output of the block before `block`, erased. `horizon`: when the next site comes."""
        if not self.cached or block <= 0:
            return
        if self._tail is not None:
            self._erase_tail(self._tail, erasers)
        if block <= self.start:
            return
        at_work = self._at_work(erasers)
        stores = [name for stack, name in last_blocks(self.layout, block).items() if self._is_new(stack, name)]
        for number, inputs, labels in self._batches():

            def visit(path: str, x: torch.Tensor, labels: Any = labels) -> torch.Tensor:
                return self._erase(at_work[path], path, x, labels)

            with self._pass(number, labels, list(at_work), visit, horizon):
                self._run(number, inputs, stores, [])
        self._passed(horizon)
        self._move(block)

    def finish(self, erasers: dict[str, Eraser]) -> None:
        """Run what is left of the model, with all erasers at work, for the readers that were not yet looked at."""
        if self.look is None or not self.look.pending:
            return
        if self._tail is not None:
            self._erase_tail(self._tail, erasers)
        at_work = self._at_work(erasers)
        for number, inputs, labels in self._batches():

            def visit(path: str, x: torch.Tensor, labels: Any = labels) -> torch.Tensor:
                return self._erase(at_work[path], path, x, labels)

            with self._pass(number, labels, list(at_work), visit, float("inf"), last=True):
                run(self.model, inputs)
        self._passed(float("inf"))

    @property
    def cached(self) -> bool:
        return self.cache.mode != "none"

    def _is_new(self, stack: int, name: str) -> bool:
        """Whether the last block of a stack is not the one whose output is in the cache."""
        return last_blocks(self.layout, self.start).get(stack) != name

    def _new_sublayers(self, group: Group, level: int) -> list[str]:
        """Sublayers that this pass will run in their final state, and later passes of the block need not."""
        found = group.finished[level] if group.finished and group.block == self.start else ()
        return list(found) if found in self.sublayers else []

    def _replace(self, sublayers: list[str]) -> None:
        """Sublayers from now on in place of those inside them."""
        if not sublayers:
            return
        for name in self._done:
            if name not in sublayers:
                self._forget(name)
        self._done = sublayers

    def _forget(self, name: str) -> None:
        for number in range(len(self.data.sizes)):
            self.cache.drop((number, name))

    def _move(self, start: int) -> None:
        for name in self._done:
            self._forget(name)
        self.start, self._done = start, []

    def _batches(self) -> Iterator[tuple[int, dict[str, Any], dict[str, BatchLabels]]]:
        for number, batch, labels in self.data:
            yield number, model_inputs(self.model, batch), labels
            self.tick(self.data.sizes[number][0] * self.data.sizes[number][1])

    def _labels(self, path: str, x: torch.Tensor, labels: dict[str, BatchLabels]) -> Labels:
        own = labels[self.layout.sides[path]]
        return own.at(x.shape[:-1].numel() // own.examples, self.layout.extra)

    def _erase(self, eraser: Eraser, path: str, x: torch.Tensor, labels: dict[str, BatchLabels]) -> torch.Tensor:
        if not eraser.needs_labels and self.everywhere:
            if path not in self._edits:
                self._edits[path] = edit_of(eraser, path)
            return self._edits[path](x)
        return apply_eraser(eraser, path, x, self._labels(path, x, labels), path in self.layout.time_first)

    def _batch_first(self, path: str, x: torch.Tensor) -> torch.Tensor:
        """Vectors in the order of the labels, (B, T)."""
        return x.transpose(0, 1) if path in self.layout.time_first else x

    def _erase_tail(self, path: str, erasers: dict[str, Eraser]) -> None:
        """The output of the last block was kept when its last site was looked at: now that site's eraser is known."""
        eraser = placed_at(erasers[path], module_of(self.model, path), self.model)
        stack = self.layout.stacks[self.start - 1]
        for number, _, labels in self.data:
            output = self.cache.read((number, stack), self._device(self.layout.blocks[self.start - 1]))
            x = first_tensor(output)
            assert x is not None
            self.cache.write((number, stack), with_first(output, self._erase(eraser, path, x, labels)))
        self._tail = None

    def _at_work(self, erasers: dict[str, Eraser]) -> dict[str, Eraser]:
        """The erasers in what a pass really runs, on their devices."""
        return {
            path: placed_at(eraser, module_of(self.model, path), self.model)
            for path, eraser in erasers.items()
            if self.layout.block_of.get(path, len(self.layout.blocks)) >= self.start and not self._is_done(path)
        }

    def _is_done(self, path: str) -> bool:
        return any(path in self.layout.inside[name] for name in self._done)

    def _device(self, path: str) -> torch.device:
        return next((p.device for p in module_of(self.model, path).parameters()), torch.device("cpu"))

    @contextmanager
    def _pass(
        self, number: int, labels: Any, sites: Collection[str], visit: Any, horizon: float, last: bool = False
    ) -> Iterator[None]:
        """The model with stubs for what is in the cache, hooks at the sites, and a look at what readers receive."""
        visits, looked = Visits(), Visits()  # two sets of hooks, which count for themselves
        states = {
            stack: once(lambda key=(number, stack), name=name: self.cache.read(key, self._device(name)))
            for stack, name in last_blocks(self.layout, self.start).items()
        }
        stubs: dict[str, Callable[[], Any]] = {
            block: states[stack]
            for block, stack in zip(self.layout.blocks[: self.start], self.layout.stacks, strict=False)
        }
        for name in self._done:
            stubs[name] = lambda key=(number, name), name=name: self.cache.read(key, self._device(name))  # type: ignore[misc]
        skipped = dict(zip(self.layout.blocks, self.layout.skipped, strict=True))
        with ExitStack() as stack_:
            stack_.enter_context(replaced(self.model, stubs, (visits, looked), skipped))
            stack_.enter_context(hooked(self.model, sites, visit, visits))
            if self.look is not None:
                stack_.enter_context(self.look.at(self.model, labels, horizon, looked, last))
            yield

    def _passed(self, horizon: float) -> None:
        if self.look is not None:
            self.look.passed(horizon)

    def _run(self, number: int, inputs: dict[str, Any], blocks: list[str], sublayers: list[str]) -> None:
        """Run up to and with the last of some blocks, and keep their outputs, and those of sublayers on the way."""
        left = set(blocks)

        def see(name: str, output: Any) -> None:
            if name not in left:
                self.cache.write((number, name), output)
                return
            self.cache.write((number, self.layout.stacks[self.layout.blocks.index(name)]), output)
            left.discard(name)
            if not left:
                raise Stop

        with watched(self.model, [*blocks, *sublayers], see):
            run(self.model, inputs)
