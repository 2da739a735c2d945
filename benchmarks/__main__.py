"""`make bench`: print the ratios, and keep them in benchmarks/results."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.core import Result

RESULTS = Path(__file__).parent / "results"


def hardware() -> str:
    models = [
        line.split(":")[1].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if "model name" in line
    ]
    return f"{models[0] if models else platform.processor()}, {len(os.sched_getaffinity(0))} cores"


def keep(name: str, results: list[Result], packages: tuple[str, ...], note: str = "") -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, encoding="utf-8"
    ).stdout.strip()
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    record = {
        "hardware": hardware(),
        "versions": {package: version(package) for package in packages},
        "commit": commit,
        **({"note": note} if note else {}),
        "results": [
            {"what": w, "figure": round(f, 3), "unit": u.strip(), "limit": limit} for w, f, u, limit in results
        ],
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"kept in {path}")


def main() -> None:
    """All parts, or those that are named: `python -m benchmarks scrubbing`. `files --full` takes gigabytes and an hour."""
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    full = "--full" in sys.argv
    wanted = [name for name in sys.argv[1:] if name != "--full"] or [
        "core",
        "methods",
        "scrubbing",
        "exporting",
        "files",
    ]
    # Imported when wanted: each part needs packages that the others do not.
    if "core" in wanted:
        from benchmarks import core

        keep("core-cpu", core.run(), ("excise", "numpy", "scipy", "torch", "concept-erasure"))
    if "methods" in wanted:
        from benchmarks import methods

        keep("methods", methods.run(), ("excise", "numpy", "scipy"))
    if "scrubbing" in wanted:
        from benchmarks import scrubbing

        keep("scrubbing-cpu", scrubbing.run(), ("excise", "numpy", "torch", "transformers"))
    if "exporting" in wanted:
        from benchmarks import exporting

        keep("exporting", exporting.run(), ("excise", "numpy", "torch", "transformers", "peft"))
    if "cost_model" in wanted:
        from benchmarks import cost_model

        keep("cost-model", cost_model.run(), ("excise", "numpy"))
    if "files" in wanted:
        from benchmarks import files

        found = files.run(full)
        note = f"load average at the end: {os.getloadavg()[2]:.1f} over 15 minutes"
        keep("files", found, ("excise", "numpy", "pyarrow", "dask"), note)


if __name__ == "__main__":
    main()
