"""Scrubbed tiny models for the tests of exporting: fitted in float64, used in float32."""

from __future__ import annotations

import copy
import warnings
from functools import cache
from typing import Any

import torch
import transformers as t
from architectures import batches, build

import excise
from excise.errors import ExciseWarning

t.utils.logging.disable_progress_bar()

RELATIVE = 1e-5  # rounding of float32, relative to the largest logit
POST_NORM = ("bert", "roberta", "distilbert", "opt post-norm")
# Of architectures.TABLE; modernbert is pre-norm too, but the norm of its embeddings is the residual stream.
PRE_NORM = (
    *(
        "gpt_neox",
        "gpt_neox sequential",
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma2",
        "gemma3",
        "phi3",
        "opt",
        "gpt2",
    ),
    *("bloom", "falcon", "falcon grouped", "falcon sequential", "olmo2"),
)
GROUPED = {
    "vocab_size": 48,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Families whose layers have biases, or a switch in the configuration that adds them where they are read.
SLOTS = {
    "gpt_neox": [],
    "gpt_neox sequential": [],
    "opt": [],
    "gpt2": [],
    "bloom": [],
    "llama": ["attention_bias", "mlp_bias"],
    "falcon": ["bias"],
    "falcon grouped": ["bias"],
    "falcon sequential": ["bias"],
}
DATA = batches(8, 8)


@cache
def _scrubbed(name: str, affine: bool, sites: tuple[str, ...] | None) -> tuple[Any, Any]:
    model = build(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExciseWarning)
        scrubber = excise.scrub(
            model, DATA, sites=None if sites is None else list(sites), affine=affine, progress=False
        )
    return model, scrubber


def scrubbed(name: str, affine: bool = True, sites: tuple[str, ...] | None = None, dtype: Any = torch.float32) -> Any:
    """A model of its own, and the scrubber that was fitted on it."""
    model, scrubber = _scrubbed(name, affine, sites)
    return copy.deepcopy(model).to(dtype), scrubber


def logits(model: Any) -> torch.Tensor:
    """Of one batch with padding, at its true tokens."""
    batch = DATA[0]
    with torch.no_grad():
        out = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return out[batch["attention_mask"] == 1].double()


def hooked_logits(model: Any, scrubber: Any) -> torch.Tensor:
    with scrubber.attached(model):
        return logits(model)


def generated(model: Any) -> list[list[int]]:
    ids = DATA[0]["input_ids"][:3, :6]
    out = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, pad_token_id=0
    )
    return out.tolist()


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).abs().max() / b.double().abs().max())


def reloaded(name: str, folder: Any) -> Any:
    kind = t.AutoModelForMaskedLM if "bert" in name else t.AutoModelForCausalLM
    model, found = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(found.values()), found
    return model.eval()


def state(model: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    return {k: v.clone() for k, v in model.state_dict().items()}, model.config.to_dict()


def is_untouched(model: Any, before: tuple[dict[str, torch.Tensor], dict[str, Any]]) -> bool:
    now = model.state_dict()
    same = now.keys() == before[0].keys() and all(torch.equal(v, now[k]) for k, v in before[0].items())
    return same and model.config.to_dict() == before[1] and not model._forward_hooks and not model._forward_pre_hooks
