"""Scrubbing as one would do it without thinking of time: whole forward passes, one site at a time, plain NumPy.

Own hooks, nothing of excise.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from measure import leace_by_definition, one_hot

LABELS = ("concept", "decoder_concept", "labels")


def parts(site: str) -> tuple[str, int, bool]:
    """path, visit, and whether its input is meant"""
    path, _, visit = site.removesuffix(":in").partition("@")
    return path, int(visit or 1), site.endswith(":in")


@contextmanager
def editing(model: Any, edits: dict[str, Any]):
    """`edits[site](x) -> x` on outputs of modules, on inputs where the site ends in ":in"; one forward pass at a time."""
    counts: dict[str, int] = {}

    def start(*_):
        counts.clear()

    with ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(start).remove)
        for site, edit in edits.items():
            path, visit, inside = parts(site)
            module = model.get_submodule(path)

            def mine(site=site, visit=visit) -> bool:
                counts[site] = counts.get(site, 0) + 1
                return counts[site] == visit

            def after(_, args, output, edit=edit, mine=mine):
                if not mine():
                    return None
                return edit(output) if isinstance(output, torch.Tensor) else (edit(output[0]), *output[1:])

            def before(_, args, kwargs, edit=edit, mine=mine):
                if not mine():
                    return None
                if "hidden_states" in kwargs:
                    return args, {**kwargs, "hidden_states": edit(kwargs["hidden_states"])}
                return (edit(args[0]), *args[1:]), kwargs

            handle = (
                module.register_forward_pre_hook(before, with_kwargs=True)
                if inside
                else module.register_forward_hook(after)
            )
            stack.callback(handle.remove)
        yield


def run(model: Any, batch: dict[str, Any]) -> Any:
    dtype = next(model.parameters()).dtype
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items() if k not in LABELS}
    with torch.no_grad():
        return model(**inputs)


def counted(batch: dict[str, Any], labels: str = "concept") -> np.ndarray:
    """(B * T,) labelled, and no padding"""
    z = batch[labels]
    mask = batch.get("decoder_attention_mask" if labels == "decoder_concept" else "attention_mask")
    keep = z != -100 if mask is None or mask.shape != z.shape else (z != -100) & (mask == 1)
    return keep.numpy().reshape(-1)


def labels(batches: list[dict[str, Any]], name: str = "concept") -> np.ndarray:
    return np.concatenate([batch[name].numpy().reshape(-1)[counted(batch, name)] for batch in batches])


def activations(
    model: Any,
    batches: list[dict[str, Any]],
    site: str,
    edits: dict[str, Any],
    name: str = "concept",
    extra: str | None = None,
) -> np.ndarray:
    """(n, d) at the counted positions, after the edits of `site` itself, if any.

    `extra`: where there are vectors without labels, "front" or "back".
    """
    rows = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        if site in edits:
            x = edits[site](x)
        rows.append(x.detach().double().numpy().copy())
        return x

    with editing(model, {**edits, site: keep}):
        for batch in batches:
            run(model, batch)
    out = []
    for x, batch in zip(rows, batches, strict=True):
        B, T = batch[name].shape
        if x.ndim == 3 and x.shape[:2] == (T, B) and T != B:
            x = x.transpose(1, 0, 2)  # time first
        x = x.reshape(B, -1, x.shape[-1])
        if extra is not None and x.shape[1] > T:
            x = x[:, -T:] if extra == "front" else x[:, :T]
        out.append(x.reshape(B * T, -1)[counted(batch, name)])
    return np.concatenate(out)


def scrub(
    model: Any, batches: list[dict[str, Any]], sites: list[str], sides: Any = None, extra: str | None = None
) -> dict[str, Any]:
    """Edits of all sites, each fitted on activations that carry those before it. `sides`: names of labels by site."""
    edits: dict[str, Any] = {}
    for site in sites:
        name = (sides or {}).get(site, "concept")
        Z = one_hot(labels(batches, name))
        P, mean = leace_by_definition(activations(model, batches, site, edits, name, extra), Z)

        edits[site] = _edit(torch.from_numpy(P), torch.from_numpy(mean))
    return edits


def _edit(P: torch.Tensor, mean: torch.Tensor) -> Any:
    return lambda x: ((x.double() - mean) @ P.T + mean).to(x.dtype)
