"""Where the trained models and the labelled text are, and tokenizers of three kinds."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

SHARED = Path(__file__).resolve().parents[3] / "shared"
MODELS, DATA = SHARED / "models", SHARED / "data"
EWT = DATA / "pos_ewt.parquet"

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of models and data is absent")


@cache
def ewt() -> list[dict[str, Any]]:
    return pq.read_table(EWT).to_pylist()


@cache
def pretrained_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODELS / name)


@cache
def unigram_tokenizer() -> Any:
    """SentencePiece-like: Unigram pieces behind a Metaspace pre-tokenizer, trained on sentences of EWT."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.Unigram())
    inner.normalizer = normalizers.NFKC()
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=1500, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    inner.train_from_iterator([row["text"] for row in ewt()[:4000]], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def tokenizer(kind: str) -> Any:
    return unigram_tokenizer() if kind == "unigram" else pretrained_tokenizer(kind)


@cache
def language_model(name: str, device: str = "cpu") -> Any:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    loader = AutoModelForMaskedLM if name == "pocket-bert" else AutoModelForCausalLM
    return loader.from_pretrained(MODELS / name, dtype=torch.float32).to(device).eval()
