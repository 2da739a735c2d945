"""Which sites wait for which: change what one of them holds, and look which of the others change.

Nothing is taken from names or from a gradient, so it holds for every block that can be run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from excise.scrubbing.capture import Stop, evaluating, hooked, run

__all__ = ["levels_of"]


def levels_of(
    model: torch.nn.Module, inputs: Mapping[str, Any], groups: Sequence[Sequence[str]]
) -> list[tuple[tuple[str, ...], ...]]:
    """For each group of sites, in the order in which they run: its levels.

    A site is one level above the highest site of its group that it depends on, so the sites of a level can be fitted in
    one pass.
    """
    clean = _values(model, inputs, [path for paths in groups for path in paths]) if max(map(len, groups)) > 1 else {}
    out = []
    for paths in groups:
        height = dict.fromkeys(paths, 0)
        for number, path in enumerate(paths[:-1]):
            later = paths[number + 1 :]
            changed = _values(model, inputs, later, path)
            for other in later:
                if not torch.equal(changed[other].nan_to_num(), clean[other].nan_to_num()):
                    height[other] = max(height[other], height[path] + 1)
        out.append(tuple(tuple(p for p in paths if height[p] == level) for level in range(max(height.values()) + 1)))
    return out


def _values(
    model: torch.nn.Module, inputs: Mapping[str, Any], paths: Sequence[str], disturbed: str | None = None
) -> dict[str, torch.Tensor]:
    """What the sites hold; with `disturbed`, after that one was changed by as much as it varies."""
    found: dict[str, torch.Tensor] = {}

    def visit(path: str, x: torch.Tensor) -> torch.Tensor | None:
        if path == disturbed:
            generator = torch.Generator().manual_seed(0)
            noise = torch.randn(x.shape, generator=generator, dtype=torch.float32).to(x.device, x.dtype)
            return x + noise * (x.abs().mean() + 1)
        found[path] = x.clone()
        if len(found) == len(paths):
            raise Stop
        return None

    everything = paths if disturbed is None else [disturbed, *paths]
    with evaluating(model), hooked(model, everything, visit):
        run(model, inputs)
    return found
