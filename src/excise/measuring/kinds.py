"""Causal or masked: by the class of a model where that decides it, and otherwise by a trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from excise.errors import InputError
from excise.scrubbing.capture import evaluating, model_inputs
from excise.scrubbing.wrappers import unwrapped

__all__ = ["KINDS", "check_kind", "kind_of", "require_head"]

KINDS = ("causal", "masked")
TOKENS = 16  # of the trial
LEAST = 1e-4  # a change of the first token's logits counts from this share of the change at the other tokens


def check_kind(kind: str | None) -> str | None:
    """
    Raises:
        InputError: no such kind.
    """
    if kind is not None and kind not in KINDS:
        raise InputError(f"kind must be causal or masked, got {kind!r}", code="kind")
    return kind


def kind_of(model: Any, batch: Mapping[str, Any]) -> str:
    """Whether a language model predicts the next token ("causal") or tokens that are masked ("masked").

    The class decides where it can mean one thing only (`LlamaForCausalLM`, `BertForMaskedLM`). Classes that can be either
    (`XLMWithLMHeadModel`, settings for attention to both sides) are tried: the model is causal if what
    it says of the first token does not depend on the others, up to rounding.

    Raises:
        InputError: no language-modelling head, or sequences of one token, where a trial is needed.
    """
    inner = unwrapped(model)
    found = _by_class(inner)
    if found is None:
        require_head(inner)
        found = _by_trial(inner, batch)
    return found


def _by_class(model: torch.nn.Module) -> str | None:
    """What the class says; None where it leaves it open."""
    name, config = type(model).__name__, getattr(model, "config", None)
    if name.endswith("ForMaskedLM"):
        return None if getattr(config, "is_decoder", False) else "masked"
    if not name.endswith(("ForCausalLM", "LMHeadModel")):
        return None
    if getattr(config, "is_causal", None) is False or getattr(config, "use_bidirectional_attention", False):
        return None
    if not _has_masked_sister(config):
        return "causal"
    decoder = getattr(config, "is_decoder", None)
    return None if decoder is None else "causal" if decoder else "masked"


def _has_masked_sister(config: Any) -> bool:
    """Whether Transformers has a masked language model of the same kind: such a decoder may attend to both sides."""
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES
    except ImportError:
        return True
    return getattr(config, "model_type", None) in MODEL_FOR_MASKED_LM_MAPPING_NAMES


def require_head(model: torch.nn.Module) -> None:
    """
    Raises:
        InputError: the model has no language-modelling head.
    """
    if getattr(model, "get_output_embeddings", lambda: None)() is None:
        raise InputError(
            f"{type(model).__name__} has no language-modelling head, so it has no loss to measure: load it with "
            f"AutoModelForCausalLM or AutoModelForMaskedLM"
        )


def _by_trial(model: torch.nn.Module, batch: Mapping[str, Any]) -> str:
    ids = torch.as_tensor(batch["input_ids"])[:1, :TOKENS].repeat(2, 1)
    if ids.shape[1] < 2:
        raise InputError("the sequences have one token each: there is nothing to predict")
    size = int(model.get_input_embeddings().weight.shape[0])  # type: ignore[operator]
    ids[1, 1:] = (ids[1, 1:] + 1) % size
    with evaluating(model):
        found = [model(**model_inputs(model, {"input_ids": row[None]})).logits[0] for row in ids]
    moved = (found[0].double() - found[1].double()).abs().amax(dim=-1)  # (T,)
    # Experts and quantised layers round one token's numbers by what the others are: equal to the last bit is too strict.
    share = max(LEAST, 4 * torch.finfo(found[0].dtype).eps)
    return "causal" if float(moved[0]) <= share * float(moved[1:].median()) else "masked"
