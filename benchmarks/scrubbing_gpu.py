"""Scrubbing on a CUDA device beside plain forward passes of the same model. Called by benchmarks.gpu; small sizes run anywhere.

A LLaMA with random weights: what is measured is time, and whether a linear probe on the fitting tokens is at chance.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import excise

CLASSES = 18


def model(width: int, layers: int, vocabulary: int, dtype: torch.dtype, device: str) -> Any:
    import transformers as t

    torch.manual_seed(0)
    config = t.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        intermediate_size=11 * width // 4,
    )
    return t.LlamaForCausalLM(config).to(device=device, dtype=dtype).eval()


def batches(tokens: int, shape: tuple[int, int], vocabulary: int, device: str) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    out = []
    for _ in range(tokens // (shape[0] * shape[1])):
        ids = torch.randint(3, vocabulary, shape, generator=generator)
        found = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "concept": ids % CLASSES}
        out.append({name: value.to(device) for name, value in found.items()})
    return out


def seconds(call: Callable[[], Any], device: str) -> float:
    """Until the device is done, by the host's clock."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def probe(rows: torch.Tensor, z: torch.Tensor) -> tuple[float, float]:
    """Accuracy of the best linear map onto the classes (least squares) on the rows that it was fitted on, and of the constant."""
    X = rows.double()
    X = torch.cat([X - X.mean(0), torch.ones(len(X), 1, dtype=X.dtype, device=X.device)], dim=1)
    Y = torch.nn.functional.one_hot(z, CLASSES).double()
    gram = X.T @ X
    gram += 1e-9 * gram.diagonal().mean() * torch.eye(len(gram), dtype=X.dtype, device=X.device)
    found = (X @ torch.linalg.solve(gram, X.T @ Y)).argmax(dim=1)
    majority = torch.bincount(z, minlength=CLASSES).max() / len(z)
    return float((found == z).double().mean()), float(majority)


def scrubs(
    bench: Any,
    width: int = 2048,
    layers: int = 8,
    tokens: int = 262_144,
    shape: tuple[int, int] = (16, 1024),
    vocabulary: int = 32_000,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda",
    repeat: int = 3,
) -> None:
    """Note the time of scrub over that of one plain pass of the body, and of a pass with the erasers over one without."""
    subject, data = model(width, layers, vocabulary, dtype, device), batches(tokens, shape, vocabulary, device)
    body = subject.model

    def plain() -> None:
        with torch.no_grad():
            for batch in data:
                body(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False)

    def fit() -> Any:
        return excise.scrub(subject, data, progress=False)

    plain()
    scrubber = fit()
    clean = [seconds(plain, device) for _ in range(repeat)]
    fitting = [seconds(fit, device) for _ in range(repeat)]
    with scrubber.attached(subject):
        plain()
        attached = [seconds(plain, device) for _ in range(repeat)]
    name = f"{str(dtype).removeprefix('torch.')} d={width}, {layers} blocks, {tokens} tokens"
    once = float(np.median(clean))
    took = scrubber.about["seconds"]
    bench.note(
        f"scrub {name}",
        passes=float(np.median(fitting)) / once,
        seconds=float(np.median(fitting)),
        in_passes_s=took["passes"],
        in_solves_s=took["solves"],
        one_pass_s=once,
        most=2.0,
    )
    bench.note(f"attached {name}", ratio=float(np.median(attached)) / once, most=1.15)
    site = list(scrubber.erasers)[-1]
    before, after = (_rows(subject, data, site, erased) for erased in (None, scrubber))
    z = torch.cat([batch["concept"].reshape(-1) for batch in data])[: len(before)]
    (there, _), (left, majority) = probe(before, z), probe(after, z)
    bench.note(f"probe {name}", before=there, after=left, majority=majority)


def _rows(subject: Any, data: list[dict[str, torch.Tensor]], site: str, scrubber: Any) -> torch.Tensor:
    """All fitting vectors at a site, after erasure where there is a scrubber."""
    from contextlib import nullcontext

    from excise.scrubbing.capture import capture

    with nullcontext() if scrubber is None else scrubber.attached(subject):
        return torch.cat(
            [capture(subject, batch, [site])[site].reshape(-1, subject.config.hidden_size) for batch in data]
        )
