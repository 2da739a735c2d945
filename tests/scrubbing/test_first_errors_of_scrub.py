"""The likeliest first mistakes with language models, and what the message must say."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
import transformers

import excise

torch.manual_seed(0)
MODEL = transformers.LlamaForCausalLM(
    transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
).eval()
OTHER = transformers.LlamaForCausalLM(
    transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
).eval()
IDS = torch.randint(0, 40, (6, 4, 10), generator=torch.Generator().manual_seed(0))
GOOD = [{"input_ids": ids, "concept": ids % 2} for ids in IDS]


def scrub(batches=GOOD, model=MODEL, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return excise.scrub(model, batches, progress=False, **options)


MISTAKES = {
    "labels forgotten": (lambda: scrub([{"input_ids": ids} for ids in IDS]), "concept"),
    "labels of another length": (
        lambda: scrub([{"input_ids": ids, "concept": ids[:, 1:] % 2} for ids in IDS]),
        "shape|labels",
    ),
    "tokens forgotten": (lambda: scrub([{"concept": ids % 2} for ids in IDS]), "input_ids"),
    "no batches": (lambda: scrub([]), "no batches|empty"),
    "a generator, which ends after one pass": (lambda: scrub(batch for batch in GOOD), "again|once|list"),
    "one batch in place of a list": (lambda: scrub(GOOD[0]), "batch|dict"),
    "one class only": (lambda: scrub([{"input_ids": ids, "concept": ids * 0} for ids in IDS]), "one class"),
    "every label ignored": (lambda: scrub([{"input_ids": ids, "concept": ids * 0 - 100} for ids in IDS]), "-100|label"),
    "float labels": (lambda: scrub([{"input_ids": ids, "concept": (ids % 3) * 1.0} for ids in IDS]), "concept|label"),
    "misspelt method": (lambda: scrub(method="leece"), "leace"),
    "wrong layer name": (lambda: scrub(sites=["model.layers.0.mpl"]), r"mpl"),
    "layer that the model does not have": (lambda: scrub(sites=[7]), "7"),
    "unknown cache": (lambda: scrub(cache="memory"), "auto.*ram|cache"),
    "nothing to evaluate on": (lambda: excise.evaluate(MODEL, []), "no batches|empty"),
    "scrubber of another model": (lambda: scrub().attached(OTHER).__enter__(), "another"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_message(name):
    mistake, message = MISTAKES[name]
    with pytest.raises((ValueError, OSError)) as found:
        mistake()
    assert isinstance(found.value, excise.ExciseError | OSError), f"{type(found.value).__name__}: {found.value}"
    assert re.search(message, str(found.value), re.DOTALL), str(found.value)


def test_without_a_mistake():
    assert len(scrub().erasers) == 4
