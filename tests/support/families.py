"""Tiny random models of many architectures, with the sites that a person would name by reading their code.

To add a family, add a line to FAMILIES: the name of its configuration in Transformers, its sites ("{}" stands for the
number of the layer), and whatever must differ from TINY.
"""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import transformers as t

LAYERS, WIDTH, VOCABULARY = 2, 16, 48
# What a configuration is made of; each takes the entries that it knows.
TINY: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "emb_dim"), WIDTH),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), LAYERS),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "ffn_hidden_size", "d_ff", "hidden_dim", "n_inner"), 24),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "dim_ff"), 24),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 12),
    **dict.fromkeys(("state_size", "ssm_state_size", "mamba_d_state"), 8),
    **dict.fromkeys(("chunk_size", "mamba_chunk_size"), 8),
    "vocab_size": VOCABULARY,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "d_kv": 8,
    "sliding_window": 8,
    "type_vocab_size": 2,
    "num_experts_per_tok": 2,
    "decoder_start_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rotary_dim": 4,
    "image_size": 12,
    "patch_size": 4,
}


@dataclass(frozen=True)
class Family:
    """A line of the table."""

    name: str  # of the configuration in Transformers, and what is special about this one
    sites: tuple[str, ...]
    head: str = "AutoModelForCausalLM"  # the class of the model
    dtype: str = "float64"
    extra: str | None = None  # where there are more vectors than labels: "front" or "back"
    chained: bool = True
    warns: str | None = None
    missed: tuple[str, ...] = ()  # readers that no site covers
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def paths(self) -> list[str]:
        """The sites of all layers."""
        out = []
        for site in self.sites:
            out += [site.replace("{}", str(layer)) for layer in range(LAYERS)] if "{}" in site else [site]
        return out

    def config(self) -> Any:
        kind = t.CONFIG_MAPPING[self.name.split()[0]]
        known = {*inspect.signature(kind.__init__).parameters, *getattr(kind, "__dataclass_fields__", ())}
        settings = {key: value for key, value in TINY.items() if key in known}
        return kind(**{**settings, **self.settings})


def family(name: str, *sites: str, head: str = "AutoModelForCausalLM", **more: Any) -> Family:
    own = {key: more.pop(key) for key in ("dtype", "extra", "chained", "warns", "missed") if key in more}
    return Family(name, sites, head, **own, settings=more)


def each(pattern: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{pattern}.{name}" for name in names)


def post_norm(prefix: str) -> tuple[str, ...]:
    names = ("attention.output.LayerNorm", "output.LayerNorm")
    return (f"{prefix}.embeddings.LayerNorm", *each(prefix + ".encoder.layer.{}", *names))


MASKED = {"head": "AutoModelForMaskedLM"}
LLAMA = each("model.layers.{}", "input_layernorm", "post_attention_layernorm")
GEMMA = each("model.layers.{}", "input_layernorm", "pre_feedforward_layernorm")
NEOX = each("gpt_neox.layers.{}", "input_layernorm", "post_attention_layernorm")
BLOOM = each("transformer.h.{}", "input_layernorm", "post_attention_layernorm")
GPT2 = each("transformer.h.{}", "ln_1", "ln_2")
OPT = each("model.decoder.layers.{}", "self_attn_layer_norm", "final_layer_norm")
FALCON = {"num_attention_heads": 4, "head_dim": None}

FAMILIES: list[Family] = [
    family("gpt_neox", *NEOX),
    family("gpt_neox sequential", *NEOX, use_parallel_residual=False),
    family("llama", *LLAMA),
    family("mistral", *LLAMA),
    family("qwen2", *LLAMA),
    family("qwen3", *LLAMA),
    # A window of nothing but padding would be NaN in float64 (the mask overflows the float32 softmax): 12 > T / 2.
    family("gemma2", *GEMMA, sliding_window=12),
    family("gemma3_text", *GEMMA, layer_types=["sliding_attention", "full_attention"]),
    family("phi3", *LLAMA),
    family("opt", *OPT),
    family(
        "opt post-norm", "model.decoder.layers.0.self_attn:in", *OPT, do_layer_norm_before=False, word_embed_proj_dim=8
    ),
    family("gpt2", *GPT2),
    family("bloom", *BLOOM),
    family("falcon", "transformer.h.{}.input_layernorm"),
    family(
        "falcon grouped", *each("transformer.h.{}", "ln_attn", "ln_mlp"), new_decoder_architecture=True, num_kv_heads=2
    ),
    family("falcon sequential", *BLOOM, parallel_attn=False, alibi=True),
    family("olmo2", *each("model.layers.{}", "self_attn:in", "mlp:in")),
    family("bert", *post_norm("bert"), **MASKED),
    family("roberta", *post_norm("roberta"), **MASKED),
    family(
        "distilbert",
        "distilbert.embeddings.LayerNorm",
        *each("distilbert.transformer.layer.{}", "sa_layer_norm", "output_layer_norm"),
        **MASKED,
    ),
    family(
        "modernbert",
        *("model.embeddings.norm", "model.layers.1.attn_norm", "model.layers.{}.mlp_norm"),
        local_attention=8,
        cls_token_id=1,
        sep_token_id=2,
        **MASKED,
    ),
]
# Beyond those: mixtures of experts, state-space models and hybrids, shared blocks, other widths.
T5_ENCODER = each("encoder.block.{}", "layer.0.layer_norm", "layer.1.layer_norm")
T5 = (*T5_ENCODER, "encoder.final_layer_norm", *(f"decoder.block.{{}}.layer.{i}.layer_norm" for i in range(3)))
ENCODER = each("encoder.layers.{}", "self_attn_layer_norm", "final_layer_norm")
DECODER = each("decoder.layers.{}", "self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")
BART = each("model", "encoder.layernorm_embedding", "decoder.layernorm_embedding", *ENCODER, *DECODER)
MBART = each("model", *ENCODER, "encoder.layer_norm", *DECODER)
BOTH = {"head": "AutoModelForSeq2SeqLM"}
ALBERT = each("albert.encoder.albert_layer_groups.{}.albert_layers.0", "attention.LayerNorm", "full_layer_layer_norm")
ZAMBA = (
    *each("shared_transformer", "input_layernorm", "pre_ff_layernorm"),
    "mamba_decoder.input_layernorm",
)
HYBRID = each("model.layers.{}", "input_layernorm", "pre_ff_layernorm")
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1}
VIT = each("layers.{}", "layernorm_before", "layernorm_after")
CLIP = each("encoder.layers.{}", "layer_norm1", "layer_norm2")
WAVES = ("encoder.layer_norm", *each("encoder.layers.{}", "layer_norm", "final_layer_norm"))
CONVOLUTIONS: dict[str, Any] = {
    **{"conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_feat_extract_layers": 2},
    **{"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "head": "AutoModel"},
}
WHISPER = {"head": "WhisperModel", "num_mel_bins": 8, "max_source_positions": 20}
XLM = ("transformer.layer_norm_emb", "transformer.layer_norm1.{}", "transformer.layer_norm2.0")
NO_CACHE = "(?s).*do not pass on hidden states alone"

FAMILIES += [
    family("gemma", *LLAMA),
    family("olmo", *LLAMA, dtype="float32"),  # its norm is computed in float32, whatever the model is
    family("olmoe", *LLAMA),
    family("mixtral", *LLAMA),
    family("qwen2_moe", *LLAMA),
    family("qwen3_moe", *LLAMA),
    family("phi", "model.layers.{}.input_layernorm"),
    family("phimoe", *LLAMA),
    family("stablelm", *LLAMA),
    family("starcoder2", *LLAMA),
    family("gptj", "transformer.h.{}.ln_1"),
    family("codegen", "transformer.h.{}.ln_1"),
    family("gpt_bigcode", *GPT2),
    family("mpt", *each("transformer.blocks.{}", "norm_1", "norm_2")),
    family("cohere", "model.layers.{}.input_layernorm", dtype="float32"),
    family("cohere2", "model.layers.{}.input_layernorm", dtype="float32"),
    family("granite", *LLAMA),
    family("granitemoe", *LLAMA),
    family("xglm", *each("model.layers.{}", "self_attn_layer_norm", "final_layer_norm"), dtype="float32"),
    family(
        "gemma3n_text",
        *each(
            "model.layers.{}",
            "altup.router_norm",
            "altup.router_norm@2",
            "input_layernorm",
            "pre_feedforward_layernorm",
        ),
        *each("model.layers.{}", "per_layer_input_gate:in", "per_layer_projection:in"),
        layer_types=["sliding_attention", "full_attention"],
        **{"num_kv_shared_layers": 0, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 4},
        **{"laurel_rank": 4, "altup_num_inputs": 2, "activation_sparsity_pattern": [0.0, 0.0]},
    ),
    family("mamba", "backbone.layers.{}.norm"),
    family("mamba2", "backbone.layers.{}.norm", num_heads=4, head_dim=8, n_groups=2, expand=2),
    family("falcon_mamba", "backbone.layers.{}.norm"),
    family("rwkv", *each("rwkv.blocks.{}", "ln1", "ln2")),
    family("falcon_h1", *HYBRID, mamba_d_ssm=32, **MAMBA),
    family("bamba", *HYBRID, attn_layer_indices=[1], **MAMBA),
    family(
        "jamba",
        *HYBRID,
        **{"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
        mamba_dt_rank=4,
    ),
    family(
        "zamba2",
        "model.layers.0.input_layernorm",
        *(f"model.layers.{i}.{name}" for i in (1, 2) for name in ZAMBA),
        num_hidden_layers=3,
        layers_block_type=["mamba", "hybrid", "hybrid"],
        **{"mamba_ngroups": 1, "n_mamba_heads": 4, "mamba_headdim": 8, "num_mem_blocks": 1},
        use_shared_attention_adapter=False,
    ),
    family(
        "recurrent_gemma",
        *each("model.layers.{}", "temporal_pre_norm", "channel_pre_norm"),
        lru_width=16,
        block_types=["recurrent", "attention"],
    ),
    family(
        "albert",
        "albert.encoder.embedding_hidden_mapping_in",
        *(site.replace("{}", "0") + visit for site in ALBERT for visit in ("", "@2")),
        **MASKED,
    ),
    family(
        "albert groups",
        "albert.encoder.embedding_hidden_mapping_in",
        *(site + visit for site in ALBERT for visit in ("", "@2")),
        num_hidden_groups=2,
        num_hidden_layers=4,
        **MASKED,
    ),
    family("deberta", *post_norm("deberta"), dtype="float32", **MASKED),
    family("deberta-v2", *post_norm("deberta"), **MASKED),
    family("electra", *post_norm("electra"), **MASKED),
    family("ibert", *post_norm("ibert"), **MASKED),
    family(
        "mobilebert",
        "mobilebert.embeddings.LayerNorm",
        *each(
            "mobilebert.encoder.layer.{}", "attention.output.LayerNorm", "ffn.0.output.LayerNorm", "output.LayerNorm"
        ),
        **{"intra_bottleneck_size": 8, "embedding_size": 8, "num_feedforward_networks": 2},
        **MASKED,
    ),
    family(
        "funnel",
        "funnel.embeddings.layer_norm",
        *each("funnel.encoder.blocks.0.0", "attention.layer_norm", "ffn.layer_norm"),
        *each("funnel.decoder.layers.0.attention", "q_head:in", "k_head:in", "v_head:in"),
        *each("funnel.decoder.layers.{}", "attention.layer_norm", "ffn.layer_norm"),
        missed=each("funnel.encoder.blocks.1.0", "attention.q_head", "ffn.linear_1"),  # they read pooled tokens
        warns="(?s).*matrices of this model read hidden",
        **{"block_sizes": [1, 1], "d_inner": 24, "d_head": 4, "n_head": 4},
        **MASKED,
    ),
    family(
        "longformer",
        *post_norm("longformer"),
        extra="back",
        attention_window=8,
        max_position_embeddings=80,
        **MASKED,
    ),
    family("big_bird", *post_norm("bert"), attention_type="original_full", sep_token_id=2, **MASKED),
    family("roformer", *post_norm("roformer"), **MASKED),
    family(
        "mpnet",
        "mpnet.embeddings.LayerNorm",
        *each("mpnet.encoder.layer.{}", "attention.LayerNorm", "output.LayerNorm"),
        max_position_embeddings=80,
        **MASKED,
    ),
    family("camembert", *post_norm("roberta"), max_position_embeddings=80, **MASKED),
    family("xlm", *XLM, chained=False, warns=NO_CACHE, **MASKED),
    family("flaubert", *XLM, chained=False, warns=NO_CACHE, **MASKED),
    family("nystromformer", *post_norm("nystromformer"), **MASKED),
    family("convbert", *post_norm("convbert"), **MASKED),
    family("fnet", "fnet.encoder.layer.{}.fourier.output.LayerNorm", **MASKED),
    family(
        "esm",
        *each("esm.encoder.layer.{}", "attention.LayerNorm", "LayerNorm"),
        position_embedding_type="rotary",
        **MASKED,
    ),
    family("rembert", "rembert.encoder.layer.0.attention.self:in", *post_norm("rembert")[1:], **MASKED),
    family("megatron-bert", *each("bert.encoder.layer.{}", "attention.ln", "ln"), **MASKED),
    # Encoders alone, and whole encoder-decoders.
    family("t5 encoder", *T5_ENCODER, head="T5EncoderModel"),
    family("mt5 encoder", *T5_ENCODER, head="MT5EncoderModel"),
    family("umt5 encoder", *T5_ENCODER, head="UMT5EncoderModel"),
    family("t5", *T5, **BOTH),
    family("umt5", *T5, **BOTH),
    family("switch_transformers", *T5, **BOTH),
    family("bart", *BART, **BOTH),
    family("plbart", *BART, **BOTH),
    family(
        "marian",
        *each("model", "encoder.layers.0.self_attn:in", *ENCODER, "decoder.layers.0.self_attn:in", *DECODER),
        **BOTH,
    ),
    family("mbart", *MBART, **BOTH),
    family("pegasus", *MBART, **BOTH),
    family("m2m_100", *MBART, **BOTH),
    family("blenderbot", *MBART, **BOTH),
    # Images and sound.
    family("vit", *VIT, head="ViTModel", extra="front"),
    family("deit", *VIT, head="DeiTModel", extra="front"),
    family("beit", *VIT, head="BeitModel", extra="front"),
    family("dinov2", *each("encoder.layer.{}", "norm1", "norm2"), head="AutoModel", extra="front"),
    family("clip_vision_model", *CLIP, head="CLIPVisionModel", extra="front"),
    family("siglip_vision_model", *CLIP, head="SiglipVisionModel"),
    family("wav2vec2", *WAVES, **CONVOLUTIONS),
    family("hubert", *WAVES, **CONVOLUTIONS),
    family("wavlm", *WAVES, **CONVOLUTIONS),
    family("whisper", *ENCODER, "encoder.layer_norm", *DECODER, **WHISPER),
    family("whisper encoder", *each("layers.{}", "self_attn_layer_norm", "final_layer_norm"), **WHISPER),
]
TABLE = {found.name: found for found in FAMILIES}
QUICK = [
    *(
        "gpt_neox",
        "llama",
        "opt post-norm",
        "falcon grouped",
        "olmo2",
        "bert",
        "modernbert",
        "qwen2_moe",
        "gemma3n_text",
    ),
    *("rwkv", "zamba2", "albert groups", "funnel", "longformer", "xlm", "t5 encoder", "t5", "bart", "vit", "wav2vec2"),
    "whisper encoder",
]
