"""The same model, wrapped: compiled, with adapters, saved while attached, or with its weights elsewhere."""

from __future__ import annotations

import brute_force
import numpy as np
import pytest
import torch
from architectures import batches, build
from measure import correlation, one_hot

import excise

SITE = "model.layers.1.post_attention_layernorm"


@pytest.fixture(scope="module")
def data():
    return batches()


@pytest.fixture(scope="module")
def scrubber(data):
    return excise.scrub(build("llama"), data, progress=False, shrinkage="none")


def logits(model, batch):
    with torch.no_grad():
        return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits


def in_place(model):
    model.compile(backend="eager")
    return model


@pytest.mark.parametrize(
    "compiled", [in_place, lambda model: torch.compile(model, backend="eager")], ids=["compile()", "torch.compile"]
)
def test_compiled_models_are_scrubbed_and_attached(compiled, data, scrubber):
    plain, model = build("llama"), compiled(build("llama"))
    clean = logits(model, data[0])  # compiled by now
    with scrubber.attached(plain):
        expected = logits(plain, data[0])
    with scrubber.attached(model):
        found = logits(model, data[0])
    assert torch.allclose(found, expected, rtol=1e-10)
    assert not torch.allclose(found, clean, rtol=1e-3)
    assert torch.allclose(logits(model, data[0]), clean, rtol=1e-10)
    again = excise.scrub(model, data, progress=False, shrinkage="none")
    assert list(again.erasers) == list(scrubber.erasers)
    assert np.allclose(again.erasers[SITE].P, scrubber.erasers[SITE].P)


def test_a_forward_pass_without_hooks_is_an_error(data, scrubber, monkeypatch):
    model = build("llama")
    monkeypatch.setattr("excise.scrubbing.scrubber.hooked", lambda *_: pytest.MonkeyPatch().context())
    monkeypatch.setattr("excise.scrubbing.scrubber.Attachment._short", lambda *_: lambda *_: None)
    with pytest.raises(excise.ExciseError, match="not one of its 4 hooks"), scrubber.attached(model):
        logits(model, data[0])
    with scrubber.attached(model):
        pass  # nothing ran: nothing to say


def test_saving_while_attached_warns(tmp_path, scrubber):
    model = build("llama")
    with scrubber.attached(model), pytest.warns(excise.ExciseWarning, match="writes the clean model.*fold"):
        model.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)  # warnings are errors here
    assert "save_pretrained" not in model.__dict__


def test_an_adapter_around_the_model_is_the_same_model_until_it_changes_it(data, scrubber):
    peft = pytest.importorskip("peft")
    base = build("llama")
    wrapped = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj"], r=2))
    with scrubber.attached(wrapped):
        rows = brute_force.activations(base, data, SITE, {})
    assert correlation(rows, one_hot(brute_force.labels(data))) < 1e-8
    ours = excise.scrub(wrapped, data, progress=False, shrinkage="none")
    assert list(ours.erasers) == list(scrubber.erasers)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.1)
    with pytest.raises(excise.ExciseError, match="without an adapter"), scrubber.attached(wrapped):
        pass


def test_prompt_tuning_is_refused(data):
    peft = pytest.importorskip("peft")
    wrapped = peft.get_peft_model(build("llama"), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    with pytest.raises(excise.InputError, match="virtual tokens"):
        excise.scrub(wrapped, data, progress=False)


def test_what_does_not_change_the_sites_is_the_same_model(data, scrubber):
    model = build("llama")
    model.config.pad_token_id, model.config.transformers_version = 7, "0.1"
    model.resize_token_embeddings(60, mean_resizing=False)
    with scrubber.attached(model):
        logits(model, data[0])


def test_what_changes_them_is_another_model(scrubber):
    model = build("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.mul_(1.5)
    with pytest.raises(excise.ExciseError, match="other weights"), scrubber.attached(model):
        pass
    model = build("llama")
    model.config.rms_norm_eps = 0.5
    with pytest.raises(excise.ExciseError, match="rms_norm_eps was"), scrubber.attached(model):
        pass


def test_weights_that_are_not_in_memory_are_refused(data, scrubber):
    model = build("llama").to("meta")
    for call in (lambda: excise.scrub(model, data, progress=False), lambda: scrubber.attached(model).__enter__()):
        with pytest.raises(excise.ExciseError, match="meta device"):
            call()


def test_positions_and_types_count_in_the_fingerprint():
    model, data = build("bert"), batches()
    kinds = [{**batch, "token_type_ids": torch.zeros_like(batch["input_ids"])} for batch in data]
    other = [{**batch, "token_type_ids": torch.ones_like(batch["input_ids"])} for batch in data]
    first, second = (excise.scrub(model, d, sites=[0], progress=False, shrinkage="none") for d in (kinds, other))
    assert first.about["arguments"]["data"] != second.about["arguments"]["data"]
