"""docs/reproduction.md from the results: our figures beside the paper's, what agrees, what does not."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from excise.experiments.reproducing import EXPERIMENTS
from excise.experiments.running import markdown

__all__ = ["document", "main"]

MOST_ROWS = 40
HEAD = """# The paper, reproduced

Made by `python -m excise.experiments.document` from the `result.json` of each experiment; do not edit. The experiments run on the paper's
own models and data by hub name (`excise reproduce NAME`), or offline on small stand-ins of the same kind
(`--data`, `--models`): the figures below are of these stand-ins, so only the signs and orders can be compared with the paper's, not the
sizes. What is a theorem must hold, or the command fails; what is a finding is told as found.
"""


def document(results: Path) -> str:
    """Markdown from all results/NAME/result.json that there are."""
    parts = [HEAD]
    for name, (module, what) in EXPERIMENTS.items():
        path = results / name / "result.json"
        if not path.is_file():
            continue
        result = json.loads(path.read_text())
        paper = importlib.import_module(f"excise.experiments.{module}")
        parts.append(_section(name, what, result, paper.PAPER, getattr(paper, "REMARKS", "")))
    return "\n".join(parts)


def _section(name: str, what: str, result: dict[str, Any], paper: str, remarks: str) -> str:
    lines = [
        f"## `{name}`: {what}",
        "",
        f"**The paper.** {paper}",
        "",
        f"![{what}](../experiments/{name}/figure.svg)",
        "",
    ]
    rows = result["rows"]
    lines.append(markdown(result["columns"], rows[:MOST_ROWS]))
    if len(rows) > MOST_ROWS:
        lines.append(f"\n{len(rows) - MOST_ROWS} more rows are in [table.md](../experiments/{name}/table.md).")
    lines += ["", "| | statement | holds |", "|---|---|---|"]
    for finding in result["findings"]:
        note = f" ({finding['note']})" if finding["note"] else ""
        answer = ("yes" if finding["holds"] else "**no**") + note
        lines.append(f"| {'theorem' if finding['theorem'] else 'found'} | {finding['statement']} | {answer} |")
    if remarks:
        lines += ["", remarks]
    versions = ", ".join(f"{key} {value}" for key, value in result["versions"].items())
    sources = ", ".join(f"{key} ({value})" for key, value in result["data"].items()) or "none"
    hardware = f"{result['hardware']['processors']} processors, {result['hardware']['device']}"
    size = " at the quick size" if result["quick"] else ""
    lines += [
        "",
        f"Took {result['seconds']} s{size} on {hardware}; seed {result['seed']}; sources: {sources}; {versions}.",
        "",
    ]
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    results, target = (Path(argument) for argument in (arguments or ["experiments", "docs/reproduction.md"]))
    target.write_text(document(results), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
