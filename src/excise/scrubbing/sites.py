"""Sites: where in a model a concept is erased, found by looking at one traced forward pass.

The default is the tensor that each attention and each MLP reads. No code per architecture: a block is an entry of the
module list that the hidden states pass through, a reader is a module with a matrix, and a site is the norm whose
output is read (pre-norm and post-norm alike), or the input of the sublayer where no norm makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

import torch

from excise.errors import ExciseError
from excise.scrubbing.capture import model_inputs, tokens_of
from excise.scrubbing.order import levels_of
from excise.scrubbing.trace import Call, Trace, sample_of, trace

__all__ = ["Group", "Layout", "Sites", "find_sites", "tree"]

Sites = None | str | Sequence[int] | Sequence[str] | Callable[[str, torch.nn.Module], bool]


@dataclass(frozen=True)
class Group:
    """Sites that lie in one block, in levels: those of a level do not depend on each other, only on earlier levels."""

    block: int  # -1: before the first block; the number of blocks: after the last
    levels: tuple[tuple[str, ...], ...]
    tail: str | None = None  # the site, if any, whose tensor is the output of the block itself

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for level in self.levels for path in level)


@dataclass(frozen=True)
class Layout:
    """The blocks of a model, and the sites in the order in which they are fitted."""

    blocks: tuple[str, ...]
    groups: tuple[Group, ...]
    chained: bool  # each block reads what the block before it gave out, and nothing else happens in between
    parts: tuple[int | None, ...]  # by block: length of its tuple of outputs, None for a tensor
    width: int
    dtype: torch.dtype

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for group in self.groups for path in group.paths)


def find_sites(model: torch.nn.Module, batch: Mapping[str, Any], sites: Sites = None) -> Layout:
    """Blocks and sites of a model, from one forward pass over a few tokens of `batch`.

    Args:
        sites: None for what every attention and MLP reads; "residual" for the output of every block; "embeddings" for
            what enters the first block; numbers of blocks; paths or patterns ("*.mlp", "*.self_attn:in"), one or
            several; or a function of (path, module) that says whether the module's output is a site.

    Raises:
        ExciseError: no transformer blocks, or sites that cannot be found; the message shows the tree of modules.
    """
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ExciseError(
            f"{type(model).__name__} is an encoder-decoder: only decoder-only and encoder-only models can be scrubbed"
        )
    inputs = sample_of(model_inputs(model, batch))
    seen = trace(model, inputs)
    blocks = _blocks(model, seen)
    chosen = _chosen(model, seen, blocks, sites)
    _check(seen, chosen, tokens_of(inputs))
    ordered = sorted(chosen, key=lambda path: _moment(seen, path))
    by_block: dict[int, list[str]] = {}
    for path in ordered:
        by_block.setdefault(_block_of(seen, blocks, path), []).append(path)
    groups = []
    for (number, paths), levels in zip(
        by_block.items(), levels_of(model, inputs, list(by_block.values())), strict=True
    ):
        inside = 0 <= number < len(blocks) and levels[-1] == (paths[-1],)
        groups.append(Group(number, levels, _tail(seen, blocks[number], paths[-1]) if inside else None))
    calls = [seen.by_path[path][0] for path in blocks]
    first = calls[0]
    assert first.shape_in is not None
    assert first.dtype is not None
    return Layout(
        tuple(blocks),
        tuple(groups),
        all(a.output == b.hidden for a, b in pairwise(calls)),
        tuple(call.parts for call in calls),
        first.shape_in[-1],
        first.dtype,
    )


def tree(model: torch.nn.Module, most: int = 40) -> str:
    """The modules of a model, one of each run of numbered ones."""
    lines = []
    for path, module in model.named_modules():
        if path and not any(part.isdigit() and part != "0" for part in path.split(".")):
            lines.append(f"  {path}: {type(module).__name__}")
    return "\n".join([*lines[:most], *(["  ..."] if len(lines) > most else [])])


def _refuse(model: torch.nn.Module, what: str) -> ExciseError:
    return ExciseError(
        f"{what}. Modules of {type(model).__name__} (numbered ones once):\n{tree(model)}\n"
        f"Name the sites yourself: sites=['path', 'path:in', 'pattern.*.norm'] (outputs; inputs with ':in')"
    )


def _blocks(model: torch.nn.Module, seen: Trace) -> list[str]:
    """Paths of the entries of the module list, outside of all other such lists, that holds most of the parameters."""
    found: dict[str, int] = {}
    for path, module in model.named_modules():
        if not isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) or not len(module):
            continue
        entries = [f"{path}.{i}" if path else str(i) for i in range(len(module))]
        if any(path.startswith(other + ".") for other in found) or not all(_is_block(seen, entry) for entry in entries):
            continue
        found[path] = sum(parameter.numel() for parameter in module.parameters())
    if not found:
        raise ExciseError(
            f"{type(model).__name__} has no transformer blocks that could be found (a ModuleList through which hidden states "
            f"pass, each entry with several projections). Its modules:\n{tree(model)}"
        )
    path = max(found, key=lambda path: found[path])
    blocks = [f"{path}.{i}" if path else str(i) for i in range(len(model.get_submodule(path)))]  # type: ignore[arg-type]
    for block in blocks:
        if len(seen.by_path[block]) > 1:
            raise ExciseError(
                f"{block} runs {len(seen.by_path[block])} times in one forward pass (shared weights): one eraser per module "
                f"cannot serve several layers, so this model cannot be scrubbed"
            )
    return sorted(blocks, key=lambda block: seen.by_path[block][0].began)


def _is_block(seen: Trace, path: str) -> bool:
    calls = seen.by_path.get(path, [])
    if not calls or calls[0].shape_in is None or calls[0].shape_in != calls[0].shape_out:
        return False
    return len({call.path for call in seen.under(path) if call.projects}) >= 2


def _chosen(model: torch.nn.Module, seen: Trace, blocks: list[str], sites: Sites) -> list[str]:
    if sites is None:
        return _read_by_sublayers(model, seen, blocks)
    if isinstance(sites, str) and sites == "residual":
        return list(blocks)
    if isinstance(sites, str) and sites == "embeddings":
        return [f"{blocks[0]}:in"]
    if callable(sites):
        chosen = [path for path in seen.by_path if path and sites(path, model.get_submodule(path))]
        if not chosen:
            raise _refuse(model, "the function given as sites= chose no module")
        return chosen
    wanted: list[Any] = [sites] if isinstance(sites, str) else list(sites)
    if not wanted:
        raise ExciseError("sites= is empty: pass None for all of them")
    if all(isinstance(item, int) and not isinstance(item, bool) for item in wanted):
        return _in_layers(seen, blocks, _read_by_sublayers(model, seen, blocks), wanted)
    if not all(isinstance(item, str) for item in wanted):
        raise ExciseError(f"sites must be names, or numbers of blocks, got {wanted!r}")
    out: dict[str, None] = {}
    for pattern in wanted:
        plain, ending = pattern.removesuffix(":in"), ":in" if pattern.endswith(":in") else ""
        matches = [path + ending for path in seen.by_path if path and fnmatchcase(path, plain)]
        if not matches:
            raise _refuse(model, f"no module that runs is called {plain!r}")
        out |= dict.fromkeys(matches)
    return list(out)


def _in_layers(seen: Trace, blocks: list[str], paths: list[str], numbers: list[int]) -> list[str]:
    count = len(blocks)
    for number in numbers:
        if not -count <= number < count:
            raise ExciseError(f"sites={numbers}: the model has blocks 0 to {count - 1}")
    wanted = {number % count for number in numbers}
    return [path for path in paths if _block_of(seen, blocks, path) in wanted]


def _read_by_sublayers(model: torch.nn.Module, seen: Trace, blocks: list[str]) -> list[str]:
    """The default: for every projection in a block, the site of the tensor that it reads, if it is a hidden state."""
    out: dict[str, None] = {}
    for block in blocks:
        width = seen.by_path[block][0].shape_in[-1]  # type: ignore[index]
        sites = [
            site
            for call in seen.under(block)
            if call.projects and call.shape_in is not None and call.shape_in[-1] == width
            if (site := _site_read_by(seen, block, call)) is not None
        ]
        if not sites:
            raise _refuse(model, f"cannot tell what the attention and the MLP of {block} read")
        out |= dict.fromkeys(sites)
    # The last norm of a post-norm encoder has no attention after it, but it is a sublayer's norm like its sisters.
    for path in list(out):
        block = next((block for block in blocks if path.startswith(block + ".")), blocks[-1])
        sister = blocks[-1] + path.removeprefix(block)
        if any(call.normalises for call in seen.by_path.get(sister, [])):
            out[sister] = None
    return list(out)


def _site_read_by(seen: Trace, block: str, reader: Call) -> str | None:
    tensor = reader.hidden
    assert tensor is not None
    maker = seen.makers.get(tensor)
    if maker is not None and maker.normalises:
        return None if _inside_sublayer(seen, block, maker, reader) else maker.path
    if maker is not None and tensor != seen.by_path[block][0].hidden:
        return None  # made by a module of this block that is no norm: the inside of an attention or an MLP
    sublayer = next((call for call in seen.under(block) if tensor in call.arguments), None)
    if sublayer is None or sublayer is reader or sublayer.hidden != tensor:
        return None
    return sublayer.path + ":in"


def _inside_sublayer(seen: Trace, block: str, norm: Call, reader: Call) -> bool:
    """Whether a norm stands between the projections of one sublayer, as those on latents and before output projections."""
    for call in seen.under(block):
        around = call.began < norm.began and norm.ended < call.ended
        if around and reader.path.startswith(call.path + ".") and reader.began < call.ended:
            return any(inner.projects and inner.began < norm.began for inner in seen.under(call.path))
    return False


def _moment(seen: Trace, path: str) -> int:
    call = seen.by_path[path.removesuffix(":in")][0]
    return call.began if path.endswith(":in") else call.ended


def _block_of(seen: Trace, blocks: list[str], path: str) -> int:
    moment = _moment(seen, path)
    for number, block in enumerate(blocks):
        call = seen.by_path[block][0]
        if moment < call.began:
            if number == 0:
                return -1
            raise ExciseError(f"{path} runs between two blocks: it cannot be a site")
        if moment <= call.ended:
            return number
    return len(blocks)


def _check(seen: Trace, paths: Iterable[str], tokens: tuple[int, int]) -> None:
    for path in paths:
        calls = seen.by_path.get(path.removesuffix(":in"), [])
        if len(calls) != 1:
            raise ExciseError(f"{path} runs {len(calls)} times in one forward pass: a site must run once")
        shape = calls[0].shape_in if path.endswith(":in") else calls[0].shape_out
        if shape is None or len(shape) < 2 or torch.Size(shape[:-1]).numel() != tokens[0] * tokens[1]:
            raise ExciseError(f"{path} holds no vector per token (shape {shape} for {tokens[0]} x {tokens[1]} tokens)")


def _tail(seen: Trace, block: str, path: str) -> str | None:
    """The last site of a block, where nothing happens between it and the output of the block."""
    if path.endswith(":in"):
        return None
    return path if seen.by_path[path][0].output == seen.by_path[block][0].output else None
