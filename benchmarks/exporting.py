"""Run time of an edited SmolLM2 against the plain model: folded into its weights, attached by hooks, as an adapter.

All forms take turns in every round, so that other work on the machine disturbs them alike. On one thread processor seconds
are taken; the best of each form is compared with the best of the plain model.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from threadpoolctl import threadpool_limits

import excise
from benchmarks.core import Result

SHAPE, CLASSES, ROUNDS = (4, 128), 17, 9
FITTED = 16  # sequences


def scrubbed() -> tuple[Any, Any, torch.Tensor]:
    """SmolLM2, a scrubber of rank 16 at all of its sites, and tokens to run. The run time does not depend on the text."""
    from benchmarks.language_models import smollm2
    from excise.scrubbing.models import load_model

    folder, file = smollm2()
    model = load_model(str(folder), file, "cpu")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, model.config.vocab_size, (FITTED, SHAPE[1]), generator=generator)
    data = [
        {"input_ids": part, "attention_mask": torch.ones_like(part), "concept": part % CLASSES}
        for part in ids.split(SHAPE[0])
    ]
    return model, excise.scrub(model, data, progress=False), ids[: SHAPE[0]]


def without_mean(scrubber: Any) -> Any:
    """The same edit around the origin: no biases."""
    erasers = {path: dataclasses.replace(e, center=0 * e.center) for path, e in scrubber.erasers.items()}
    return dataclasses.replace(scrubber, erasers=erasers)


def seconds(model: Any, ids: torch.Tensor, attached: Callable[[], Any]) -> float:
    with torch.no_grad(), attached():
        start = time.process_time()
        model(input_ids=ids, use_cache=False)
        return time.process_time() - start


def compare() -> list[Result]:
    from peft import PeftModel

    model, scrubber, ids = scrubbed()
    linear = without_mean(scrubber)
    forms: dict[str, tuple[Any, Callable[[], Any]]] = {
        "base": (model, nullcontext),
        "plain copy (the noise of this table)": (copy.deepcopy(model), nullcontext),
        "folded": (linear.fold(copy.deepcopy(model)), nullcontext),
        "folded, mean kept in biases": (scrubber.fold(copy.deepcopy(model)), nullcontext),
        "hooked": (model, lambda: scrubber.attached(model)),
    }
    with tempfile.TemporaryDirectory() as folder:
        linear.to_lora(model, folder)
        forms["LoRA on"] = (PeftModel.from_pretrained(copy.deepcopy(model), folder).eval(), nullcontext)
    torch.set_num_threads(1)
    taken: dict[str, list[float]] = {name: [] for name in forms}
    with threadpool_limits(limits=1):
        for number in range(ROUNDS + 1):
            order = list(forms)
            turned = order[number % len(order) :] + order[: number % len(order)]
            for name in turned:
                found = seconds(forms[name][0], ids, forms[name][1])
                if number:  # the first round warms up
                    taken[name].append(found)
    limits = {"folded": "<= 1.03", "folded, mean kept in biases": "<= 1.03", "hooked": "<= 1.25"}
    base = min(taken["base"])
    return [
        (
            f"{name}: SmolLM2-135M, {len(scrubber.erasers)} sites, rank {CLASSES - 1}, {SHAPE[0]} x {SHAPE[1]} tokens, 1 thread, best "
            f"of {ROUNDS}: plain forward passes ({base:.2f} processor s)",
            min(taken[name]) / base,
            "x",
            limits.get(name, ""),
        )
        for name in forms
        if name != "base"
    ]


def run() -> list[Result]:
    warnings.simplefilter("ignore")
    results = compare()
    for what, figure, unit, limit in results:
        print(f"{figure:8.3f}{unit:3} (limit {limit or 'none':7})  {what}", flush=True)
    return results
