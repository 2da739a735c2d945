"""Readers: the products with weight matrices in a traced pass, and the site at which what each one reads is erased.

A reader is *first* if its matrix is the first on some way from the input of its block: it reads the hidden states. The
readers behind it (the output projection of an attention, the second matrix of an MLP) are *inside* a sublayer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from excise.scrubbing.addresses import address
from excise.scrubbing.flow import Read, Value
from excise.scrubbing.trace import Call, Trace

__all__ = ["Reader", "Readers", "Target"]


@dataclass(frozen=True)
class Reader:
    """One product with a matrix."""

    call: Call  # of the module that multiplies
    read: Read
    block: Call | None  # None: before, between or after the blocks
    first: bool
    site: str | None  # where it is erased by default; None: it is inside a sublayer, or there is no such place


@dataclass(frozen=True)
class Target:
    """What a reader receives, as a place to look at."""

    reader: str  # address of the module
    address: str  # where a hook sees the tensor
    key: int  # the same for readers of one tensor
    moment: int
    status: Literal["erased", "missed", "inside", "outside"]
    site: str | None  # where it is erased, or would be
    side: str | None  # its labels; None: it cannot be looked at
    time_first: bool  # its vectors come in the order (T, B)


class Readers:
    """All readers of a traced pass."""

    def __init__(self, seen: Trace, blocks: Iterable[Call]) -> None:
        self.seen, self.blocks = seen, list(blocks)
        self._is_norm: dict[Call, bool] = {}

    @cached_property
    def all(self) -> list[Reader]:
        """In the order in which they read. Each product is in the innermost block around it."""
        out = []
        for call in self.seen.calls:
            block = next((b for b in self.blocks if b is call or b.contains(call)), None)
            for read in call.reads:
                out.append(self._reader(call, read, block))
        return out

    def targets(
        self,
        sites: Iterable[str],
        side_of: Callable[[str, Call], str | None],
        time_first: Callable[[str, Call], bool],
        has_labels: Callable[[Value | None], bool],
    ) -> tuple[Target, ...]:
        """What is to be looked at when these sites are erased.

        `side_of` tells the labels of the input of a call, or None if there is no vector per label; `time_first` whether its
        vectors come in the order (T, B); `has_labels` whether a value belongs to a side that has labels at all.
        """
        places = self._places(sites)
        out: dict[tuple[str, int], Target] = {}
        for reader in self.all:
            call, hidden = reader.call, reader.call.hidden
            seen = hidden is not None and self._only_from(reader.read.value, hidden)
            covering = self._covered_by(reader.read.value, call, places)
            status: Any = (
                "erased" if covering else "missed" if reader.first else "inside" if reader.block else "outside"
            )
            if status == "missed" and not has_labels(reader.read.value):
                status = "outside"  # the other half of an encoder-decoder
            key = hidden.origin.number if seen and hidden is not None else -reader.read.result.number
            place = call.address + ":in"
            side = side_of(place, call) if seen else None
            site = covering or reader.site or (place if seen and reader.first else None)
            target = Target(call.address, place, key, call.began, status, site, side, time_first(place, call))
            out.setdefault((target.reader, target.key), target)
        return tuple(out.values())

    def is_covered(self, site: str, sites: Iterable[str]) -> bool:
        """Whether a site holds an affine function of others, so that nothing is left to erase there."""
        call = self.seen.at(address(site))
        value = None if call is None else call.hidden if address(site).inside else call.output
        if call is None or value is None:
            return False
        return self._covered_by(value, call, self._places(sites)) is not None

    def _places(self, sites: Iterable[str]) -> dict[Value, list[tuple[str, Call | None]]]:
        """By value: the sites that erase it; with the module for which alone, where it is erased on its way in."""
        places: dict[Value, list[tuple[str, Call | None]]] = {}
        for name in sites:
            call = self.seen.at(address(name))
            value = None if call is None else call.hidden if address(name).inside else call.output
            if value is not None:
                places.setdefault(value.origin, []).append((name, call if address(name).inside else None))
        return places

    @staticmethod
    def _covered_by(value: Value, reader: Call, places: Mapping[Value, list[tuple[str, Call | None]]]) -> str | None:
        """The last site of whose erased values a value is an affine function, if it is one of nothing else."""

        def site_of(v: Value) -> str | None:
            for name, module in places.get(v.origin, ()):
                if module is None or module is reader or module.contains(reader):
                    return name
            return None

        def on_the_way(v: Value) -> bool:
            return site_of(v) is None and (_is_linear(v) or v.how == "matrix")

        ends = [v for v in value.ancestors(on_the_way) if not on_the_way(v)]
        found = [(v.origin.number, site_of(v)) for v in ends]
        if not found or any(name is None for _, name in found):
            return None
        return max(found, key=lambda item: item[0])[1]

    def _reader(self, call: Call, read: Read, block: Call | None) -> Reader:
        if block is None:
            return Reader(call, read, None, False, None)
        norms, others = self._linear_in(read.value)
        if len(norms) == 1 and not others:
            (norm,) = norms
            if self._inside_sublayer(block, norm, call):
                return Reader(call, read, block, False, None)
            return Reader(call, read, block, True, norm.address)
        if not any(read.value.reaches(start, _no_matrix) for start in block.arguments):
            return Reader(call, read, block, False, None)
        return Reader(call, read, block, True, self._input_of_sublayer(block, call, read.value))

    def _linear_in(self, value: Value) -> tuple[set[Call], bool]:
        """The norms of whose outputs a value is a linear function, and whether it is one of anything else too."""
        norms: set[Call] = set()
        others = False
        for ancestor in value.ancestors(lambda v: _is_linear(v) and self._norm(v) is None):
            norm = self._norm(ancestor)
            if norm is not None:
                norms.add(norm)
            elif not _is_linear(ancestor):
                others = True
        return norms, others

    def _norm(self, value: Value) -> Call | None:
        """The call of a norm that made a value."""
        maker = self.seen.makers(value)
        if maker is None or maker.output is None or maker.output.origin is not value.origin:
            return None
        if maker not in self._is_norm:
            self._is_norm[maker] = _normalises(maker)
        return maker if self._is_norm[maker] else None

    def _inside_sublayer(self, block: Call, norm: Call, reader: Call) -> bool:
        """Whether a norm stands between the matrices of one sublayer, as those on latents and before output projections."""
        if not block.contains(norm):
            return False
        for around in self.seen.within(block):
            if not (around.contains(norm) and (around is reader or around.contains(reader))):
                continue
            before = any(read.moment < norm.began for inner in self._calls_in(around) for read in inner.reads)
            if not before or norm.hidden is None:
                continue
            if any(norm.hidden.reaches(start, _no_matrix) for start in around.arguments):
                continue  # a residual stream runs through it
            if not self._in_sublayer_of_its_own(around, norm, reader, block):
                return True
        return False

    def _in_sublayer_of_its_own(self, around: Call, norm: Call, reader: Call, block: Call) -> bool:
        """Whether the reader is in another sublayer than what came before the norm: an MLP after an attention."""
        child = reader
        while child.parent is not None and child.parent is not around:
            child = child.parent
        if child.contains(norm) or norm.shape_out is None or block.shape_in is None:
            return False
        matrices = {inner.path for inner in self._calls_in(child) if inner.projects}
        return len(matrices) >= 2 and norm.shape_out[-1] == block.shape_in[-1]

    def _calls_in(self, call: Call) -> list[Call]:
        return [call, *self.seen.within(call)]

    def _input_of_sublayer(self, block: Call, reader: Call, value: Value) -> str | None:
        """Where a tensor that no norm made is erased: at the input of the sublayer that reads it.

        That is the outermost module around the reader without a residual stream around its matrices. Where there is none
        for one of several readers, as in attentions that add their input to their output, the module that made the tensor
        is one place for all of them.
        """
        maker = self.seen.makers(value)
        outside = maker is not None and maker not in self.blocks and not block.contains(maker)
        if maker is not None and outside and maker.output is not None and maker.output.origin is value.origin:
            together = [c for c in self._calls_in(block) if any(r.value.origin is value.origin for r in c.reads)]
            if len(together) > 1 and any(self._sublayer(block, call, value) is call for call in together):
                return maker.address
        module = self._sublayer(block, reader, value)
        return None if module is None else module.address + ":in"

    def _sublayer(self, block: Call, reader: Call, value: Value) -> Call | None:
        chain, call = [], reader
        while call is not block and call.parent is not None:
            chain.append(call)
            call = call.parent
        for module in reversed(chain):
            if module.hidden is None or not self._only_from(value, module.hidden):
                continue
            if module is reader or (module.output is not None and not module.output.reaches(module.hidden, _no_matrix)):
                return module
        return None

    @staticmethod
    def _only_from(value: Value, start: Value) -> bool:
        """Whether a value is a linear function of `start` and of nothing else."""
        origin = start.origin

        def on_the_way(v: Value) -> bool:
            return v.origin is not origin and _is_linear(v)

        ends = [v for v in value.ancestors(on_the_way) if not on_the_way(v)]
        return bool(ends) and all(v.origin is origin for v in ends)


def _normalises(call: Call) -> bool:
    if not call.normalises or call.hidden is None or call.output is None:
        return False
    if not call.output.reaches(call.hidden, _is_linear):
        return True
    # A norm by name only: after a projection it is a part of it; on the residual stream it stands where a norm does.
    ends = [value for value in call.hidden.ancestors(_is_linear) if not _is_linear(value)]
    return not (len(ends) == 1 and ends[0].how == "matrix")


def _is_linear(value: Value) -> bool:
    return value.how in ("copy", "linear")


def _no_matrix(value: Value) -> bool:
    return value.how != "matrix"
