"""What `excise fit` says at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from excise.cli._shared import say_notes, show_json

__all__ = ["FitReport"]


@dataclass(frozen=True)
class FitReport:
    """An eraser, or moments alone, and what they were made of."""

    method: str
    rows: int
    seconds: float
    d: int
    concept: Any
    eraser: Any = None
    output: Path | None = None
    moments: Path | None = None
    sample_of: int | None = None  # rows of the files, where a sample was used
    dropped: int = 0
    resumed: int = 0  # rows that an earlier run had read
    notes: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [] if self.concept is None else [str(name) for name in self.concept.names]

    def show(self, as_json: bool) -> None:
        if as_json:
            show_json(self.to_dict())
        else:
            say_notes(self.notes)
            for line in self.lines():
                typer.echo(line)

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "rows": self.rows,
            "d": self.d,
            "concept": self.names,
            "dropped": self.dropped,
            "resumed": self.resumed,
            "sample_of": self.sample_of,
            "seconds": round(self.seconds, 3),
            "output": None if self.output is None else str(self.output),
            "moments": None if self.moments is None else str(self.moments),
            "notes": self.notes,
        }
        if self.eraser is not None:
            out |= {"method": self.method, "rank": self.eraser.rank, "info": self.eraser.info}
        return out

    def lines(self) -> list[str]:
        shown = ", ".join(self.names[:6]) + (", ..." if len(self.names) > 6 else "")
        concept = "" if self.concept is None else f", concept {self.concept.kind} ({shown})"
        sample = "" if self.sample_of is None else f" (a sample of {self.sample_of:,})"
        out = [f"{self.rows:,} rows{sample}, {self.d} features{concept}"]
        if self.resumed:
            out.append(f"of these, {self.resumed:,} rows had been read before this run")
        if self.eraser is not None:
            out[0] = f"{self.method}: {out[0]}, rank {self.eraser.rank}"
            columns = self.eraser.feature_names or tuple(self.eraser.info.get("columns", ()))
            if columns:
                out.append(f"features: {', '.join(columns[:8])}{', ...' if len(columns) > 8 else ''}")
            if "rounds" in self.eraser.info and "residual" in self.eraser.info:
                rounds, residual = self.eraser.info["rounds"], self.eraser.info["residual"]
                out.append(f"unit vectors: {rounds} rounds, residual {residual:.1e}")
            if self.eraser.info.get("canonical_correlations"):
                found = ", ".join(f"{c:.3f}" for c in self.eraser.info["canonical_correlations"][:6])
                out.append(f"canonical correlations before: {found}")
        if self.moments is not None:
            out.append(f"moments: {self.moments}")
        if self.output is not None:
            out.append(f"eraser: {self.output}")
        return out
