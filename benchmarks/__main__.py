"""`make bench`: print the ratios, and keep them in benchmarks/results."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

from benchmarks import core

RESULTS = Path(__file__).parent / "results"


def hardware() -> str:
    models = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return f"{models[0] if models else platform.processor()}, {len(os.sched_getaffinity(0))} cores"


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    results = core.run()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "core-cpu.json"
    record = {
        "hardware": hardware(),
        "versions": {name: version(name) for name in ("excise", "numpy", "scipy", "torch", "concept-erasure")},
        "commit": commit,
        "results": [
            {"what": w, "figure": round(f, 3), "unit": u.strip(), "limit": limit} for w, f, u, limit in results
        ],
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"kept in {path}")


if __name__ == "__main__":
    main()
