"""Tiny random models of the families in `families`, and batches for them."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
import transformers as t
from families import FAMILIES, QUICK, TABLE, TINY, VOCABULARY

__all__ = ["FAMILIES", "QUICK", "TABLE", "batches", "batches_for", "build"]


def build(name: str, seed: int = 0) -> Any:
    """A model in evaluation mode, with weights large enough that its layers do something."""
    found = TABLE["gemma3_text" if name == "gemma3" else name]
    torch.manual_seed(seed)
    head = getattr(t, found.head)
    config = found.config()
    config._experts_implementation = "eager"  # the others have no float64
    model = head.from_config(config) if found.head.startswith("AutoModel") else head(config)
    if found.name == "whisper encoder":
        model = model.get_encoder()
    model = model.to(getattr(torch, found.dtype)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter + 0.3 * torch.randn_like(parameter) * (0.5 if parameter.ndim < 2 else 1.0))
    return model


def batches(number: int = 3, B: int = 5, T: int = 20, classes: int = 3, seed: int = 0) -> list[dict[str, Any]]:
    """Padded on the right, with some labels of -100; the class is a function of the token and the one before it."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(number):
        ids = rng.integers(3, VOCABULARY, (B, T))
        mask = np.ones((B, T), dtype=np.int64)
        for row, length in enumerate(rng.integers(T // 2, T + 1, B)):
            mask[row, length:] = 0
        ids = np.where(mask == 1, ids, 0)
        z = (ids + np.roll(ids, 1, axis=1) // 7) % classes
        z[rng.random((B, T)) < 0.1] = -100
        out.append({k: torch.from_numpy(v) for k, v in (("input_ids", ids), ("attention_mask", mask), ("concept", z))})
    return out


def batches_for(model: Any, number: int = 5, B: int = 6, seed: int = 0) -> list[dict[str, Any]]:
    """Batches of what a model takes, with labels for all its tokens, patches or frames."""
    takes = inspect.signature(model.forward).parameters
    kind = model.main_input_name if model.main_input_name in takes else "input_ids"
    if kind == "input_ids":
        out = batches(number, B, seed=seed)
    else:
        out = [_signal(model, kind, B, np.random.default_rng([seed, i])) for i in range(number)]
    if "decoder_input_ids" in takes:
        for batch, more in zip(out, batches(number, B, T=14, classes=4, seed=seed + 1), strict=True):
            batch |= {f"decoder_{name}": value for name, value in more.items()}
    return [{name: value for name, value in batch.items() if name in takes or "concept" in name} for batch in out]


def _signal(model: Any, kind: str, B: int, rng: np.random.Generator) -> dict[str, Any]:
    """Images of patches, or clips of frames, of three classes that differ in their mean."""
    if kind == "pixel_values":
        side, patch = TINY["image_size"] // TINY["patch_size"], TINY["patch_size"]
        z = rng.integers(0, 3, (B, side * side))
        pixels = rng.standard_normal((B, 3, side, patch, side, patch)) + z.reshape(B, 1, side, 1, side, 1)
        return {
            kind: torch.from_numpy(pixels.reshape(B, 3, side * patch, side * patch)),
            "concept": torch.from_numpy(z),
        }
    if kind == "input_features":
        bins, frames = model.config.num_mel_bins, 2 * model.config.max_source_positions
        z = rng.integers(0, 3, (B, frames // 2))
        features = rng.standard_normal((B, bins, frames)) + np.repeat(z, 2, axis=1)[:, None, :]
        return {kind: torch.from_numpy(features), "concept": torch.from_numpy(z)}
    samples = 320
    frames = int(model._get_feat_extract_output_lengths(samples))
    z = rng.integers(0, 3, (B, frames))
    wave = rng.standard_normal((B, samples)) * (1 + np.repeat(z, -(-samples // frames), axis=1)[:, :samples])
    return {kind: torch.from_numpy(wave), "concept": torch.from_numpy(z)}
