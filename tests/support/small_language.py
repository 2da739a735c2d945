"""English made by a small grammar, tokenizers trained on it, and two small models that have learnt it.

Trained in seconds when a test first asks for them, once per run of the suite. They stand for real text and pretrained
models: words of several pieces, words that are noun or verb by their place, contractions, accents, and a GPT-NeoX and a
BERT that predict better than word counts do.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["TAGS", "corpus", "model_folder", "sentences"]

# Words by part of speech. Some are in two lists: their place in the sentence decides.
_WORDS = {
    "NOUN": "dog cat house river teacher garden window letter winter engine café story market doctor bridge kitchen "
    "painting journey watch light run plant order report answer question farmer village mountain soldier",
    "VERB": "sees finds likes follows paints remembers carries watches lights runs plants orders reports answers questions "
    "describes understands leaves builds opens",
    "ADJ": "old red small quiet naïve light open heavy wonderful careful bright strange empty narrow",
    "ADV": "slowly often never quietly here today carefully again almost",
    "PROPN": "Anna Boris Chloé David Émile Fatima Geneva Lisbon Oslo Warsaw",
    "ADP": "in on under behind near with from through",
    "DET": "the a this every some no",
    "PRON": "she he they it we someone",
    "NUM": "two three seven ten 12 40 1999",
    "CCONJ": "and but or",
    "SCONJ": "because while although if",
    "AUX": "is was will can must",
    "PART": "not",
    "INTJ": "oh well yes",
    "PUNCT": ". , ! ?",
}
WORDS = {tag: words.split() for tag, words in _WORDS.items()}
TAGS = tuple(sorted(WORDS))
SPLITS = {"train": 2400, "dev": 300, "test": 300}
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
}
MADE = "EXCISE_TESTS_MADE"  # the folder of this run of the suite; conftest.py sets it


class Author:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def word(self, tag: str) -> tuple[str, str]:
        """A word of that tag; the first of a list are more frequent."""
        words = WORDS[tag]
        weight = 1.0 / np.arange(2, len(words) + 2)
        return str(self.rng.choice(words, p=weight / weight.sum())), tag

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def subject(self) -> list[tuple[str, str]]:
        kind = self.rng.random()
        if kind < 0.25:
            return [self.word("PRON")]
        if kind < 0.45:
            return [self.word("PROPN")]
        return self.thing()

    def thing(self) -> list[tuple[str, str]]:
        many = self.chance(0.15)
        out = [self.word("NUM" if many else "DET")]
        out += [self.word("ADJ") for _ in range(int(self.rng.integers(0, 3)))]
        noun, tag = self.word("NOUN")
        return [*out, (f"{noun}s" if many else noun, tag)]

    def clause(self) -> list[tuple[str, str]]:
        out = self.subject()
        if self.chance(0.2):  # a contraction: two words without a space
            return [*out, ("does", "AUX"), ("|n't", "PART"), self.word("VERB"), *self.thing()]
        if self.chance(0.3):
            out += [self.word("AUX"), *([self.word("PART")] if self.chance(0.3) else [])]
        if self.chance(0.3):
            out.append(self.word("ADV"))
        out += [self.word("VERB"), *self.thing()]
        if self.chance(0.5):
            out += [self.word("ADP"), *self.thing()]
        return out

    def sentence(self) -> list[tuple[str, str]]:
        out = [(self.word("INTJ")[0], "INTJ"), ("|,", "PUNCT")] if self.chance(0.1) else []
        out += self.clause()
        if self.chance(0.3):
            out += [("|,", "PUNCT"), self.word("SCONJ"), *self.clause()]
        elif self.chance(0.2):
            out += [self.word("CCONJ"), *self.clause()]
        return [*out, (f"|{self.rng.choice(['.', '.', '.', '!', '?'])}", "PUNCT")]


@cache
def sentences() -> list[dict[str, Any]]:
    """Rows of split, text, words, upos and the offsets of the words in the text."""
    author, rows = Author(0), []
    for split, count in SPLITS.items():
        for _ in range(count):
            text, starts, ends, tags = "", [], [], []
            for word, tag in author.sentence():
                joined = word.startswith("|") or not text  # no space before it
                text += word.removeprefix("|") if joined else f" {word}"
                starts.append(len(text) - len(word.removeprefix("|")))
                ends.append(len(text))
                tags.append(tag)
            words = [text[a:b] for a, b in zip(starts, ends, strict=True)]
            rows.append({"split": split, "text": text, "words": words, "upos": tags, "starts": starts, "ends": ends})
    return rows


def _made(name: str, make: Callable[[Path], None]) -> Path:
    """A file or folder of this run of the suite, made by the first process that asks."""
    from filelock import FileLock

    folder = Path(os.environ[MADE])
    path = folder / name
    with FileLock(folder / f"{name}.lock"):
        if not path.exists():
            unfinished = folder / f"unfinished-{name}"
            shutil.rmtree(unfinished, ignore_errors=True)
            make(unfinished)
            unfinished.rename(path)
    return path


@cache
def corpus() -> Path:
    """The sentences as a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    return _made("sentences.parquet", lambda path: pq.write_table(pa.Table.from_pylist(sentences()), path))


@cache
def model_folder(name: str) -> Path:
    """Weights and tokenizer of "neox" (causal) or "bert" (masked), as `save_pretrained` writes them."""
    return _made(name, {"neox": _make_neox, "bert": _make_bert}[name])


def _texts(split: str = "train") -> list[str]:
    return [row["text"] for row in sentences() if row["split"] == split]


def _make_neox(folder: Path) -> None:
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

    inner = ByteLevelBPETokenizer()
    ends = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    special = ["<|endoftext|>", "<|padding|>"]
    inner.train_from_iterator(_texts(), vocab_size=420, special_tokens=special, show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner._tokenizer, pad_token="<|padding|>", **ends)
    ids = [token for text in _texts() for token in (tokenizer.bos_token_id, *tokenizer(text)["input_ids"])]
    rows = torch.tensor(ids[: len(ids) // 48 * 48]).reshape(-1, 48)  # running text

    def loss(model: Any, ids: Any) -> Any:
        return model(ids, labels=ids).loss

    with _one_thread():
        model = GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES, vocab_size=len(tokenizer), tie_word_embeddings=True))
        _train(model, loss, rows, batch=32, steps=250)
    _save(folder, model, tokenizer)


def _make_bert(folder: Path) -> None:
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

    inner = BertWordPieceTokenizer(lowercase=True)
    inner.train_from_iterator(_texts(), vocab_size=260, show_progress=False)
    tokenizer = BertTokenizerFast(tokenizer_object=inner._tokenizer)
    rows = torch.tensor(tokenizer(_texts(), padding="max_length", truncation=True, max_length=24)["input_ids"])
    special = torch.tensor([tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id])

    def loss(model: Any, ids: Any) -> Any:
        plain = torch.isin(ids, special)
        chosen = (torch.rand(ids.shape) < 0.3) & ~plain
        seen = (torch.rand(ids.shape) < 0.1) & ~plain  # it must also say what it can see
        labels = torch.where(chosen | seen, ids, -100)
        hidden = torch.where(chosen & ~seen, tokenizer.mask_token_id, ids)
        return model(hidden, attention_mask=(ids != tokenizer.pad_token_id).long(), labels=labels).loss

    with _one_thread():
        model = BertForMaskedLM(BertConfig(**SIZES, vocab_size=len(tokenizer), initializer_range=0.05))
        with torch.no_grad():  # a start from sines: attention to neighbours is learnt much sooner
            place = torch.arange(SIZES["max_position_embeddings"])[:, None] * 100.0 ** (-torch.arange(32) / 32)
            model.bert.embeddings.position_embeddings.weight.copy_(0.1 * torch.cat([place.sin(), place.cos()], 1))
            model.bert.embeddings.word_embeddings.weight.mul_(2)
        _train(model, loss, rows, batch=64, steps=400)
    _save(folder, model, tokenizer)


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread and a seed, whatever runs beside it; both as they were afterwards."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1), torch.random.fork_rng():
            torch.manual_seed(0)
            yield
    finally:
        torch.set_num_threads(before)


def _train(model: Any, loss: Callable[[Any, Any], Any], rows: Any, batch: int, steps: int) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.train().parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model, rows[torch.randint(len(rows), (batch,))]).backward()
        optimizer.step()
        schedule.step()


def _save(folder: Path, model: Any, tokenizer: Any) -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
