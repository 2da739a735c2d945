"""`make bench`: print the ratios, and keep them in benchmarks/results."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks import core, methods

RESULTS = Path(__file__).parent / "results"


def hardware() -> str:
    models = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return f"{models[0] if models else platform.processor()}, {len(os.sched_getaffinity(0))} cores"


def keep(name: str, results: list[core.Result], packages: tuple[str, ...]) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}-cpu.json"
    record = {
        "hardware": hardware(),
        "versions": {package: version(package) for package in packages},
        "commit": commit,
        "results": [
            {"what": w, "figure": round(f, 3), "unit": u.strip(), "limit": limit} for w, f, u, limit in results
        ],
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"kept in {path}")


def main() -> None:
    """All parts, or those that are named: `python -m benchmarks scrubbing`."""
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    wanted = sys.argv[1:] or ["core", "methods", "scrubbing"]
    if "core" in wanted:
        keep("core", core.run(), ("excise", "numpy", "scipy", "torch", "concept-erasure"))
    if "methods" in wanted:
        keep("methods", methods.run(), ("excise", "numpy", "scipy"))
    if "scrubbing" in wanted:
        from benchmarks import scrubbing

        keep("scrubbing", scrubbing.run(), ("excise", "numpy", "torch", "transformers"))


if __name__ == "__main__":
    main()
