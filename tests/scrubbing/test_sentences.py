"""Sentence encoders: texts in, one label per text, the transformer inside is scrubbed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from architectures import build
from measure import correlation, one_hot

import excise

sentence_transformers = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")

WORDS = ["red", "blue", "green", "one", "two", "three", "cat", "dog", "bird", "runs", "sleeps", "sings"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A random BERT with a tokenizer of a dozen words, mean pooling."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("encoder")
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=32, **names).save_pretrained(folder)
    build("bert").bert.to(torch.float32).save_pretrained(folder)
    transformer = modules.Transformer(str(folder))
    pooling = modules.Pooling(16)
    return sentence_transformers.SentenceTransformer(modules=[transformer, pooling], device="cpu").double()


def texts(n=200, seed=0):
    rng = np.random.default_rng(seed)
    out = [" ".join(rng.choice(WORDS, rng.integers(3, 7))) for _ in range(n)]
    return out, np.array(["animal" if "cat" in text or "dog" in text else "none" for text in out])


def test_texts_and_labels(encoder):
    sentences, z = texts()
    before = encoder.encode(sentences)
    scrubber = excise.scrub(encoder, sentences, labels=z, progress=False, shrinkage="none")
    assert all(path.startswith(("embeddings.", "encoder.layer.")) for path in scrubber.erasers)
    assert np.array_equal(encoder.encode(sentences), before)
    with scrubber.attached(encoder):
        after = encoder.encode(sentences)
    # Mean pooling of erased tokens: each token's vector says nothing of the label, but texts differ in length.
    assert correlation(before, one_hot(z)) > 0.3
    assert correlation(after, one_hot(z)) < 0.35 * correlation(before, one_hot(z))


def test_refusals(encoder):
    sentences, z = texts(20)
    with pytest.raises(excise.ConceptError, match="texts without labels"):
        excise.scrub(encoder, sentences)
    with pytest.raises(excise.ConceptError, match="20 texts, but labels of shape"):
        excise.scrub(encoder, sentences, labels=z[:5])
    with pytest.raises(excise.InputError, match="belongs to the texts of a SentenceTransformer"):
        excise.scrub(build("bert"), sentences, labels=z)
