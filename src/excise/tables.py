"""Rows of figures as JSON, CSV and Markdown: one way for all tables."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from excise.files import replacing

__all__ = ["markdown", "show", "write_csv", "write_json", "write_text"]


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file; a crash leaves no half file."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], figures: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(figures, indent=1) + "\n")


def write_csv(path: str | os.PathLike[str], rows: Sequence[Any], leave_out: Iterable[str] = ()) -> None:
    """One line per dataclass in `rows`."""
    left = set(leave_out)
    lines = [{name: value for name, value in asdict(row).items() if name not in left} for row in rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(lines[0]))
    writer.writeheader()
    writer.writerows(lines)
    write_text(path, out.getvalue())


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def show(value: float | None, error: float | None = None, digits: int = 3) -> str:
    """A number, with its standard error if there is one.

    >>> show(1.23456, 0.01), show(None)
    ('1.235 ± 0.010', '-')
    """
    if value is None:
        return "-"
    return f"{value:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")
