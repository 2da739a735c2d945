"""The tables of the page on performance, from the files in benchmarks/results, so that the page shows what was measured last."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parent / "reference"
RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"


def heading(found: dict) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"{found['hardware']}; {versions}.\n\n"


def cpu() -> str:
    found = json.loads((RESULTS / "core-cpu.json").read_text())
    lines = ["| what | figure | limit that we set |", "|---|---|---|"]
    lines += [f"| {row['what']} | {row['figure']:.3g} {row['unit']} | {row['limit']} |" for row in found["results"]]
    return heading(found) + "\n".join(lines) + "\n"


def gpu() -> str:
    found = json.loads((RESULTS / "core-gpu.json").read_text())
    lines = ["| what | excise, ms | compared with, ms | ratio |", "|---|---|---|---|"]
    for row in found["results"]:
        name, peer = next((key, row[key]) for key in ("reference_ms", "clone_ms") if key in row)
        what = "concept-erasure" if name == "reference_ms" else "a copy"
        ratio = f"{row['ratio']:.2g} times faster" if name == "reference_ms" else f"{row['ratio']:.3g} times the time"
        lines.append(f"| {row['what']} | {row['ours_ms']:.3g} | {what}: {peer:.3g} | {ratio} |")
    return heading(found) + "\n".join(lines) + "\n"


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in (("performance-cpu.txt", cpu()), ("performance-gpu.txt", gpu())):
        path = FOLDER / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


if __name__ == "__main__":
    print(cpu(), gpu(), sep="\n")
