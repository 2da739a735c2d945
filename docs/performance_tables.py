"""The tables of the page on performance, from the files in benchmarks/results, so that the page shows what was measured last."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parent / "reference"
SHOWN = ("ours_ms", "over_plain", "error", "microseconds", "passes", "ratio", "before", "after", "majority")
RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"


def heading(found: dict) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"{found['hardware']}; {versions}.\n\n"


def cpu() -> str:
    found = json.loads((RESULTS / "core-cpu.json").read_text(encoding="utf-8"))
    lines = ["| what | figure | limit that we set |", "|---|---|---|"]
    lines += [f"| {row['what']} | {row['figure']:.3g} {row['unit']} | {row['limit']} |" for row in found["results"]]
    return heading(found) + "\n".join(lines) + "\n"


def gpu() -> str:
    found = json.loads((RESULTS / "core-gpu.json").read_text(encoding="utf-8"))
    lines = ["| what | figure | limit that we set |", "|---|---|---|"]
    for row in found["results"]:
        if "reference_ms" in row:
            figure = f"{row['ours_ms']:.3g} ms, {row['ratio']:.3g} times faster than concept-erasure"
        elif "copies" in row:
            figure = f"{row['ours_ms']:.3g} ms, {row['copies']:.3g} times a copy"
        else:
            figure = ", ".join(f"{name} {row[name]:.3g}" for name in SHOWN if row.get(name) is not None)
        limit = f"at least {row['least']:g}" if "least" in row else ""
        limit = f"at most {row['most']:g}" if row.get("most") is not None else limit
        lines.append(f"| {row['what']} | {figure} | {limit} |")
    return heading(found) + "\n".join(lines) + "\n"


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in (("performance-cpu.txt", cpu()), ("performance-gpu.txt", gpu())):
        path = FOLDER / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    print(cpu(), gpu(), sep="\n")
