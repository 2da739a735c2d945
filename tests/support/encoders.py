"""A tiny random sentence encoder, and an eraser that guards what it gives out after division by the length."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
import transformers as t
from language_data import pretrained_tokenizer

from excise.erasers.affine import AffineEraser

WORDS = {
    "he": ["he", "his", "man", "father", "king", "brother"],
    "she": ["she", "her", "woman", "mother", "queen", "sister"],
}


def sentences(n: int = 240, seed: int = 0) -> tuple[list[str], np.ndarray]:
    """Short sentences, and whether their subject is male."""
    rng = np.random.default_rng(seed)
    rest = ["walked", "home", "slowly", "and", "saw", "the", "river", "red", "old", "bread", "city", "work", "early"]
    z = rng.integers(0, 2, n)
    texts = [
        " ".join([str(rng.choice(WORDS["he" if male else "she"])), *map(str, rng.choice(rest, rng.integers(3, 9)))])
        for male in z
    ]
    return texts, z


def tiny_encoder(folder: Any, normalised: bool = True, width: int = 16) -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    torch.manual_seed(0)
    tokenizer = pretrained_tokenizer("bert")
    config = t.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=64,
    )
    t.BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    first = Transformer(str(folder))
    modules = [first, Pooling(width, pooling_mode="mean"), *([Normalize()] if normalised else [])]
    return SentenceTransformer(modules=modules, device="cpu").eval()


def guarding_after_normalisation(X: Any, z: Any) -> AffineEraser:
    """r(x) = P x with mean(P x / |P x|) equal for two classes: P a = 0 with a = sum (z - mean z) x / |P x|, by iteration."""
    X = np.asarray(X, dtype=np.float64)
    centred, P = z - z.mean(), np.eye(X.shape[1])
    for _ in range(400):
        a = (centred / np.linalg.norm(X @ P.T, axis=1)) @ X
        u = a[:, None] / np.linalg.norm(a)
        P = np.eye(X.shape[1]) - u @ u.T
    eraser = AffineEraser(u, u, np.zeros(X.shape[1]), {"method": "test"})
    return dataclasses.replace(eraser, normalize=True)
