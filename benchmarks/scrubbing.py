"""Scrubbing against the forward pass of the same model: seconds (solves apart) and memory beyond the cache."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

import excise
from benchmarks.core import Result
from excise.scrubbing.site_fit import SiteFit

WIDTH, LAYERS, VOCABULARY = 512, 6, 8192
SHAPE, BATCHES = (8, 256), 4


def model(kind: str) -> Any:
    import transformers as t

    torch.manual_seed(0)
    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 8,
    }
    if kind == "llama":
        return t.LlamaForCausalLM(t.LlamaConfig(**common, intermediate_size=1376)).eval()
    if kind == "gemma3":  # the shape of Gemma-3-270M, with fewer blocks
        config = t.Gemma3TextConfig(
            **{**common, "hidden_size": 640, "num_attention_heads": 4, "vocab_size": VOCABULARY},
            num_key_value_heads=1,
            head_dim=256,
            intermediate_size=2048,
            sliding_window=512,
        )
        return t.Gemma3ForCausalLM(config).eval()
    if kind == "gpt_neox":
        return t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**common, intermediate_size=2048)).eval()
    return t.BertForMaskedLM(t.BertConfig(**common, intermediate_size=2048)).eval()


def batches() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    out = []
    for _ in range(BATCHES):
        ids = torch.randint(3, VOCABULARY, SHAPE, generator=generator)
        out.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "concept": ids % 18})
    return out


def cost(kind: str, threads: int, repeat: int = 3) -> Result:
    """Best of each, taking turns. The plain pass is that of the body, without the head, and keeps no keys and values.

    On one thread processor seconds are taken, which other work on the machine does not disturb; else those of the clock.
    """
    subject, data = model(kind), batches()
    body = subject.base_model
    clock = time.process_time if threads == 1 else time.perf_counter

    def plain() -> float:
        start = clock()
        with torch.no_grad():
            for batch in data:
                more = {} if kind == "bert" else {"use_cache": False}
                body(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], **more)
        return clock() - start

    def fit() -> float:
        start = clock()
        with timed(clock) as solves:
            excise.scrub(subject, data, progress=False)
        return clock() - start - sum(solves)

    torch.set_num_threads(threads)
    with threadpool_limits(limits=threads):
        seconds = [(plain(), fit()) for _ in range(repeat + 1)][1:]  # the first round warms up
    once, fitting = min(p for p, _ in seconds), min(f for _, f in seconds)
    tokens = BATCHES * SHAPE[0] * SHAPE[1]
    what = (
        f"scrub {kind}, d={subject.config.hidden_size}, {LAYERS} blocks, {tokens:,} tokens, {threads} thread(s), solves apart: passes of the body "
        f"({once:.2f} {'processor ' * (threads == 1)}s each)"
    )
    return what, fitting / once, "x", "<= 2.0"


@contextmanager
def timed(clock: Callable[[], float]) -> Iterator[list[float]]:
    """Seconds of every solve."""
    whole, taken = SiteFit.solve, []

    def solve(self: Any, *arguments: Any) -> Any:
        start = clock()
        try:
            return whole(self, *arguments)
        finally:
            taken.append(clock() - start)

    SiteFit.solve = solve
    try:
        yield taken
    finally:
        SiteFit.solve = whole


def generation(tokens: int = 60, rounds: int = 15) -> Result:
    """Tokens per second with a scrubber of rank 16 attached, over those without: median over rounds that take turns.

    The model has the shape of pocket-neox (d=256, 6 blocks, 8,192 tokens of vocabulary), one sequence, one thread.
    """
    import numpy as np
    import transformers as t

    torch.manual_seed(0)
    config = t.GPTNeoXConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=1024,
        **{"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0},
    )
    subject = t.GPTNeoXForCausalLM(config).eval()
    data = batches()[:1]
    scrubber = excise.scrub(subject, data, progress=False)
    start = data[0]["input_ids"][:1, :8]

    def seconds() -> float:
        begin = time.process_time()
        subject.generate(start, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
        return time.process_time() - begin

    torch.set_num_threads(1)
    with threadpool_limits(limits=1):
        seconds()
        ratios = []
        for _ in range(rounds):
            clean = seconds()
            with scrubber.attached(subject):
                ratios.append(clean / seconds())
    what = "generation with a scrubber attached, shape of pocket-neox, one thread: share of the clean tokens per second"
    return what, float(np.median(ratios)), "x", ">= 0.9"


def memory() -> Result:
    """Growth of the process's own memory while fitting, less the cache, in d x d matrices of float64."""
    import threading

    def now() -> float:
        line = next(
            x for x in Path("/proc/self/status").read_text(encoding="utf-8").splitlines() if x.startswith("RssAnon")
        )
        return float(line.split()[1]) * 1024

    subject, data = model("llama"), batches()
    excise.scrub(subject, data, sites=[0], progress=False)
    base, done = now(), threading.Event()
    peak = [base]

    def watch() -> None:
        while not done.wait(0.005):
            peak.append(now())

    watcher = threading.Thread(target=watch)
    watcher.start()
    excise.scrub(subject, data, cache="disk", progress=False)
    done.set()
    watcher.join()
    what = f"scrub llama, d={WIDTH}, cache on disk: MB beyond the model and the tokens, at its peak"
    return what, (max(peak) - base) / 1e6, " MB", "< 200"


def run() -> list[Result]:
    warnings.simplefilter("ignore")
    results = []
    for part in (
        lambda: cost("gemma3", 1),
        lambda: cost("llama", 1),
        lambda: cost("gpt_neox", 1),
        lambda: cost("bert", 1),
        lambda: cost("llama", 2),
        generation,
        memory,
    ):
        what, figure, unit, limit = part()
        results.append((what, figure, unit, limit))
        print(f"{figure:8.2f}{unit:3} (limit {limit:6})  {what}", flush=True)
    return results
