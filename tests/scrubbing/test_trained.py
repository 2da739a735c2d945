"""Models that learnt language, real part-of-speech labels: what a linear model finds before and after."""

from __future__ import annotations

import warnings

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from language_data import TRAINED, language_model, pretrained_tokenizer, text_for
from measure import canonical_correlation, correlation, logistic_losses, one_hot

import excise
from excise.scrubbing.capture import capture


def load(name, dtype):
    return language_model(name, dtype=dtype), pretrained_tokenizer(name), text_for(name)


def tagged(tokenizer, path, split, sentences, size=16):
    """Batches in which a token has the tag of the word that holds its first character that is no space."""
    rows = pq.read_table(path).to_pylist()
    tags = sorted({tag for row in rows for tag in row["upos"]})
    rows = sorted([row for row in rows if row["split"] == split][:sentences], key=lambda row: len(row["text"]))
    out = []
    for begin in range(0, len(rows), size):
        part = rows[begin : begin + size]
        texts = [row["text"] for row in part]
        tokens = tokenizer(texts, return_offsets_mapping=True, padding=True, truncation=True, max_length=128)
        z = np.full(np.shape(tokens["input_ids"]), -100)
        for i, row in enumerate(part):
            tag_at = np.full(len(row["text"]), -100)
            for start, end, tag in zip(row["starts"], row["ends"], row["upos"], strict=True):
                tag_at[start:end] = tags.index(tag)
            for j, (start, end) in enumerate(tokens["offset_mapping"][i]):
                solid = [c for c in range(start, end) if not row["text"][c].isspace()]
                z[i, j] = tag_at[solid[0]] if solid else -100
        arrays = {"input_ids": tokens["input_ids"], "attention_mask": tokens["attention_mask"], "concept": z}
        out.append({name: torch.as_tensor(value) for name, value in arrays.items()})
    return out


def rows_at(model, batches, paths):
    out = {path: [] for path in paths}
    for batch in batches:
        keep = (batch["concept"] != -100) & (batch["attention_mask"] == 1)
        for path, x in capture(model, batch, paths).items():
            out[path].append(x[keep].numpy())
    return {path: np.concatenate(rows) for path, rows in out.items()}


def labels_of(batches):
    return np.concatenate([b["concept"][(b["concept"] != -100) & (b["attention_mask"] == 1)].numpy() for b in batches])


BOTH = [*TRAINED["causal"], *TRAINED["masked"]]


@pytest.mark.parametrize("name", BOTH)
def test_part_of_speech_is_gone_from_every_site(name):
    model, tokenizer, text = load(name, "float64")
    data = tagged(tokenizer, text, "train", 110)
    z = labels_of(data)
    scrubber = excise.scrub(model, data)
    assert len(scrubber.erasers) == {"pocket-neox": 12, "pocket-bert": 13, "neox": 8, "bert": 9}[name]
    clean = rows_at(model, data, scrubber.erasers)
    with scrubber.attached(model):
        erased = rows_at(model, data, scrubber.erasers)
    for path in scrubber.erasers:
        before, after = clean[path], erased[path]
        # The Newton decrement of every linear loss at the constant is made of these: zero means that none is better.
        assert canonical_correlation(before, one_hot(z)) > 0.8, path
        assert canonical_correlation(after, one_hot(z)) < 1e-6, path
    best, constant, _ = logistic_losses(after, z)
    assert abs(constant - best) < 1e-9
    assert loss_after_a_few_steps(before, z) < constant - 0.5


def loss_after_a_few_steps(X, z):
    """An upper bound of the best logistic loss."""
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is not meant to converge
        model = LogisticRegression(max_iter=10).fit((X - X.mean(0)) / X.std(0).mean(), z)
        share = model.predict_proba((X - X.mean(0)) / X.std(0).mean())
    return -np.log(share[np.arange(len(z)), np.searchsorted(model.classes_, z)]).mean()


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH)
def test_best_linear_loss_is_the_constants_at_every_site(name):
    model, tokenizer, text = load(name, "float64")
    data = tagged(tokenizer, text, "train", 250)
    scrubber = excise.scrub(model, data)
    with scrubber.attached(model):
        erased = rows_at(model, data, scrubber.erasers)
    for path, after in erased.items():
        best, constant, _ = logistic_losses(after, labels_of(data))
        assert abs(constant - best) < 1e-9, path


@pytest.mark.parametrize("name", TRAINED["causal"])
def test_float32_up_to_its_rounding(name):
    """No eraser leans on the direction that a LayerNorm leaves nothing in but rounding errors."""
    model, tokenizer, text = load(name, "float32")
    data = tagged(tokenizer, text, "train", 110)
    Z = one_hot(labels_of(data))
    scrubber = excise.scrub(model, data)
    with scrubber.attached(model):
        erased = rows_at(model, data, scrubber.erasers)
    for path, figures in scrubber.figures.items():
        assert correlation(erased[path], Z) < 1e-6
        assert canonical_correlation(erased[path], Z, floor=1e-5) < 1e-3
        assert figures["spectral_norm"] < 10
