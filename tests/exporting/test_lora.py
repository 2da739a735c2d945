"""Adapters: what is in the file, one at a time, quantised models, features that an eraser empties."""

from __future__ import annotations

import dataclasses
import json
import warnings

import brute_force
import numpy as np
import pytest
import torch
import transformers as t
from architectures import build
from exported import DATA, GROUPED, RELATIVE, hooked_logits, is_untouched, logits, relative, scrubbed, state
from measure import correlation, one_hot
from peft import PeftModel
from safetensors.torch import load_file

import excise
from excise.errors import ExciseError, FileFormatError
from excise.exporting.quantised import weight_of


def test_without_a_mean_it_is_the_plain_lora_that_servers_accept(tmp_path):
    """vLLM and llama.cpp's converter take lora_A and lora_B weights of one rank, and no biases, DoRA or saved modules."""
    model, scrubber = scrubbed("llama", affine=False)
    first = next(iter(scrubber.erasers))  # one eraser of a smaller rank: the file is padded
    smaller = dataclasses.replace(
        scrubber.erasers[first], left=scrubber.erasers[first].left[:, :1], right=scrubber.erasers[first].right[:, :1]
    )
    scrubber = dataclasses.replace(scrubber, erasers={**scrubber.erasers, first: smaller})
    hooked = hooked_logits(model, scrubber)
    assert scrubber.to_lora(model, tmp_path / "a") == tmp_path / "a"
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text(encoding="utf-8"))
    expected = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 2,
        "lora_alpha": 2,
        "lora_bias": False,
        "bias": "none",
        "use_dora": False,
        "use_rslora": False,
        "modules_to_save": None,
        "fan_in_fan_out": False,
        "rank_pattern": {},
        "alpha_pattern": {},
        "lora_dropout": 0.0,
    }
    assert {name: config[name] for name in expected} == expected
    assert sorted(config["target_modules"]) == ["gate_proj", "k_proj", "q_proj", "up_proj", "v_proj"]
    tensors = load_file(tmp_path / "a" / "adapter_model.safetensors")
    assert len(tensors) == 2 * 5 * 2
    for name, value in tensors.items():
        module = model.get_submodule(name.removeprefix("base_model.model.").rsplit(".lora_", 1)[0])
        shapes = {"A": (2, module.in_features), "B": (module.out_features, 2)}
        assert name.endswith((".lora_A.weight", ".lora_B.weight"))
        assert tuple(value.shape) == shapes[name.rsplit(".lora_", 1)[1][0]]
        assert value.dtype == torch.float32
    assert relative(logits(PeftModel.from_pretrained(model, tmp_path / "a")), hooked) < RELATIVE


def test_layers_of_which_only_some_are_read_are_named_in_full(tmp_path):
    model, scrubber = scrubbed("llama", affine=False)
    site = "model.layers.1.input_layernorm"
    scrubber = dataclasses.replace(scrubber, erasers={site: scrubber.erasers[site]})
    hooked = hooked_logits(model, scrubber)
    scrubber.to_lora(model, tmp_path / "a")
    adapted = PeftModel.from_pretrained(model, tmp_path / "a")
    assert {f"model.layers.1.self_attn.{name}_proj" for name in "qkv"} == adapted.peft_config["default"].target_modules
    assert relative(logits(adapted), hooked) < RELATIVE


def test_two_active_adapters_guard_neither_concept(tmp_path):
    """Each alone guards its own; both together guard neither; one joint adapter guards both."""
    model, _ = scrubbed("gpt_neox", affine=False, dtype=torch.float64)
    site, reader = "gpt_neox.layers.0.input_layernorm", "gpt_neox.layers.0.attention.query_key_value"
    other = [{**batch, "concept": torch.where(batch["concept"] < 0, -100, batch["input_ids"] % 2)} for batch in DATA]
    both = [
        {**batch, "concept": torch.where(batch["concept"] < 0, -100, batch["concept"] * 2 + more["concept"])}
        for batch, more in zip(DATA, other, strict=True)
    ]
    Z = {name: one_hot(brute_force.labels(data)) for name, data in (("first", DATA), ("second", other))}
    for name, data in (("first", DATA), ("second", other), ("joint", both)):
        made = excise.scrub(model, data, sites=[site], affine=False, progress=False)
        made.to_lora(model, tmp_path / name)
    adapted = PeftModel.from_pretrained(model, tmp_path / "first", adapter_name="first")
    adapted.load_adapter(tmp_path / "second", adapter_name="second")
    adapted.load_adapter(tmp_path / "joint", adapter_name="joint")
    inner = adapted.base_model.model

    def found(*active):
        adapted.base_model.set_adapter(list(active))
        out = brute_force.activations(inner, DATA, reader, {})
        return {name: correlation(out, z) for name, z in Z.items()}

    with adapted.disable_adapter():
        out = brute_force.activations(inner, DATA, reader, {})
        assert min(correlation(out, z) for z in Z.values()) > 0.05
    first, second, together, joint = found("first"), found("second"), found("first", "second"), found("joint")
    assert first["first"] < 1e-10
    assert second["second"] < 1e-10
    assert min(together.values()) > 1e-3
    assert max(joint.values()) < 1e-10


@pytest.mark.filterwarnings("ignore:`lora_bias=True` was passed")
@pytest.mark.parametrize("way", ["fold", "to_lora"])
@pytest.mark.parametrize("inside", [True, False])
def test_features_that_an_eraser_empties(way, inside, tmp_path):
    """P has zero rows there: the features come out as the constant `center`."""
    model, scrubber = scrubbed("gpt_neox")
    path = list(scrubber.erasers)[1]
    eraser = scrubber.erasers[path]
    left, right = eraser.left, eraser.right
    if inside:  # feature 3 is all that the eraser takes away
        left = right = np.eye(eraser.d)[:, [3]]
    emptied = dataclasses.replace(eraser, left=left, right=right, emptied=np.array([3]))
    scrubber = dataclasses.replace(scrubber, erasers={**scrubber.erasers, path: emptied})
    hooked = hooked_logits(model, scrubber)
    if way == "fold":
        found = logits(scrubber.fold(model))
    else:
        scrubber.to_lora(model, tmp_path / "a")
        adapted = PeftModel.from_pretrained(model, tmp_path / "a")
        assert adapted.peft_config["default"].r == (2 if inside else 3)
        found = logits(adapted)
    assert relative(found, hooked) < RELATIVE


def test_folders(tmp_path):
    model, scrubber = scrubbed("llama", affine=False)
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(FileFormatError, match="is a file"):
        scrubber.to_lora(model, tmp_path / "file")
    with pytest.raises(FileFormatError, match="holds other files"):
        scrubber.to_lora(model, tmp_path)
    scrubber.to_lora(model, tmp_path / "a")
    scrubber.to_lora(model, tmp_path / "a")  # over an earlier adapter


def quantised(folder, bits, packed=False):
    """In eval mode bitsandbytes packs 4-bit weights for CPUs with AVX512-bf16, and then computes in bfloat16."""
    how = t.BitsAndBytesConfig(load_in_8bit=bits == 8, load_in_4bit=bits == 4, bnb_4bit_quant_type="nf4")
    model = t.LlamaForCausalLM.from_pretrained(
        folder, quantization_config=how, device_map="cpu", dtype=torch.float32
    ).eval()
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu") and not packed:
            module.support_avx512bf16_for_cpu = False  # the same numbers on every CPU
    return model


@pytest.mark.filterwarnings("ignore:`lora_bias=True` was passed", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(("bits", "close"), [(4, RELATIVE), (8, 0.1)])
def test_quantised_models(bits, close, tmp_path, monkeypatch):
    """4 bits: the adapter does on the dequantised weights what hooks do. 8 bits: up to the rounding of the activations,
    which bitsandbytes quantises too; the model itself moves by as much when it is quantised."""
    pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    model = t.LlamaForCausalLM(t.LlamaConfig(**{**GROUPED, "hidden_size": 64, "intermediate_size": 128})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scrubber = excise.scrub(model.double(), DATA, progress=False)
    model.float().save_pretrained(tmp_path / "model")
    small = quantised(tmp_path / "model", bits)
    base, before = logits(small), state(small)
    with pytest.raises(ExciseError, match=r"is quantised.*Fold the model that was scrubbed.*to_lora") as caught:
        scrubber.fold(small)
    assert caught.value.code == "quantised"
    assert is_untouched(small, before)

    own = dataclasses.replace(scrubber, identity=excise.scrubbing.identity.identify(small, scrubber.erasers))
    hooked = hooked_logits(small, own)
    scrubber.to_lora(small, tmp_path / "adapter")
    assert is_untouched(small, before)
    assert torch.equal(logits(small), base)
    adapted = PeftModel.from_pretrained(small, tmp_path / "adapter")
    assert relative(hooked, base) > 0.3
    assert relative(logits(adapted), hooked) < close


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_weights_that_bitsandbytes_has_packed(tmp_path):
    """Dequantising functions misread the packed layout: an adapter made from it was silently wrong."""
    has_avx512bf16 = pytest.importorskip("bitsandbytes.functional").has_avx512bf16
    if not has_avx512bf16():
        pytest.skip("needs a CPU with AVX512-bf16")
    torch.manual_seed(0)
    config = t.LlamaConfig(**{**GROUPED, "hidden_size": 64, "intermediate_size": 128})
    t.LlamaForCausalLM(config).save_pretrained(tmp_path)
    plain, packed = (quantised(tmp_path, 4, packed=packed) for packed in (False, True))
    twin = quantised(tmp_path, 4, packed=True)
    base = logits(packed)
    assert packed.model.layers[0].mlp.down_proj.weight.quant_state.packing_format_for_cpu
    for path, module in plain.named_modules():
        if isinstance(module, torch.nn.Linear) and path != "lm_head":
            expected = weight_of(module, transposed=False)
            found = weight_of(packed.get_submodule(path), transposed=False)
            # bfloat16 rounds the scale, the code and their product.
            assert (found - expected).abs().max() < 3 * 2**-9 * expected.abs().max()
    assert torch.equal(logits(packed), base)
    assert torch.equal(logits(twin), base)
    assert is_untouched(packed, state(twin))  # state_dict() of bitsandbytes unpacks in place, so it comes last


def test_another_model_in_four_bits_is_refused(tmp_path):
    pytest.importorskip("bitsandbytes")
    build("llama", seed=1).float().save_pretrained(tmp_path / "model")
    _, scrubber = scrubbed("llama")
    with pytest.raises(ExciseError, match="with other weights"):
        scrubber.to_lora(quantised(tmp_path / "model", 4), tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()
