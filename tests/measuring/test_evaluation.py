"""Figures of language models against hand computations over raw text, and against the models' own loss."""

from __future__ import annotations

import math
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
import torch
from language_data import corpus, language_model, pretrained_tokenizer, sentences
from transformers import AutoModel, BertConfig, GPTNeoXConfig, GPTNeoXForCausalLM

import excise
from excise.errors import InputError
from excise.measuring.evaluation import evaluate_each
from excise.measuring.figures import ratio
from excise.measuring.kinds import kind_of
from excise.measuring.unigram import Unigram
from excise.text.corpora import read_labelled
from excise.text.tagging import tag


@cache
def tagged(name, split="test", **how):
    options = {"max_length": 128, **how}
    return tag(
        read_labelled(corpus(), ["upos"], {"split": split}), pretrained_tokenizer(name), progress=False, **options
    )


class Noise:
    """Something with the interface of a scrubber: replaces the output of a block by a part of itself."""

    def __init__(self, path, factor):
        self.path, self.factor = path, factor

    @contextmanager
    def attached(self, model, concept=None, first_draw=0):
        def shrink(module, args, output):
            return (output[0] * self.factor, *output[1:]) if isinstance(output, tuple) else output * self.factor

        handle = model.get_submodule(self.path).register_forward_hook(shrink)
        try:
            yield
        finally:
            handle.remove()


def test_bits_per_byte_by_hand_over_raw_text():
    model, tok = language_model("neox"), pretrained_tokenizer("neox")
    texts = [row["text"] for row in sentences() if row["split"] == "test"][:40]
    nats, size, tokens, hits = 0.0, 0, 0, 0
    with torch.no_grad():
        for text in texts:
            ids = tok(text)["input_ids"]
            logits = model(torch.tensor([[tok.bos_token_id, *ids]])).logits[0].double()
            for position, token in enumerate(ids):
                nats += float(torch.logsumexp(logits[position], 0) - logits[position, token])
                hits += int(logits[position].argmax() == token)
            size += len(text.encode("utf-8"))
            tokens += len(ids)
    found = excise.evaluate(model, tagged("neox")[:40].batches(7))
    assert (found.kind, found.tokens, found.bytes, found.sequences) == ("causal", tokens, size, 40)
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / size, rel=1e-6)
    assert found.loss == pytest.approx(nats / tokens, rel=1e-6)
    assert found.perplexity == pytest.approx(math.exp(nats / tokens), rel=1e-5)
    assert found.accuracy == hits / tokens
    assert 0.3 < found.bits_per_byte < 0.5 * math.log2(len(tok)) * tokens / size  # far better than a guess


@pytest.mark.parametrize("packed", [False, True])
def test_loss_is_the_models_own(packed):
    model = language_model("neox")
    data = tagged("neox", packed=packed)[:12]
    (batch,) = data.batches(12)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    with torch.no_grad():
        own = model(batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
    found = excise.evaluate(model, data.batches(5))
    assert found.loss == pytest.approx(float(own), rel=1e-6)
    assert found.tokens == int((labels[:, 1:] != -100).sum())


def test_masked_loss_is_the_models_own_and_does_not_depend_on_batches():
    model, tok = language_model("bert"), pretrained_tokenizer("bert")
    data = tagged("bert")[:60]
    seen = []

    def spy(module, args, kwargs):
        seen.append(kwargs["input_ids"].clone())

    handle = model.register_forward_pre_hook(spy, with_kwargs=True)
    found = excise.evaluate(model, data.batches(60), kind="masked")
    handle.remove()
    masked, plain = seen
    (batch,) = data.batches(60)
    assert torch.equal(plain, batch["input_ids"])
    chosen = masked != plain
    assert (masked[chosen] == tok.mask_token_id).all()
    assert not (chosen & batch["special"]).any()
    assert 0.10 < chosen.sum() / (~batch["special"]).sum() < 0.20
    for inputs, counted, figures in (
        (masked, chosen, (found.loss, found.accuracy)),
        (plain, ~batch["special"], (found.unmasked_loss, found.unmasked_accuracy)),
    ):
        with torch.no_grad():
            out = model(inputs, attention_mask=batch["attention_mask"])
            # The model's own loss, but added up in float64.
            own = torch.nn.functional.cross_entropy(out.logits[counted].double(), batch["input_ids"][counted])
        assert figures[0] == pytest.approx(float(own), rel=1e-9)
        right = out.logits.argmax(-1)[counted] == batch["input_ids"][counted]
        assert figures[1] == pytest.approx(float(right.double().mean()))
    assert found.unmasked_accuracy > 0.9 > 0.6 > found.accuracy > 0.2
    assert found.bits_per_byte is None
    again = excise.evaluate(model, data.batches(7))
    assert again.kind == "masked"  # found by itself
    assert again.tokens == found.tokens
    assert again.loss == pytest.approx(found.loss, rel=1e-5)
    other = excise.evaluate(model, data.batches(60), seed=1)
    assert other.loss != found.loss


def test_kl_and_labels_by_hand():
    model = language_model("neox")
    data = tagged("neox")[:10]
    scrubber = Noise("gpt_neox.layers.1", 0.2)
    (batch,) = data.batches(10)
    with torch.no_grad():
        clean = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits.double().log_softmax(-1)
        with scrubber.attached(model):
            after = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits.double().log_softmax(-1)
    where = batch["attention_mask"][:, 1:].bool()
    kl = (clean.exp() * (clean - after)).sum(-1)[:, :-1][where].mean()
    target = batch["input_ids"][:, 1:]
    nats = -after[:, :-1].gather(2, target[..., None])[..., 0]
    found = excise.evaluate(model, data.batches(4), scrubber)
    assert found.kl == pytest.approx(float(kl), rel=1e-5)
    assert found.kl > 0.1
    assert found.loss == pytest.approx(float(nats[where].mean()), rel=1e-6)
    labels = batch["concept"][:, 1:]
    assert len(found.by_label) > 8
    for figures in found.by_label:
        of = where & (labels == data.names["upos"].index(figures.label))
        assert figures.tokens == int(of.sum())
        assert figures.loss == pytest.approx(float(nats[of].mean()), rel=1e-5)
    table = evaluate_each(model, data.batches(4), {"none": None, "half": scrubber})
    assert table["half"].loss == pytest.approx(found.loss, rel=1e-6)
    assert table["none"].loss == pytest.approx(excise.evaluate(model, data.batches(10)).loss, rel=1e-6)
    assert table["none"].kl is None


def test_unigram_by_hand():
    tok = pretrained_tokenizer("neox")
    fit, held = tagged("neox", "dev"), tagged("neox")[:30]
    counts = np.ones(len(tok))
    for row in sentences():
        if row["split"] == "dev":
            for token in tok(row["text"])["input_ids"]:
                counts[token] += 1
    p = counts / counts.sum()
    baseline = Unigram.fit(fit.batches(64), len(tok))
    table = evaluate_each(language_model("neox"), held.batches(8), {"none": None}, baseline)
    texts = [row["text"] for row in sentences() if row["split"] == "test"][:30]
    tokens = [token for text in texts for token in tok(text)["input_ids"]]
    bits = -np.log2(p[tokens]).sum() / len("".join(texts).encode())
    assert table["unigram"].bits_per_byte == pytest.approx(bits, rel=1e-9)
    assert table["unigram"].bits_per_byte > table["none"].bits_per_byte + 0.5
    # add-one smoothing gives a probability to all
    assert np.exp(baseline.log_probabilities).sum() == pytest.approx(1.0)


def test_standard_error_of_a_ratio_is_the_jackknifes(rng):
    x = rng.integers(1, 60, 400).astype(float)
    y = 3.0 * x + rng.standard_normal(400) * np.sqrt(x) * 4
    value, error = ratio(y, x)
    left_out = (y.sum() - y) / (x.sum() - x)
    jackknife = math.sqrt(399 / 400 * ((left_out - left_out.mean()) ** 2).sum())
    assert value == pytest.approx(y.sum() / x.sum())
    assert error == pytest.approx(jackknife, rel=0.01)
    assert ratio([1.0], [2.0]) == (0.5, None)
    assert ratio([0.0], [0.0]) == (None, None)


def test_tables_are_written(tmp_path):
    model, data = language_model("neox"), tagged("neox")[:6]
    found = excise.evaluate(model, data.batches(3))
    found.to_json(tmp_path / "e.json")
    found.to_csv(tmp_path / "e.csv")
    assert f'"bits_per_byte": {found.bits_per_byte!r}' in (tmp_path / "e.json").read_text(encoding="utf-8")
    header, line = (tmp_path / "e.csv").read_text(encoding="utf-8").splitlines()
    assert dict(zip(header.split(","), line.split(","), strict=True))["tokens"] == str(found.tokens)
    assert f"| none | {found.bits_per_byte:.3f} ± {found.bits_per_byte_se:.3f} |" in str(found)
    assert "| NOUN |" in found.to_markdown()


def tiny(**more):
    config = GPTNeoXConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, **more
    )
    torch.manual_seed(0)
    return GPTNeoXForCausalLM(config)


def test_bad_input_is_refused_before_long_work():
    ids = torch.arange(8).reshape(2, 4)
    headless = AutoModel.from_config(
        BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    )
    with pytest.raises(InputError, match=r"BertModel has no language-modelling head.*AutoModelForCausalLM"):
        excise.evaluate(headless, [{"input_ids": ids}])
    model = tiny()
    with pytest.raises(InputError, match="no batches: the data set is empty"):
        excise.evaluate(model, [])
    with pytest.raises(InputError, match=r"token 57 is beyond the model's vocabulary of 50.*another tokenizer"):
        excise.evaluate(model, [{"input_ids": ids + 50}])
    with pytest.raises(InputError, match="needs the id of the mask token"):
        excise.evaluate(model, [{"input_ids": ids}], kind="masked")
    with pytest.raises(InputError, match="the sequences have one token each"):
        excise.evaluate(model, [{"input_ids": ids[:, :1]}])


def test_mode_and_minimal_batches():
    model = tiny(hidden_dropout=0.5, attention_dropout=0.5).train()
    ids = torch.randint(0, 50, (4, 9), generator=torch.Generator().manual_seed(0))
    first, second = (excise.evaluate(model, [{"input_ids": ids}]) for _ in range(2))
    assert model.training
    assert first == second  # no dropout
    assert first.tokens == 32
    assert first.bytes is None
    assert first.bits_per_byte is None
    assert first.by_label == []
    assert kind_of(model, {"input_ids": ids}) == "causal"
    mask = torch.ones_like(ids)
    mask[:, :3] = 0  # padding on the left: the first real token is given, not predicted
    assert excise.evaluate(model, [{"input_ids": ids, "attention_mask": mask}]).tokens == 4 * 5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_same_on_the_device():
    data = tagged("neox")[:20]
    here = excise.evaluate(language_model("neox"), data.batches(8))
    there = excise.evaluate(language_model("neox", "cuda"), data.batches(8))
    assert there.bits_per_byte == pytest.approx(here.bits_per_byte, rel=1e-3)
