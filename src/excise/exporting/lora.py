"""to_lora: a scrubber as a PEFT adapter, A = V^T and B = -W U in every layer that reads a site, scaling 1."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from excise.errors import ExciseError, FileFormatError, missing_extra
from excise.exporting.edits import Edit, edits_of
from excise.exporting.model_card import Facts, write_card
from excise.exporting.scrubbed import Scrubber
from excise.files import replacing

__all__ = ["to_lora"]

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."


def to_lora(
    scrubber: Scrubber,
    model: torch.nn.Module,
    folder: str | os.PathLike[str],
    batch: Mapping[str, Any] | None = None,
    facts: Facts | None = None,
) -> Path:
    """Write an adapter that `peft.PeftModel.from_pretrained(model, folder)` loads; the model is not changed.

    All layers get one rank, the largest of them, padded with zeros; `lora_alpha` is the rank, so the scaling is 1. Where
    the erasers keep a mean, B has a bias (`lora_bias`). Without (`affine=False`) the adapter is plain LoRA.
    Only one such adapter may be active: two of them add up, and then neither concept is guarded.

    Args:
        scrubber: fitted on this model, by a method whose erasers are fixed affine maps.
        model: the model that was scrubbed, or that model in 8 or 4 bits where PEFT can dequantise it.
        folder: a new or empty folder, or one with an earlier adapter.
        batch: inputs to trace the model with; any few tokens unless given.
        facts: for the model card.

    Raises:
        ExciseError: as `fold`, except that no slots for biases are needed.
        FileFormatError: the folder holds something else.
    """
    target = _checked(folder)
    edits = edits_of(scrubber, model, batch, allow_quantised=True)
    rank = max(edit.rank for edit in edits)
    biased = any(edit.c is not None for edit in edits)
    tensors: dict[str, torch.Tensor] = {}
    for edit in edits:
        tensors |= _tensors(edit, rank, biased, torch.float64 if _is_wide(model) else torch.float32)
    config = _config(model, edits, rank, biased)
    target.mkdir(parents=True, exist_ok=True)
    (target / CONFIG).unlink(missing_ok=True)  # never the description of one adapter with the numbers of another
    from safetensors.torch import save_file

    with replacing(target / WEIGHTS) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    mergeable = not biased or all(edit.reader.module.bias is not None for edit in edits)
    write_card(target, scrubber, model, facts or Facts(), adapter_rank=rank, mergeable=mergeable)
    config.save_pretrained(target)
    return target


def _checked(folder: str | os.PathLike[str]) -> Path:
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise FileFormatError(f"{target} is a file: an adapter is saved as a folder")
    if target.is_dir() and any(target.iterdir()) and not (target / CONFIG).exists():
        raise FileFormatError(f"the folder {target} holds other files: save the adapter into an empty or a new folder")
    return target


def _is_wide(model: torch.nn.Module) -> bool:
    return any(parameter.dtype == torch.float64 for parameter in model.parameters())


def _tensors(edit: Edit, rank: int, biased: bool, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    A, B = torch.zeros(rank, edit.A.shape[1], dtype=dtype), torch.zeros(edit.B.shape[0], rank, dtype=dtype)
    A[: edit.rank] = edit.A.to("cpu", dtype)
    B[:, : edit.rank] = edit.B.to("cpu", dtype)
    out = {f"{PREFIX}{edit.path}.lora_A.weight": A, f"{PREFIX}{edit.path}.lora_B.weight": B}
    if biased:
        c = torch.zeros(B.shape[0], dtype=dtype) if edit.c is None else edit.c.to("cpu", dtype)
        out[f"{PREFIX}{edit.path}.lora_B.bias"] = c
    for name, value in out.items():
        if not bool(value.isfinite().all()):
            raise ExciseError(f"{name} leaves the range of {dtype}: no adapter was written", code="out-of-range")
    return out


def _config(model: Any, edits: list[Edit], rank: int, biased: bool) -> Any:
    try:
        from peft import LoraConfig
    except ImportError:
        raise missing_extra("to_lora writes an adapter for PEFT, which is not installed", "transformers") from None
    kinds = {edit.reader.transposed for edit in edits}
    if len(kinds) > 1:
        raise ExciseError(
            f"{edits[0].path} and other readers are of two kinds (Linear and Conv1D): one adapter cannot serve both; use "
            f"scrubber.fold",
            code="cannot-fold",
        )
    can_generate = getattr(model, "can_generate", lambda: False)()
    return LoraConfig(
        r=rank,
        lora_alpha=rank,
        lora_dropout=0.0,
        target_modules=_targets(model, [edit.path for edit in edits]),
        lora_bias=biased,
        bias="none",
        fan_in_fan_out=kinds == {True},
        base_model_name_or_path=getattr(model, "name_or_path", None) or None,
        task_type="CAUSAL_LM" if can_generate else None,
        inference_mode=True,
    )


def _targets(model: torch.nn.Module, paths: list[str]) -> list[str]:
    """Last parts of the names ("q_proj"), which other servers expect, where they mean just these layers; else whole paths."""
    short = sorted({path.rpartition(".")[2] for path in paths})
    meant = {path for path, _ in model.named_modules() if path.rpartition(".")[2] in short}
    return short if meant == set(paths) else sorted(paths)
