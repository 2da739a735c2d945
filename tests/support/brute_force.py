"""Scrubbing as one would do it without thinking of time: whole forward passes, one site at a time, plain NumPy.

Own hooks, nothing of excise.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from measure import leace_by_definition, one_hot


@contextmanager
def editing(model: Any, edits: dict[str, Any]):
    """`edits[path](x) -> x` on outputs of modules, on inputs where the path ends in ":in"."""
    with ExitStack() as stack:
        for path, edit in edits.items():
            module = model.get_submodule(path.removesuffix(":in"))

            def after(_, args, output, edit=edit):
                return edit(output) if isinstance(output, torch.Tensor) else (edit(output[0]), *output[1:])

            def before(_, args, kwargs, edit=edit):
                if "hidden_states" in kwargs:
                    return args, {**kwargs, "hidden_states": edit(kwargs["hidden_states"])}
                return (edit(args[0]), *args[1:]), kwargs

            inside = path.endswith(":in")
            handle = (
                module.register_forward_pre_hook(before, with_kwargs=True)
                if inside
                else module.register_forward_hook(after)
            )
            stack.callback(handle.remove)
        yield


def counted(batch: dict[str, Any]) -> np.ndarray:
    return ((batch["concept"] != -100) & (batch["attention_mask"] == 1)).numpy().reshape(-1)


def labels(batches: list[dict[str, Any]]) -> np.ndarray:
    return np.concatenate([batch["concept"].numpy().reshape(-1)[counted(batch)] for batch in batches])


def activations(model: Any, batches: list[dict[str, Any]], path: str, edits: dict[str, Any]) -> np.ndarray:
    """(n, d) at the counted positions, after the edits of `path` itself, if any."""
    rows = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        if path in edits:
            x = edits[path](x)
        rows.append(x.detach().reshape(-1, x.shape[-1]).numpy().copy())
        return x

    with torch.no_grad(), editing(model, {**edits, path: keep}):
        for batch in batches:
            model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    return np.concatenate([x[counted(batch)] for x, batch in zip(rows, batches, strict=True)])


def scrub(model: Any, batches: list[dict[str, Any]], sites: list[str]) -> dict[str, Any]:
    edits: dict[str, Any] = {}
    Z = one_hot(labels(batches))
    for path in sites:
        P, mean = leace_by_definition(activations(model, batches, path, edits), Z)
        P, mean = torch.from_numpy(P), torch.from_numpy(mean)
        edits[path] = lambda x, P=P, mean=mean: (x - mean) @ P.T + mean
    return edits
