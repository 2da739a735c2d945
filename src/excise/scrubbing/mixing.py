"""Which readers see several tokens at once: change one vector at a site, and look which rows of their input change.

A linear map over several tokens (a token shift, a short convolution) of erased vectors may tell the concept of one token
by the vector of its neighbour: erasure is per token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from excise.scrubbing.capture import evaluating, hooked, run
from excise.scrubbing.coverage import CoverageRow

__all__ = ["readers_of_several_tokens"]


def readers_of_several_tokens(
    model: torch.nn.Module, inputs: Mapping[str, Any], rows: Iterable[CoverageRow]
) -> set[str]:
    """Those of the given readers in whose input more rows change than the one that was changed at their site."""
    return {row.reader for row in rows if row.site is not None and _mixes(model, inputs, row.site, f"{row.reader}:in")}


def _mixes(model: torch.nn.Module, inputs: Mapping[str, Any], site: str, reader: str) -> bool:
    if site == reader:
        return False
    found: list[torch.Tensor] = []
    middle: list[int] = []

    def change(x: torch.Tensor, by: float) -> torch.Tensor:
        flat = x.clone().reshape(-1, x.shape[-1])
        middle.append(len(flat) // 2)
        flat[middle[-1]] += by * (flat.abs().mean() + 1)
        return flat.reshape(x.shape)

    for by in (0.0, 1.0):

        def visit(name: str, x: torch.Tensor, by: float = by) -> torch.Tensor | None:
            if name == site:
                return change(x, by)
            found.append(x.clone().reshape(-1, x.shape[-1]))
            return None

        with evaluating(model), hooked(model, [site, reader], visit):
            run(model, inputs)
    if len(found) != 2 or found[0].shape != found[1].shape:
        return False
    changed = (found[0] != found[1]).any(dim=1)
    changed[middle[0]] = False
    return bool(changed.any())
