"""The core against `concept-erasure`: update, solve, apply, and peak memory."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import excise

Result = tuple[str, float, str, str]  # what, figure, unit and direction, limit


def interleaved(*calls: Callable[[], Any], repeat: int = 7) -> list[float]:
    """Best seconds of each call; the calls take turns, so that a slow minute of the machine hits all of them."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(repeat + 1):  # the first round warms up
        for call, taken in zip(calls, seconds, strict=True):
            time.sleep(0.3)  # thread pools of the call before spin for a while
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return [min(taken[1:]) for taken in seconds]


def data(n: int, d: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    z = rng.integers(0, k, n)
    return rng.standard_normal((n, d), dtype=np.float32) + rng.standard_normal((k, d), dtype=np.float32)[z], z


def update() -> list[Result]:
    from concept_erasure import LeaceFitter

    X, z = data(65_536, 768, 18)
    x, labels = torch.from_numpy(X), torch.from_numpy(z)
    one_hot = torch.nn.functional.one_hot(labels, 18).float()
    theirs, ours = interleaved(
        lambda: LeaceFitter(768, 18).update(x, one_hot), lambda: excise.Moments().update(x, labels)
    )
    return [("update, float32, d=768, n=65,536, k=18: times the reference's speed", theirs / ours, "x", ">= 1.4")]


def solve(d: int, limit: str, repeat: int) -> list[Result]:
    from concept_erasure import LeaceFitter

    X, z = data(max(12 * d, 20_000), d, 18)
    fitter = LeaceFitter(d, 18)
    fitter.update(torch.from_numpy(X), torch.nn.functional.one_hot(torch.from_numpy(z), 18).float())
    m = excise.Moments().update(X, z)

    def reference() -> Any:
        fitter.__dict__.pop("_cached_eraser", None)  # or it would not be computed again
        return fitter.eraser

    theirs, ours = interleaved(reference, lambda: excise.leace(m), repeat=repeat)
    return [(f"solve, d={d}, k=18: times the reference's speed ({ours:.3f} s)", theirs / ours, "x", limit)]


def apply(rank: int, limit: str) -> list[Result]:
    from concept_erasure import LeaceFitter

    X, z = data(65_536, 768, rank + 1)
    x = torch.from_numpy(X)
    eraser = excise.fit(x, torch.from_numpy(z))
    assert eraser.rank == rank
    theirs = LeaceFitter.fit(x, torch.nn.functional.one_hot(torch.from_numpy(z), rank + 1).float()).eraser
    clone, reference, ours = interleaved(lambda: x.clone(), lambda: theirs(x), lambda: eraser(x), repeat=11)
    what = f"apply, float32, d=768, rank {rank}: times the time of x.clone() (reference {reference / clone:.1f})"
    return [(what, ours / clone, "x", limit)]


def _anonymous_peak() -> float:
    """Peak of the process's own memory in MB; pages of the mapped file are the input and do not count."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    fields = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.startswith(("Rss", "VmHWM"))}
    return float(fields["RssAnon"]) / 1024


def memory() -> list[Result]:
    """Fit a 4 GB memory-mapped array; a sampler in the child records the greatest anonymous memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        n, d = 2**20, 1024
        X = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, d))
        rng = np.random.default_rng(0)
        for begin in range(0, n, 2**16):
            X[begin : begin + 2**16] = rng.standard_normal((2**16, d), dtype=np.float32)
        del X
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=_sampled, args=(str(path), queue))
        process.start()
        base, peak = queue.get()
        process.join()
    return [("memory, 4 GB memory-mapped, d=1024: MB beyond the libraries and the map", peak - base, " MB", "< 700")]


def _sampled(path: str, queue: Any) -> None:
    import threading

    X = np.load(path, mmap_mode="r")
    z = np.arange(len(X)) % 4
    warnings.simplefilter("ignore")
    excise.leace(excise.Moments().update(X[:1000], z[:1000]))  # libraries are loaded
    base = _anonymous_peak()
    peak, done = [base], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak.append(_anonymous_peak())

    watcher = threading.Thread(target=watch)
    watcher.start()
    excise.leace(excise.Moments().update(X, z))  # in one call
    done.set()
    watcher.join()
    queue.put((base, max(peak)))


def run() -> list[Result]:
    torch.set_num_threads(2)
    warnings.simplefilter("ignore", DeprecationWarning)
    results: list[Result] = []
    for part in (
        update,
        lambda: solve(768, ">= 5", 7),
        lambda: solve(4096, ">= 15", 2),
        lambda: apply(17, "<= 2.2"),
        lambda: apply(1, "<= 1.6"),
        memory,
    ):
        found = part()
        results += found
        for what, figure, unit, limit in found:
            print(f"{figure:8.2f}{unit:3} (limit {limit:6})  {what}", flush=True)
    return results
