"""Sites: where in a model a concept is erased, found by looking at one traced forward pass.

The default is the tensor that each attention and each MLP reads. No code per architecture: a block is an entry of a
module list that the hidden states pass through, a reader is a product with a weight matrix, and a site is the norm whose
output is read (pre-norm and post-norm alike), or the input of the sublayer where no norm makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch

from excise.errors import ExciseError
from excise.scrubbing.addresses import Address, address
from excise.scrubbing.blocks import find_stacks, tree
from excise.scrubbing.inputs import model_inputs, sample_of
from excise.scrubbing.layout import Group, Layout, lay_out
from excise.scrubbing.readers import Readers
from excise.scrubbing.sides import Sides, check_decoder
from excise.scrubbing.trace import Call, Trace, trace
from excise.scrubbing.wrappers import unwrapped

__all__ = ["Group", "Layout", "Sites", "find_sites", "tree"]

Sites = None | str | Sequence[int] | Sequence[str] | Callable[[str, torch.nn.Module], bool]


def find_sites(model: torch.nn.Module, batch: Mapping[str, Any], sites: Sites = None) -> Layout:
    """Blocks and sites of a model, from one forward pass over a few tokens of `batch`.

    Args:
        model: the model; wrappers (torch.compile, PEFT, SentenceTransformer) are looked through.
        batch: what the model's forward takes.
        sites: None for what every attention and MLP reads; "residual" for the output of every block; "embeddings" for
            what enters the first block; numbers of blocks; paths or patterns ("*.mlp", "*.self_attn:in"), one or
            several; or a function of (path, module) that says whether the module's output is a site. A module that runs
            several times in a pass has one site per visit ("path", "path@2", ...); a pattern means all of them.

    Raises:
        ExciseError: no transformer blocks, or sites that cannot be found; the message shows the tree of modules.
    """
    model = unwrapped(model)
    inputs = sample_of(model_inputs(model, batch))
    check_decoder(model, inputs)
    seen = trace(model, inputs)
    stacks = find_stacks(model, seen)
    readers = Readers(seen, [block for stack in stacks for block in stack])
    sides = Sides(model, inputs, batch, [stack[0] for stack in stacks])
    labelled = [stack for stack in stacks if sides.of(stack[0].hidden) is not None] or stacks
    chosen = _chosen(model, seen, labelled, stacks, readers, sides, sites)
    for path in chosen:
        sides.check(path, _at(seen, path))
    return lay_out(model, inputs, seen, stacks, readers, sides, chosen)


def _refuse(model: torch.nn.Module, what: str) -> ExciseError:
    return ExciseError(
        f"{what}. Modules of {type(model).__name__} (numbered ones once):\n{tree(model)}\n"
        f"Name the sites yourself: sites=['path', 'path:in', 'pattern.*.norm'] (outputs; inputs with ':in')"
    )


def _at(seen: Trace, path: str) -> Call:
    call = seen.at(address(path))
    if call is None:
        raise ExciseError(f"{path}: the module runs {len(seen.by_path.get(address(path).path, []))} times in a pass")
    return call


def _chosen(
    model: torch.nn.Module,
    seen: Trace,
    stacks: list[list[Call]],
    everything: list[list[Call]],
    readers: Readers,
    sides: Sides,
    sites: Sites,
) -> list[str]:
    """The sites that are asked for. `stacks`: those with labels, of `everything`."""
    blocks = [block for stack in stacks for block in stack]
    if sites is None:
        return _read_by_sublayers(model, seen, stacks, everything, readers, sides)
    if isinstance(sites, str) and sites == "residual":
        return [block.address for block in blocks]
    if isinstance(sites, str) and sites == "embeddings":
        return [f"{stack[0].address}:in" for stack in stacks]
    if callable(sites):
        chosen = [path for path in seen.by_path if path and sites(path, model.get_submodule(path))]
        if not chosen:
            raise _refuse(model, "the function given as sites= chose no module")
        return [call.address for path in chosen for call in seen.by_path[path]]
    wanted: list[Any] = [sites] if isinstance(sites, str) else list(sites)
    if not wanted:
        raise ExciseError("sites= is empty: pass None for all of them")
    if all(isinstance(item, int) and not isinstance(item, bool) for item in wanted):
        return _in_blocks(seen, blocks, _read_by_sublayers(model, seen, stacks, everything, readers, sides), wanted)
    if not all(isinstance(item, str) for item in wanted):
        raise ExciseError(f"sites must be names, or numbers of blocks, got {wanted!r}")
    out: dict[str, None] = {}
    for pattern in wanted:
        out |= dict.fromkeys(_matching(model, seen, pattern))
    return list(out)


def _matching(model: torch.nn.Module, seen: Trace, pattern: str) -> list[str]:
    """The sites that a name or pattern means: with a visit (`path@2`) that one, else all visits."""
    site = address(pattern)
    one_visit = "@" in pattern
    out = []
    for path, calls in seen.by_path.items():
        if path and fnmatchcase(path, site.path):
            visits = [site.visit] if one_visit else range(1, len(calls) + 1)
            out += [str(Address(path, visit, site.inside)) for visit in visits if visit <= len(calls)]
    if not out:
        raise _refuse(model, f"no module that runs is called {pattern.removesuffix(':in')!r}")
    return out


def _in_blocks(seen: Trace, blocks: list[Call], paths: list[str], numbers: list[int]) -> list[str]:
    count = len(blocks)
    for number in numbers:
        if not -count <= number < count:
            raise ExciseError(f"sites={numbers}: the model has blocks 0 to {count - 1}")
    wanted = [blocks[number] for number in {number % count for number in numbers}]
    return [path for path in paths if any(block.contains(_at(seen, path)) for block in wanted)]


def _read_by_sublayers(
    model: torch.nn.Module,
    seen: Trace,
    stacks: list[list[Call]],
    everything: list[list[Call]],
    readers: Readers,
    sides: Sides,
) -> list[str]:
    """The default: for every matrix that reads hidden states in a block, the site of the tensor that it reads."""
    found: dict[str, None] = {}
    blocks = [block for stack in everything for block in stack]  # a decoder reads the encoder's vectors too
    for reader in readers.all:
        if reader.site is not None and reader.block in blocks and sides.labelled(reader.site, _at(seen, reader.site)):
            found[reader.site] = None
    chosen: list[str] = []
    for path in sorted(
        found, key=lambda path: _at(seen, path).began if address(path).inside else _at(seen, path).ended
    ):
        if not readers.is_covered(path, chosen):  # "norms" without a norm may hold a sum of what is erased already
            chosen.append(path)
    for stack in stacks:
        if not any(_is_in(seen, stack, path) for path in chosen):
            raise _refuse(model, f"cannot tell what the attention and the MLP of {stack[0].path} read")
        chosen = list(dict.fromkeys([*chosen, *_sisters(seen, stack, chosen)]))
    return chosen


def _is_in(seen: Trace, stack: list[Call], path: str) -> bool:
    call = _at(seen, path)
    return any(block is call or block.contains(call) for block in stack) or call.began < stack[-1].ended


def _sisters(seen: Trace, stack: list[Call], paths: list[str]) -> list[str]:
    """The last norm of a post-norm encoder has no attention after it, but it is a sublayer's norm like its sisters."""
    last, out = stack[-1], []
    for path in paths:
        call = _at(seen, path)
        block = next((block for block in stack if block.contains(call)), None)
        if block is None or address(path).inside or not call.normalises:
            continue
        name = last.path + call.path.removeprefix(block.path)
        out += [inner.address for inner in seen.within(last) if inner.path == name and inner.normalises]
    return out
