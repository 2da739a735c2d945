"""The core on a CUDA device beside `concept-erasure` and the limits of the hardware. Run: python -m benchmarks.gpu [FILE]

Medians over repeated runs, with the spread between the quartiles. Accuracy against float64 is checked in the same run.
Writes JSON with hardware, versions and commit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import excise

N, CLASSES = 131_072, 18
WIDTHS = (768, 1024, 2048, 4096, 8192)
# what: (least or most, goal); ratios to the reference are faster-by factors, ratios to a copy are slower-by factors
LIMITS = {
    "update bfloat16 d=4096": 10.0,
    "update float32 d=1024": 2.0,
    "update float32 d=4096": 2.5,
    "solve d=1024": 3.0,
    "solve d=4096": 15.0,
    "solve d=8192": 30.0,
}


class Bench:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def note(self, what: str, **figures: Any) -> None:
        shown = {k: round(v, 4) if isinstance(v, float) and abs(v) > 1e-3 else v for k, v in figures.items()}
        if what in LIMITS:
            shown["least"] = LIMITS[what]
        self.rows.append({"what": what, **shown})
        print(
            f"{what:34}",
            "  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items()),
            flush=True,
        )


def milliseconds(call: Callable[[], Any], repeat: int = 15) -> tuple[float, float]:
    """Median and interquartile range of the time until the device is done, by the host's clock."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeat):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    low, middle, high = np.quantile(times, [0.25, 0.5, 0.75])
    return float(middle), float(high - low)


def device_milliseconds(call: Callable[[], Any], repeat: int = 10) -> float:
    """Time of one call on the device, from calls that wait in line: what a stream of batches sees. The best of five."""
    for _ in range(3):
        call()
    times = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeat):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / repeat)
    return min(times)


def sample(n: int, d: int, dtype: torch.dtype, offset: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(d)
    z = torch.randint(0, CLASSES, (n,), device="cuda", generator=generator)
    x = torch.randn(n, d, device="cuda", generator=generator)
    x += torch.randn(CLASSES, d, device="cuda", generator=generator)[z]
    return (x + offset).to(dtype), z


def updates(bench: Bench) -> None:
    from concept_erasure import LeaceFitter

    for d in WIDTHS:
        n = N if d < 8192 else N // 2
        for dtype in (torch.bfloat16, torch.float32):
            x, z = sample(n, d, dtype)
            one_hot = torch.nn.functional.one_hot(z, CLASSES).float()

            def reference(x: Any = x, one_hot: Any = one_hot, d: int = d) -> Any:
                return LeaceFitter(d, CLASSES, device="cuda").update(x, one_hot)

            theirs, _ = milliseconds(reference, 7)
            ours, spread = milliseconds(lambda x=x, z=z: excise.Moments().update(x, z), 7)
            name = str(dtype).removeprefix("torch.")
            bench.note(f"update {name} d={d}", ratio=theirs / ours, ours_ms=ours, spread_ms=spread, reference_ms=theirs)
            del x, one_hot, reference
    for offset in (0.0, 100.0):
        x, z = sample(32_768, 1024, torch.bfloat16, offset)
        m = excise.Moments().update(x, z)
        wide = x.double() - x.double().mean(0)
        exact = wide.T @ wide / len(wide)
        unit = exact.diagonal().sqrt()
        error = float(((m.cov_xx - exact) / unit[:, None] / unit[None, :]).abs().max())
        bench.note(f"covariance error, bfloat16, offset {offset:g}", error=error, most=1e-5)


def solves(bench: Bench) -> None:
    from concept_erasure import LeaceFitter

    for d in (1024, 4096, 8192):
        x, z = sample(32_768, d, torch.float32)
        fitter = LeaceFitter(d, CLASSES, device="cuda").update(x, torch.nn.functional.one_hot(z, CLASSES).float())

        def reference(fitter: Any = fitter) -> Any:
            fitter.__dict__.pop("_cached_eraser", None)
            return fitter.eraser

        theirs, _ = milliseconds(reference, 3)
        m = excise.Moments().update(x, z)
        ours, spread = milliseconds(lambda m=m: excise.leace(m, shrinkage="none"))
        bench.note(f"solve d={d}", ratio=theirs / ours, ours_ms=ours, spread_ms=spread, reference_ms=theirs)
        normed = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
        m = excise.Moments().update(normed, z)
        layer, spread = milliseconds(lambda m=m: excise.leace(m, shrinkage="none"))
        bench.note(f"solve after LayerNorm d={d}", over_plain=layer / ours, ours_ms=layer, spread_ms=spread, most=1.5)
        del x, normed, m


def applies(bench: Bench) -> None:
    most = {(torch.bfloat16, 1): 1.6, (torch.bfloat16, 17): 1.8, (torch.float32, 1): 2.0, (torch.float32, 17): 2.5}
    for d in (768, 2048, 4096, 8192):
        n = N if d < 8192 else N // 2
        for dtype in (torch.bfloat16, torch.float32):
            for classes in (2, 18):
                x, z = sample(n, d, dtype)
                z = z % classes
                eraser = excise.fit(x, z, shrinkage="none")
                module = eraser.as_module()
                copy = device_milliseconds(lambda x=x: x.clone())
                ours = device_milliseconds(lambda module=module, x=x: module(x))
                call, spread = milliseconds(lambda eraser=eraser, x=x: eraser(x))
                exact = torch.cat([(part.double() @ eraser.P.T + eraser.bias).to(dtype) for part in x.split(8192)])
                left, best = (leftover(y, z, classes) for y in (eraser(x), exact))
                name = str(dtype).removeprefix("torch.")
                bench.note(
                    f"apply {name} d={d} rank {eraser.rank}",
                    copies=ours / copy,
                    ours_ms=ours,
                    copy_ms=copy,
                    one_call_ms=call,
                    spread_ms=spread,
                    most=most[dtype, eraser.rank] if d == 4096 else None,
                    differ=float((eraser(x) != exact).double().mean()),
                    left_over_exact=left / best,
                    before=leftover(x, z, classes),
                    left=left,
                )
                del x, exact
    eraser = excise.random_projection(4096, 17, 0).to("cuda")
    vector = torch.randn(4096, device="cuda")
    module = eraser.as_module()
    calls = {
        "eraser(x)": lambda: eraser(vector),
        "as_module()": lambda: module(vector),
        "x.clone()": lambda: vector.clone(),
    }
    for name, call in calls.items():  # the last is the least that a call can take here
        bench.note(f"one vector d=4096, {name}", microseconds=1e3 * milliseconds(call, 200)[0], most=40.0)


def leftover(x: torch.Tensor, z: torch.Tensor, classes: int) -> float:
    """Largest |covariance| of a feature with a class, in standard deviations of both."""
    wide = x.double()
    wide -= wide.mean(0)
    labels = torch.nn.functional.one_hot(z, classes).double()
    labels -= labels.mean(0)
    covariance = wide.T @ labels / len(wide)
    return float((covariance / wide.std(0).clamp(min=1e-300)[:, None] / labels.std(0)[None, :]).abs().max())


def main() -> None:
    bench = Bench()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in (updates, solves, applies):
            part(bench)
            torch.cuda.empty_cache()
        try:
            from benchmarks.scrubbing_gpu import scrubs
        except ImportError:
            scrubs = None
        if scrubs is not None:
            scrubs(bench)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, encoding="utf-8"
    ).stdout
    record = {
        "hardware": torch.cuda.get_device_name(),
        "versions": {
            "excise": excise.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "concept-erasure": "0.2.4",
        },
        "commit": commit.strip() or (sys.argv[2] if len(sys.argv) > 2 else ""),
        "results": bench.rows,
    }
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results" / "core-gpu.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
