"""Layout: the blocks of a model and its sites, in the order in which they are fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from excise.errors import ExciseError
from excise.scrubbing.addresses import address
from excise.scrubbing.order import levels_of
from excise.scrubbing.readers import Readers, Target
from excise.scrubbing.sides import Sides
from excise.scrubbing.trace import Call, Trace

__all__ = ["Group", "Layout", "Repeated", "lay_out"]


@dataclass(frozen=True)
class Group:
    """Sites that lie in one block, in levels: those of a level do not depend on each other, only on earlier levels."""

    block: (
        int  # -1: before the first block; the number of blocks: after the last. What runs between two is in the second
    )
    levels: tuple[tuple[str, ...], ...]
    tail: str | None = None  # the site, if any, whose tensor is the output of the block itself
    finished: tuple[tuple[str, ...], ...] = ()  # by level: modules of the block that are done before its first site

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for level in self.levels for path in level)


@dataclass(frozen=True)
class Repeated:
    """A module that runs several times in one forward pass."""

    times: int
    within: str  # the path of the innermost module around all of these calls that runs once


@dataclass(frozen=True)
class Layout:
    """The blocks of a model, and the sites in the order in which they are fitted."""

    blocks: tuple[str, ...]
    groups: tuple[Group, ...]
    chained: bool  # each block reads what the block before it gave out, and nothing else happens in between
    parts: tuple[int | None, ...]  # by block: length of its tuple of outputs, None for a tensor
    width: int
    dtype: torch.dtype
    stacks: tuple[int, ...] = ()  # by block: number of the module list that it is in
    sides: Mapping[str, str] = field(default_factory=dict)  # by site: which labels are its own
    rows: int | None = (
        None  # vectors of an example that enter the blocks, where the model makes them of pixels or samples
    )
    extra: str | None = None  # where vectors without labels stand: "front", "back", or None
    repeated: Mapping[str, Repeated] = field(default_factory=dict)  # by path: modules that run several times
    skipped: tuple[Mapping[str, int], ...] = ()  # by block: calls of repeated modules inside it
    moments: Mapping[str, int] = field(default_factory=dict)  # by site: its place in the order of all events of a pass
    block_of: Mapping[str, int] = field(default_factory=dict)  # by site: the block that it is in, if it is in one
    inside: Mapping[str, frozenset[str]] = field(
        default_factory=dict
    )  # by module of `Group.finished`: sites in its call
    time_first: frozenset[str] = frozenset()  # sites with vectors in the order (T, B), not (B, T)
    targets: tuple[Target, ...] = ()  # what the matrices of the model receive
    inputs: Mapping[str, Any] = field(default_factory=dict)  # the traced sample

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for group in self.groups for path in group.paths)


def lay_out(
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    seen: Trace,
    stacks: list[list[Call]],
    readers: Readers,
    sides: Sides,
    chosen: list[str],
) -> Layout:
    """The layout of the chosen sites."""
    blocks = sorted((block for stack in stacks for block in stack), key=lambda block: block.began)
    ordered = sorted(chosen, key=lambda path: _moment(seen, path))
    by_block: dict[int, list[str]] = {}
    for path in ordered:
        by_block.setdefault(_block_of(seen, blocks, path), []).append(path)
    groups = []
    for (number, paths), levels in zip(
        by_block.items(), levels_of(model, inputs, list(by_block.values())), strict=True
    ):
        inside = 0 <= number < len(blocks) and levels[-1] == (paths[-1],)
        tail = _tail(seen, blocks[number], paths[-1]) if inside else None
        finished = [_finished(seen, blocks[number], level) if 0 <= number < len(blocks) else () for level in levels]
        groups.append(Group(number, levels, tail, tuple(finished)))
    first = blocks[0]
    if first.shape_in is None or first.dtype is None:
        raise ExciseError(f"{first.path} gives out no hidden states")
    stack_of = {block: number for number, stack in enumerate(stacks) for block in stack}
    repeated = _repeated(seen)
    numbers = {block: number for number, block in enumerate(blocks)}
    labelled = next((stack for stack in stacks if sides.of(stack[0].hidden) == "concept"), None)
    return Layout(
        blocks=tuple(block.address for block in blocks),
        groups=tuple(groups),
        chained=all(_follows(a, b) for stack in stacks for a, b in pairwise(stack)) and _in_turn(stacks),
        parts=tuple(block.parts for block in blocks),
        width=first.shape_in[-1],
        dtype=first.dtype,
        stacks=tuple(stack_of[block] for block in blocks),
        sides={path: sides.of(_value(seen, path)) or "concept" for path in ordered},
        rows=None if sides.is_text or labelled is None else sides.rows(labelled[0].address + ":in", labelled[0]),
        extra=None if labelled is None else sides.extra_rows(labelled[0]),
        repeated=repeated,
        skipped=tuple(_calls_inside(seen, block, repeated) for block in blocks),
        moments={path: _moment(seen, path) for path in ordered},
        block_of={path: numbers[block] for path in ordered for block in blocks if _is_in(seen, block, path)},
        inside={
            name: frozenset(path for path in ordered if _is_in(seen, call, path))
            for group in groups
            for found in group.finished
            for name in found
            if (call := seen.at(address(name))) is not None
        },
        time_first=frozenset(path for path in ordered if sides.time_first(path, _call(seen, path))),
        targets=readers.targets(
            ordered,
            lambda site, call: sides.of(call.hidden) if sides.labelled(site, call) else None,
            sides.time_first,
            lambda value: sides.of(value) is not None,
        ),
        inputs=inputs,
    )


def _is_in(seen: Trace, block: Call, path: str) -> bool:
    call = seen.at(address(path))
    return call is not None and (call is block or block.contains(call))


def _finished(seen: Trace, block: Call, level: tuple[str, ...]) -> tuple[str, ...]:
    """The outermost modules of a block with matrices in them that are done before a level of sites begins.

    Once that level was looked at, they need not be run again.
    """
    horizon = min(_moment(seen, path) for path in level)
    out: list[str] = []

    def look(around: Call) -> None:
        for call in (call for call in seen.within(around) if call.parent is around):
            inner = [call, *seen.within(call)]
            if call.ended < horizon:
                if any(part.projects for part in inner) and all(len(seen.by_path[part.path]) == 1 for part in inner):
                    out.append(call.address)
            elif call.began < horizon:
                look(call)

    look(block)
    return tuple(out)


def _call(seen: Trace, path: str) -> Call:
    call = seen.at(address(path))
    if call is None:
        raise ExciseError(f"{path} does not run in a forward pass")
    return call


def _value(seen: Trace, path: str) -> Any:
    call = _call(seen, path)
    return call.hidden if address(path).inside else call.output


def _follows(a: Call, b: Call) -> bool:
    """Whether a block reads what another gave out."""
    return a.output is not None and b.hidden is not None and a.output.origin is b.hidden.origin


def _in_turn(stacks: list[list[Call]]) -> bool:
    """Whether each stack ends before the next begins."""
    return all(a[-1].ended < b[0].began for a, b in pairwise(stacks))


def _moment(seen: Trace, path: str) -> int:
    call = _call(seen, path)
    return call.began if address(path).inside else call.ended


def _block_of(seen: Trace, blocks: list[Call], path: str) -> int:
    moment = _moment(seen, path)
    for number, block in enumerate(blocks):
        if moment < block.began and number == 0:
            return -1
        if moment <= block.ended:
            return number
    return len(blocks)


def _tail(seen: Trace, block: Call, path: str) -> str | None:
    """The last site of a block, where nothing happens between it and the output of the block."""
    call = seen.at(address(path))
    if address(path).inside or call is None or call.output is None or block.output is None:
        return None
    return path if call.output.origin is block.output.origin else None


def _repeated(seen: Trace) -> dict[str, Repeated]:
    out = {}
    for path, calls in seen.by_path.items():
        if len(calls) < 2:
            continue
        around = calls[0].parent
        while around is not None and not (
            len(seen.by_path[around.path]) == 1 and all(around.contains(call) for call in calls)
        ):
            around = around.parent
        out[path] = Repeated(len(calls), "" if around is None else around.path)
    return out


def _calls_inside(seen: Trace, block: Call, repeated: Mapping[str, Repeated]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for call in seen.within(block):
        if call.path in repeated:
            counts[call.path] = counts.get(call.path, 0) + 1
    return counts
