"""Causal or masked: by class where that is enough, by a trial that allows for rounding elsewhere."""

from __future__ import annotations

import pytest
import torch
import transformers as t

from excise.errors import InputError
from excise.measuring.kinds import _by_trial, check_kind, kind_of

SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
IDS = {"input_ids": torch.arange(3, 23)[None]}


@pytest.mark.parametrize("seed", range(3))
def test_experts_in_float32_are_causal(seed):
    torch.manual_seed(seed)
    model = t.MixtralForCausalLM(t.MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=4)).eval()
    assert kind_of(model, IDS) == _by_trial(model, IDS) == "causal"
    assert _by_trial(model.to(torch.bfloat16), IDS) == "causal"


def test_classes_that_can_be_either():
    torch.manual_seed(0)
    for decoder, kind in ((True, "causal"), (False, "masked")):
        model = t.BertLMHeadModel(t.BertConfig(**SMALL, is_decoder=decoder)).eval()
        assert kind_of(model, IDS) == kind
        assert kind_of(model.to(torch.bfloat16), IDS) == kind
    model = t.BertForMaskedLM(t.BertConfig(**SMALL)).eval()
    assert kind_of(model, IDS) == _by_trial(model, IDS) == "masked"
    assert kind_of(torch.compile(model, backend="eager"), IDS) == "masked"


def test_kinds_are_checked():
    assert check_kind(None) is None
    with pytest.raises(InputError, match="causal or masked, got 'both'"):
        check_kind("both")
    with pytest.raises(InputError, match="one token each"):
        _by_trial(
            t.BertLMHeadModel(t.BertConfig(**SMALL, is_decoder=True)), {"input_ids": torch.ones(1, 1, dtype=torch.long)}
        )
