"""Processor time per row of adding up moments and of applying an eraser, against d and k; the figures of docs/scale.md."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import excise
from benchmarks.core import Result

FEATURES = (256, 768, 1536, 3072)
CLASSES = (2, 100, 1000)


def processor_seconds(call: Callable[[], Any], repeat: int = 3) -> float:
    call()
    taken = []
    for _ in range(repeat):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return min(taken)


def rows(n: int, d: int, k: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    z = np.arange(n) % k
    return rng.standard_normal((n, d), dtype=np.float32) + 0.1 * rng.standard_normal((k, d), dtype=np.float32)[z], z


def run() -> list[Result]:
    """Microseconds per row, and seconds of the solve."""
    warnings.simplefilter("ignore")
    out: list[Result] = []

    def note(what: str, figure: float, unit: str) -> None:
        out.append((what, figure, unit, ""))
        print(f"{figure:9.3f}{unit}  {what}", flush=True)

    for d, k in [*((d, 2) for d in FEATURES), *((768, k) for k in CLASSES[1:])]:
        n = max(2**24 // d, 4 * d, 4 * k)
        X, z = rows(n, d, k)
        concept = excise.Concept.of(z, kind="categorical")
        m = excise.Moments(concept=concept)
        # One update of many batches, so that what the first costs is not counted per row.
        m.update(X, z)
        note(f"update, d={d}, k={k}", 1e6 * processor_seconds(lambda: m.update(X, z)) / n, " us/row")  # noqa: B023
        note(f"solve, d={d}, k={k}", processor_seconds(lambda: excise.leace(m), 1), " s")  # noqa: B023
        eraser = excise.leace(m)
        note(f"apply, d={d}, rank {eraser.rank}", 1e6 * processor_seconds(lambda: eraser(X)) / n, " us/row")  # noqa: B023
        size = sum(np.asarray(a).nbytes for a in m.stored()[0].values())
        note(f"moments saved, d={d}, k={k}", size / 1e6, " MB")
    return out
