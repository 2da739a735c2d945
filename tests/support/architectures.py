"""Tiny random models of many architectures, with the sites that a person would name by reading their code."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers as t

LAYERS, WIDTH, VOCABULARY = 2, 16, 48
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PLAIN = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    **SPECIAL,
}
GROUPED = {**PLAIN, "num_attention_heads": 4, "num_key_value_heads": 2}
OPT = {k: v for k, v in PLAIN.items() if k != "intermediate_size"} | {"ffn_dim": 24}
FALCON = {**OPT, "num_attention_heads": 4, "ffn_hidden_size": 24}


def _each(pattern: str, *names: str) -> list[str]:
    return [pattern.format(layer) + "." + name for layer in range(LAYERS) for name in names]


def _bert(prefix: str) -> list[str]:
    names = ("attention.output.LayerNorm", "output.LayerNorm")
    return [f"{prefix}.embeddings.LayerNorm", *_each(prefix + ".encoder.layer.{}", *names)]


LLAMA = _each("model.layers.{}", "input_layernorm", "post_attention_layernorm")
GEMMA = _each("model.layers.{}", "input_layernorm", "pre_feedforward_layernorm")
NEOX = _each("gpt_neox.layers.{}", "input_layernorm", "post_attention_layernorm")
BLOOM = _each("transformer.h.{}", "input_layernorm", "post_attention_layernorm")

# name: (configuration, sites)
TABLE: dict[str, tuple[Any, list[str]]] = {
    "gpt_neox": (lambda: t.GPTNeoXConfig(**PLAIN), NEOX),
    "gpt_neox sequential": (lambda: t.GPTNeoXConfig(**PLAIN, use_parallel_residual=False), NEOX),
    "llama": (lambda: t.LlamaConfig(**GROUPED), LLAMA),
    "mistral": (lambda: t.MistralConfig(**GROUPED, sliding_window=8), LLAMA),
    "qwen2": (lambda: t.Qwen2Config(**GROUPED), LLAMA),
    "qwen3": (lambda: t.Qwen3Config(**GROUPED, head_dim=8), LLAMA),
    # A window of nothing but padding would be NaN in float64 (the mask overflows the float32 softmax): 12 > T / 2.
    "gemma2": (lambda: t.Gemma2Config(**GROUPED, head_dim=8, sliding_window=12), GEMMA),
    "gemma3": (
        lambda: t.Gemma3TextConfig(
            **GROUPED, head_dim=8, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
        ),
        GEMMA,
    ),
    "phi3": (lambda: t.Phi3Config(**GROUPED), LLAMA),
    "opt": (lambda: t.OPTConfig(**OPT), _each("model.decoder.layers.{}", "self_attn_layer_norm", "final_layer_norm")),
    "opt post-norm": (
        lambda: t.OPTConfig(**OPT, do_layer_norm_before=False, word_embed_proj_dim=8),
        [
            "model.decoder.layers.0.self_attn:in",
            *_each("model.decoder.layers.{}", "self_attn_layer_norm", "final_layer_norm"),
        ],
    ),
    "gpt2": (
        lambda: t.GPT2Config(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=2, n_positions=64, **SPECIAL),
        _each("transformer.h.{}", "ln_1", "ln_2"),
    ),
    "bloom": (
        lambda: t.BloomConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, n_layer=LAYERS, n_head=2, **SPECIAL),
        BLOOM,
    ),
    "falcon": (lambda: t.FalconConfig(**FALCON), _each("transformer.h.{}", "input_layernorm")),
    "falcon grouped": (
        lambda: t.FalconConfig(**FALCON, new_decoder_architecture=True, num_kv_heads=2),
        _each("transformer.h.{}", "ln_attn", "ln_mlp"),
    ),
    "falcon sequential": (lambda: t.FalconConfig(**FALCON, parallel_attn=False, alibi=True), BLOOM),
    "olmo2": (lambda: t.Olmo2Config(**GROUPED), _each("model.layers.{}", "self_attn:in", "mlp:in")),
    "bert": (lambda: t.BertConfig(**PLAIN), _bert("bert")),
    "roberta": (lambda: t.RobertaConfig(**PLAIN), _bert("roberta")),
    "distilbert": (
        lambda: t.DistilBertConfig(
            vocab_size=VOCABULARY, dim=WIDTH, n_layers=LAYERS, n_heads=2, hidden_dim=24, max_position_embeddings=64
        ),
        [
            "distilbert.embeddings.LayerNorm",
            *_each("distilbert.transformer.layer.{}", "sa_layer_norm", "output_layer_norm"),
        ],
    ),
    "modernbert": (
        lambda: t.ModernBertConfig(**PLAIN, local_attention=8, cls_token_id=1, sep_token_id=2),
        [
            "model.embeddings.norm",
            "model.layers.0.mlp_norm",
            "model.layers.1.attn_norm",
            "model.layers.1.mlp_norm",
        ],
    ),
}
ENCODERS = ("bert", "roberta", "distilbert", "modernbert")


def build(name: str, seed: int = 0) -> Any:
    """A model in float64 and evaluation mode, with weights large enough that its layers do something."""
    torch.manual_seed(seed)
    config = TABLE[name][0]()
    kind = t.AutoModelForMaskedLM if name in ENCODERS else t.AutoModelForCausalLM
    model = kind.from_config(config).double().eval()
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
