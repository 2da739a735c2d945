"""What the special methods cost: unit vectors beside a plain fit, on data of word2vec's size."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import excise
from benchmarks.core import Result


def cpu_seconds(*calls: Callable[[], Any], repeat: int = 9) -> list[float]:
    """Least processor seconds of each call, in turns: they do not depend on what else the machine does."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(repeat + 1):
        for call, taken in zip(calls, seconds, strict=True):
            start = time.process_time()
            call()
            taken.append(time.process_time() - start)
    return [min(taken[1:]) for taken in seconds]


def words() -> tuple[np.ndarray, np.ndarray]:
    """22,500 rows of 300 features with a decaying spectrum and three classes, float32."""
    rng = np.random.default_rng(0)
    z = rng.integers(0, 3, 22_500)
    spectrum = 1.0 / np.sqrt(1.0 + np.arange(300) / 20.0)
    X = rng.standard_normal((22_500, 300)) * spectrum + 0.3 * rng.standard_normal((3, 300))[z] * spectrum
    return (X @ np.linalg.qr(rng.standard_normal((300, 300)))[0]).astype(np.float32), z


def normalize() -> list[Result]:
    X, z = words()
    plain, ours = cpu_seconds(lambda: excise.fit(X, z), lambda: excise.fit(X, z, normalize=True), repeat=9)
    rounds = excise.fit(X, z, normalize=True).info["rounds"]
    what = f"fit(normalize=True), float32, n=22,500, d=300: times the processor time of a plain fit ({plain:.3f} s, {rounds} rounds)"
    return [(what, ours / plain, "x", "<= 3")]


def conditional() -> list[Result]:
    X, z = words()
    y = np.random.default_rng(1).integers(0, 4, len(z))
    plain, ours = cpu_seconds(lambda: excise.fit(X, z), lambda: excise.fit(X, z, condition_on=y), repeat=9)
    return [("fit(condition_on=y), 4 classes: times the processor time of a plain fit", ours / plain, "x", "<= 3")]


def alf() -> list[Result]:
    X, z = words()
    m = excise.ClassMoments().update(X, z)
    leace, ours = cpu_seconds(lambda: excise.leace(m.to_moments()), lambda: excise.alf(m), repeat=5)
    return [(f"alf from class moments, d=300, k=3: seconds ({ours / leace:.1f} times LEACE)", ours, "s", "<= 2")]


def run() -> list[Result]:
    warnings.simplefilter("ignore")
    results: list[Result] = []
    for part in (normalize, conditional, alf):
        found = part()
        results += found
        for what, figure, unit, limit in found:
            print(f"{figure:8.2f}{unit:3} (limit {limit:6})  {what}", flush=True)
    return results
