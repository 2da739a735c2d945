"""Blocks: the entries of the module lists through which the hidden states pass, in the order in which they run."""

from __future__ import annotations

import torch

from excise.errors import ExciseError
from excise.scrubbing.trace import Call, Trace

__all__ = ["find_stacks", "tree"]


def find_stacks(model: torch.nn.Module, seen: Trace) -> list[list[Call]]:
    """For each module list outside of all other such lists: the calls of its blocks. Encoder-decoders have two.

    Raises:
        ExciseError: there is none; the message shows the tree of modules.
    """
    lists: list[str] = []
    for path, module in model.named_modules():
        if not isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) or not len(module):
            continue
        if any(path.startswith(other + ".") for other in lists):
            continue
        calls = [call for entry in _entries(path, module) for call in seen.by_path.get(entry, ())]
        if calls and all(_is_block(seen, call) for call in calls):
            lists.append(path)
    if not lists:
        raise ExciseError(
            f"{type(model).__name__} has no transformer blocks that could be found (a ModuleList through which hidden states "
            f"pass, each entry with several projections). Its modules:\n{tree(model)}"
        )
    stacks = []
    for path in lists:
        module = model.get_submodule(path)
        entries = _entries(path, module)  # type: ignore[arg-type]
        calls = [call for entry in entries for call in seen.by_path.get(entry, ())]
        stacks.append(sorted(calls, key=lambda call: call.began))
    return sorted(stacks, key=lambda calls: calls[0].began)


def _entries(path: str, module: torch.nn.ModuleList | torch.nn.Sequential) -> list[str]:
    return [f"{path}.{i}" if path else str(i) for i in range(len(module))]


def _is_block(seen: Trace, call: Call) -> bool:
    """Whether hidden states that depend on the input go in and come out, through two matrices or more."""
    if call.hidden is None or call.output is None or call.shape_in is None or call.shape_out is None:
        return False
    if len(call.shape_in) < 2 or call.shape_in[-1] != call.shape_out[-1]:
        return False
    return len({inner.path for inner in seen.within(call) if inner.projects}) >= 2


def tree(model: torch.nn.Module, most: int = 40) -> str:
    """The modules of a model, one of each run of numbered ones."""
    lines = []
    for path, module in model.named_modules():
        if path and not any(part.isdigit() and part != "0" for part in path.split(".")):
            lines.append(f"  {path}: {type(module).__name__}")
    return "\n".join([*lines[:most], *(["  ..."] if len(lines) > most else [])])
