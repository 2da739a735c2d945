"""The core on a CUDA device, against `concept-erasure` and against the speed of a copy. Run: python -m benchmarks.gpu"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import excise


def milliseconds(call: Callable[[], Any], repeat: int = 10) -> float:
    for _ in range(2):
        call()
    times = []
    for _ in range(repeat):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return float(np.median(times))


def main() -> None:
    from concept_erasure import LeaceFitter

    generator = torch.Generator("cuda").manual_seed(0)
    rows: list[dict[str, Any]] = []

    def note(what: str, **figures: float) -> None:
        rows.append({"what": what, **{name: round(value, 4) for name, value in figures.items()}})
        print(what, figures, flush=True)

    for d in (1024, 4096, 8192):
        n = 131_072 if d < 8192 else 65_536
        z = torch.randint(0, 18, (n,), device="cuda", generator=generator)
        x = (
            torch.randn(n, d, device="cuda", generator=generator)
            + torch.randn(18, d, device="cuda", generator=generator)[z]
        )
        one_hot = torch.nn.functional.one_hot(z, 18).float()
        theirs = milliseconds(lambda x=x, one_hot=one_hot, d=d: LeaceFitter(d, 18, device="cuda").update(x, one_hot), 5)
        ours = milliseconds(lambda x=x, z=z: excise.Moments().update(x, z), 5)
        note(f"update, float32, d={d}, n={n}, k=18", ours_ms=ours, reference_ms=theirs, ratio=theirs / ours)
        fitter = LeaceFitter(d, 18, device="cuda").update(x, one_hot)
        m = excise.Moments().update(x, z)

        def reference(fitter: Any = fitter) -> Any:
            fitter.__dict__.pop("_cached_eraser", None)
            return fitter.eraser

        theirs, ours = milliseconds(reference, 3), milliseconds(lambda m=m: excise.leace(m), 3)
        note(f"solve, d={d}, k=18", ours_ms=ours, reference_ms=theirs, ratio=theirs / ours)
        eraser = excise.leace(m)
        for dtype in (torch.float32, torch.bfloat16):
            y = x.to(dtype)
            copy, ours = milliseconds(lambda y=y: y.clone()), milliseconds(lambda y=y, eraser=eraser: eraser(y))
            note(f"apply, {dtype}, d={d}, n={n}, rank 17", ours_ms=ours, clone_ms=copy, ratio=ours / copy)
        del x, one_hot, fitter, m
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    record = {
        "hardware": torch.cuda.get_device_name(),
        "versions": {
            "excise": excise.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "concept-erasure": "0.2.4",
        },
        "commit": commit.strip() or (sys.argv[2] if len(sys.argv) > 2 else ""),
        "results": rows,
    }
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results" / "core-gpu.json"
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
