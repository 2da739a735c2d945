"""One edit in every form: hooks, weights, weights saved and loaded by stock Transformers, LoRA on, LoRA merged."""

from __future__ import annotations

import architectures
import brute_force
import pytest
import torch
from exported import (
    DATA,
    PRE_NORM,
    RELATIVE,
    SLOTS,
    generated,
    hooked_logits,
    is_untouched,
    logits,
    relative,
    reloaded,
    scrubbed,
    state,
)
from measure import correlation, one_hot
from peft import PeftModel

import excise
from excise.errors import ExciseError


@pytest.mark.parametrize("affine", [False, True], ids=["no mean", "mean kept"])
@pytest.mark.parametrize("name", PRE_NORM)
@pytest.mark.filterwarnings("ignore:`lora_bias=True` was passed")
def test_every_form_computes_the_same(name, affine, tmp_path):
    model, scrubber = scrubbed(name, affine)
    before = state(model)
    base, hooked = logits(model), hooked_logits(model, scrubber)
    with scrubber.attached(model):
        tokens = generated(model)
    assert relative(hooked, base) > 0.1
    assert tokens != generated(model)

    scrubber.to_lora(model, tmp_path / "adapter")
    assert is_untouched(model, before)
    adapted = PeftModel.from_pretrained(model, tmp_path / "adapter")
    assert relative(logits(adapted), hooked) < RELATIVE
    assert generated(adapted) == tokens
    with adapted.disable_adapter():
        assert torch.equal(logits(adapted), base)
    slots = not affine or name in SLOTS
    if not affine or SLOTS.get(name) == []:
        assert relative(logits(adapted.merge_and_unload(safe_merge=True)), hooked) < RELATIVE
    else:
        with pytest.raises(RuntimeError, match="base layer has no bias"):
            adapted.merge_and_unload()

    model, _ = scrubbed(name, affine)
    if not slots:
        with pytest.raises(ExciseError, match=r"have no bias.*affine=False.*guards just as exactly") as caught:
            scrubber.fold(model)
        assert caught.value.code == "no-bias-slot"
        assert is_untouched(model, before)
        return
    assert scrubber.fold(model) is model
    assert relative(logits(model), hooked) < RELATIVE
    assert generated(model) == tokens
    model.save_pretrained(tmp_path / "folded")
    again = reloaded(name, tmp_path / "folded")
    assert type(again) is type(model)
    assert torch.equal(logits(again), logits(model))
    assert generated(again) == tokens
    turned_on = [key for key, value in again.config.to_dict().items() if value is True and before[1].get(key) is False]
    assert turned_on == (SLOTS[name] if affine else [])


@pytest.mark.parametrize(
    ("name", "sites", "readers"),
    [
        (
            "llama",
            "model.layers.1.input_layernorm",
            ["model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"],
        ),
        ("gpt2", "transformer.h.1.ln_2", ["transformer.h.1.mlp.c_fc"]),
        ("falcon", "transformer.h.0.input_layernorm", ["transformer.h.0.mlp.dense_h_to_4h"]),
        ("olmo2", "model.layers.1.mlp:in", ["model.layers.1.mlp.gate_proj"]),
    ],
)
def test_the_concept_is_gone_from_what_the_layers_give_out(name, sites, readers):
    model, scrubber = scrubbed(name, affine=False, dtype=torch.float64)
    Z = one_hot(brute_force.labels(DATA))
    clean = {path: brute_force.activations(model, DATA, path, {}) for path in readers}
    at_site = brute_force.activations(model, DATA, sites, {})
    scrubber.fold(model)
    for path in readers:
        assert correlation(clean[path], Z) > 0.05
        assert correlation(brute_force.activations(model, DATA, path, {}), Z) < 1e-10, path
    # The tensor of the site itself is not erased any more: only its readers do not see the concept.
    assert correlation(at_site, Z) > 0.02
    assert correlation(brute_force.activations(model, DATA, sites, {}), Z) > 0.02


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(
    ("name", "sites"),
    [
        ("modernbert", ("model.layers.*.attn:in", "model.layers.*.mlp:in")),
        ("bert", ("bert.encoder.layer.*.attention.self:in", "bert.encoder.layer.*.intermediate:in")),
    ],
)
def test_what_the_sublayers_of_an_encoder_read_can_be_folded(name, sites, affine, tmp_path):
    model, scrubber = scrubbed(name, affine, sites)
    base, hooked = logits(model), hooked_logits(model, scrubber)
    scrubber.fold(model).save_pretrained(tmp_path)
    again = logits(reloaded(name, tmp_path))
    assert relative(hooked, base) > 0.05
    assert relative(again, hooked) < RELATIVE


def test_a_model_of_the_same_configuration_object_is_not_changed():
    model, scrubber = scrubbed("llama")
    other = type(model)(model.config).eval()
    assert other.config is model.config
    before = state(other)
    scrubber.fold(model)
    assert is_untouched(other, before)
    assert model.config.attention_bias
    assert model.config is model.model.config is model.model.layers[0].self_attn.config


def test_computed_in_float64_and_rounded_once():
    """Against the float64 model folded and then cast: the weights agree to one rounding, in 16 bits too."""
    for dtype, unit in ((torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11)):
        model, scrubber = scrubbed("gpt_neox", dtype=dtype)
        exact, _ = scrubbed("gpt_neox", dtype=dtype)
        scrubber.fold(model)
        scrubber.fold(exact.double())
        for name, value in model.state_dict().items():
            wide = exact.state_dict()[name]
            assert value.dtype == dtype
            assert bool(((value.double() - wide).abs() <= unit * wide.abs() + 1e-7).all()), name


def causal(name):
    family = architectures.TABLE[name]
    return getattr(family, "head", "AutoModelForCausalLM") == "AutoModelForCausalLM" and "bert" not in name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::excise.errors.ExciseWarning")
@pytest.mark.parametrize("name", [name for name in architectures.TABLE if name not in PRE_NORM and causal(name)])
def test_every_other_family_is_exact_or_refused(name, tmp_path):
    """Never something in between. In float64, so that only the algebra counts; but some norms compute in float32."""
    model = architectures.build(name)
    scrubber = excise.scrub(model, DATA, affine=False, progress=False)
    before, base, hooked = state(model), logits(model), hooked_logits(model, scrubber)
    refusal = None
    try:
        scrubber.fold(model)
    except ExciseError as error:
        refusal = error.code
    print(f"{name}: {refusal or 'folded'}")
    if refusal is not None:
        assert refusal in ("cannot-fold", "shared-weights", "not-reached")
        assert is_untouched(model, before)
        return
    assert relative(hooked, base) > 1e-3
    assert relative(logits(model), hooked) < (1e-6 if model.dtype == torch.float64 else RELATIVE)
