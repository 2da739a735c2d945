"""Solving LEACE from Moments: plain features, the output of a LayerNorm, and fewer rows than features.

Run: python -m benchmarks.solve [FILE]. Each figure is the best of several solves in one process. A LayerNorm leaves a
direction without variance; its solve should cost what any other costs.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import excise


def example(n: int, d: int, norm: bool, device: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    z = rng.integers(0, 4, n)
    X = rng.standard_normal((n, d), dtype=np.float32) + rng.standard_normal((4, d), dtype=np.float32)[z]
    if norm:
        X = (X - X.mean(1, keepdims=True)) / X.std(1, keepdims=True)
    if device == "cpu":
        return X, z
    import torch

    return torch.from_numpy(X).to(device), torch.from_numpy(z).to(device)


def solve_ms(m: Any, device: str, repeats: int) -> tuple[float, Any]:
    def wait() -> None:
        if device != "cpu":
            import torch

            torch.cuda.synchronize()

    times, eraser = [], None
    for _ in range(repeats + 1):
        wait()
        begun = time.perf_counter()
        eraser = excise.leace(m, shrinkage="none")
        wait()
        times.append(time.perf_counter() - begun)
    return 1e3 * min(times[1:]), eraser


def main() -> None:
    device = "cpu"
    try:
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    except ImportError:
        pass
    sizes = (
        [(20_000, 768), (20_000, 2048), (20_000, 4096)]
        if device == "cpu"
        else [(32_768, d) for d in (1024, 4096, 8192)]
    )
    sizes += [(200, 1536)]
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n, d in sizes:
            found = {}
            for name, norm in (("plain", False), ("LayerNorm", True)):
                X, z = example(n, d, norm, device)
                m = excise.Moments().update(X, z)
                del X
                found[name], eraser = solve_ms(m, device, 9 if d < 4000 else 4)
                found[f"{name}, norm"] = eraser.spectral_norm
            ratio = found["LayerNorm"] / found["plain"]
            rows.append({"n": n, "d": d, **found, "ratio": ratio})
            print(
                f"{device} n={n} d={d}: plain {found['plain']:.2f} ms, LayerNorm {found['LayerNorm']:.2f} ms, ratio {ratio:.2f}"
            )
    about = {"device": device, "excise": excise.__version__, "numpy": np.__version__, "rows": rows}
    about["median ratio"] = statistics.median(row["ratio"] for row in rows)
    if device != "cpu":
        about["hardware"] = torch.cuda.get_device_name()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
