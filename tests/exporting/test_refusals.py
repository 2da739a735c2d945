"""What fold and to_lora refuse, and that the model is then as it was."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import transformers as t
from architectures import batches, build
from exported import DATA, GROUPED, POST_NORM, hooked_logits, is_untouched, logits, relative, reloaded, scrubbed, state
from peft import PeftModel

import excise
from excise.errors import ConceptError, ExciseError, ExciseWarning


def refused(scrubber, model, tmp_path, code, message, kind=ExciseError):
    """Both ways out are refused, and nothing is changed or written."""
    before = state(model)
    for way in (lambda: scrubber.fold(model), lambda: scrubber.to_lora(model, tmp_path / "adapter")):
        with pytest.raises(kind, match=message) as caught:
            way()
        assert caught.value.code == code or (code is None and caught.value.code == "another-model")
    assert is_untouched(model, before)
    assert not (tmp_path / "adapter").exists()


@pytest.mark.parametrize("name", POST_NORM)
def test_the_residual_stream_reads_a_post_norm_site(name, tmp_path):
    model, scrubber = scrubbed(name)
    refused(
        scrubber, model, tmp_path, "cannot-fold", r"(?s)not read by linear layers alone.*add in .*linear layers .*0\."
    )


def test_the_refusal_names_all_readers_and_other_ways(tmp_path):
    model, scrubber = scrubbed("modernbert")
    message = (
        r"(?s)model\.embeddings\.norm: add in model\.layers\.0; and by the linear layers model\.layers\.0\.attn\.Wqkv\n"
        r".*scrubber\.attached.*sites=\['model\.layers\.0\.attn:in'\]"
    )
    refused(scrubber, model, tmp_path, "cannot-fold", message)


@pytest.mark.parametrize(
    ("sites", "reader"), [("residual", "input_layernorm"), (("model.layers.0.mlp.act_fn",), "mul in")]
)
def test_a_nonlinear_reader(sites, reader, tmp_path):
    model = build("llama").float()
    scrubber = excise.scrub(model, DATA, sites=sites if isinstance(sites, str) else list(sites), progress=False)
    refused(scrubber, model, tmp_path, "cannot-fold", reader)


def test_the_output_of_the_model_is_a_reader(tmp_path):
    model = t.AutoModel.from_config(t.LlamaConfig(**GROUPED)).eval()
    scrubber = excise.scrub(model, DATA, sites=["norm"], affine=False, progress=False)
    refused(scrubber, model, tmp_path, "cannot-fold", "the output of the model itself; by no linear layer")


def test_another_model(tmp_path):
    _, scrubber = scrubbed("llama")
    refused(
        scrubber,
        build("gpt_neox").float(),
        tmp_path,
        None,
        "was fitted on a LlamaForCausalLM, got a GPTNeoXForCausalLM",
    )
    refused(scrubber, build("llama", seed=1).float(), tmp_path, None, "with other weights")
    wider = t.LlamaForCausalLM(t.LlamaConfig(**{**GROUPED, "intermediate_size": 32})).eval()
    refused(scrubber, wider, tmp_path, None, "parameters of other shapes")


def test_folding_twice(tmp_path):
    model, scrubber = scrubbed("llama")
    scrubber.fold(model)
    message = "folded into this model already.*leace.*sites: 4.*both concepts jointly"
    refused(scrubber, model, tmp_path, "folded-already", message)
    # It is known after loading too, and a scrubber that was fitted on the folded model is refused as well.
    model.save_pretrained(tmp_path / "folded")
    again = reloaded("llama", tmp_path / "folded")
    refused(scrubber, again, tmp_path, "folded-already", message)
    second = excise.scrub(again, batches(8, 8, classes=2), affine=False, progress=False)
    refused(second, again, tmp_path, "folded-already", message)


def test_erasers_that_are_no_fixed_affine_map(tmp_path):
    model = build("llama")
    for method, code, message, kind in (
        ("oracle", "needs-labels", "oracle scrubber needs the label of every token", ConceptError),
        ("random", "not-affine", "RandomEraser, which is drawn anew", ExciseError),
    ):
        refused(excise.scrub(model, DATA, method, progress=False), model, tmp_path, code, message, kind)
    _, scrubber = scrubbed("llama")
    unit = {path: dataclasses.replace(eraser, normalize=True) for path, eraser in scrubber.erasers.items()}
    refused(dataclasses.replace(scrubber, erasers=unit), model, tmp_path, "not-affine", "normalize=True.*no affine map")
    nothing = {
        path: dataclasses.replace(eraser, left=eraser.left[:, :0], right=eraser.right[:, :0])
        for path, eraser in scrubber.erasers.items()
    }
    refused(
        dataclasses.replace(scrubber, erasers=nothing), model, tmp_path, "rank-zero", "changes nothing at its 4 sites"
    )


def test_weights_that_are_not_here(tmp_path):
    model, scrubber = scrubbed("llama")
    with torch.device("meta"):
        empty = t.LlamaForCausalLM(model.config)
    for way in (scrubber.fold, lambda m: scrubber.to_lora(m, tmp_path / "adapter")):
        with pytest.raises(ExciseError, match=r"embed_tokens\.weight is on the meta device") as caught:
            way(empty)
        assert caught.value.code == "no-weights"
    model.hf_device_map = {"model.layers.0": "cpu", "model.layers.1": 0}
    refused(scrubber, model, tmp_path, "sharded", "spread over 0, cpu: load it on one device")


def test_wrapped_models(tmp_path):
    model, scrubber = scrubbed("llama", affine=False)
    scrubber.to_lora(model, tmp_path / "first")
    for wrapped, code in (
        (torch.nn.DataParallel(model), "sharded"),
        (torch.compile(model, backend="eager"), "wrapped"),
        (PeftModel.from_pretrained(model, tmp_path / "first"), "adapter"),
        (model, "adapter"),  # PEFT puts its layers into the model itself
    ):
        for way in (scrubber.fold, lambda m: scrubber.to_lora(m, tmp_path / "adapter")):
            with pytest.raises(ExciseError) as caught:
                way(wrapped)
            assert caught.value.code == code
    assert not (tmp_path / "adapter").exists()


@pytest.mark.parametrize("part", ["left", "center"])
def test_numbers_that_are_not_finite(part, tmp_path):
    model, scrubber = scrubbed("llama")
    last = list(scrubber.erasers)[-1]
    broken = getattr(scrubber.erasers[last], part).copy()
    broken[0] = np.nan
    erasers = {**scrubber.erasers, last: dataclasses.replace(scrubber.erasers[last], **{part: broken})}
    refused(
        dataclasses.replace(scrubber, erasers=erasers),
        model,
        tmp_path,
        "not-finite",
        r"layers\.1\.mlp\.gate_proj is not finite",
    )


def test_an_edit_beyond_the_range_of_the_dtype():
    model, scrubber = scrubbed("gpt_neox", affine=False, dtype=torch.float16)
    last = list(scrubber.erasers)[-1]
    huge = dataclasses.replace(scrubber.erasers[last], left=scrubber.erasers[last].left * 1e7)
    before = state(model)
    with (
        pytest.warns(ExciseWarning, match="lengthens some differences"),
        pytest.raises(ExciseError, match=r"dense_h_to_4h leave the range of torch\.float16"),
    ):
        dataclasses.replace(scrubber, erasers={**scrubber.erasers, last: huge}).fold(model)
    assert is_untouched(model, before)


def test_a_layer_that_is_used_twice(tmp_path):
    model = build("llama").float()
    model.model.layers[1].self_attn.q_proj = model.model.layers[0].self_attn.q_proj
    scrubber = excise.scrub(model, DATA, affine=False, progress=False)
    refused(scrubber, model, tmp_path, "shared-weights", "q_proj runs 2 times in one forward pass")


def test_a_weight_that_two_layers_share():
    model = build("llama").float()
    model.model.layers[1].mlp.up_proj.weight = model.model.layers[0].mlp.up_proj.weight
    scrubber = excise.scrub(model, DATA, affine=False, progress=False)
    before = state(model)
    with pytest.raises(
        ExciseError, match=r"0\.mlp\.up_proj shares its weight with model\.layers\.1\.mlp\.up_proj"
    ) as caught:
        scrubber.fold(model)
    assert caught.value.code == "shared-weights"
    assert is_untouched(model, before)


def tied():
    torch.manual_seed(0)
    model = t.LlamaForCausalLM(t.LlamaConfig(**GROUPED, tie_word_embeddings=True)).eval()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    return model


def test_a_head_that_is_tied_to_the_embeddings_is_untied(tmp_path):
    model = tied()
    scrubber = excise.scrub(model, DATA, sites=["model.norm"], affine=False, progress=False)
    embeddings, hooked, base = model.model.embed_tokens.weight.clone(), hooked_logits(model, scrubber), logits(model)
    scrubber.fold(model)
    assert torch.equal(model.model.embed_tokens.weight, embeddings)
    assert relative(hooked, base) > 0.05
    assert relative(logits(model), hooked) < 1e-5
    model.save_pretrained(tmp_path)
    again = reloaded("llama", tmp_path)
    assert again.config.tie_word_embeddings is False
    assert torch.equal(logits(again), logits(model))


def test_a_head_has_no_slot_for_a_bias():
    model = tied()
    scrubber = excise.scrub(model, DATA, sites=["model.norm"], progress=False)
    before = state(model)
    with pytest.raises(ExciseError, match="lm_head have no bias"):
        scrubber.fold(model)
    assert is_untouched(model, before)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_two_sites_on_one_tensor(tmp_path):
    model = build("llama").float()
    sites = ["model.layers.0.post_attention_layernorm", "model.layers.0.mlp:in"]
    scrubber = excise.scrub(model, DATA, sites=sites, affine=False, progress=False)
    refused(scrubber, model, tmp_path, "cannot-fold", "two sites on the same tensor")


class Doubled(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).tanh()


def test_a_linear_layer_with_a_forward_of_its_own(tmp_path):
    model = build("llama").float()
    old = model.model.layers[1].mlp.up_proj
    model.model.layers[1].mlp.up_proj = Doubled(old.in_features, old.out_features, bias=False)
    scrubber = excise.scrub(model, DATA, affine=False, progress=False)
    refused(scrubber, model, tmp_path, "cannot-fold", "up_proj, a Doubled that does not compute W x")


def test_experts_are_refused(tmp_path):
    torch.manual_seed(0)
    config = t.MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=1)
    model = t.MixtralForCausalLM(config).eval()
    scrubber = excise.scrub(model, DATA, affine=False, progress=False)
    refused(scrubber, model, tmp_path, "cannot-fold", r"(?s)not read by linear layers alone.*mlp")


def test_an_eraser_that_multiplies_rounding_errors_is_told():
    model, scrubber = scrubbed("gpt2", affine=False)
    first = next(iter(scrubber.erasers))
    steep = dataclasses.replace(scrubber.erasers[first], right=scrubber.erasers[first].right * 1e6)
    with pytest.warns(ExciseWarning, match=r"lengthens some differences .*steep-edit"):
        dataclasses.replace(scrubber, erasers={**scrubber.erasers, first: steep}).fold(model)
