"""How an experiment runs: steps that are kept as they finish, and at the end a result, a table and a figure.

A step is kept as JSON under the key of its arguments, so a run that was stopped goes on after its last finished step.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from excise.errors import ExciseError
from excise.files import replacing, versions
from excise.tables import markdown as table

__all__ = ["Finding", "Outcome", "Run", "markdown", "paper_options"]


def paper_options(method: str, quick: bool = False) -> dict[str, Any]:
    """Options with which a method is the paper's: LEACE without shrinkage, INLP with 20 rounds (fewer when quick)."""
    options: dict[str, dict[str, Any]] = {"leace": {"shrinkage": "none"}, "inlp": {"rounds": 2 if quick else 20}}
    return options.get(method, {})


@dataclass(frozen=True)
class Finding:
    """One statement: a theorem, which must hold, or something found, which is told as it is."""

    statement: str
    holds: bool
    theorem: bool = False
    note: str = ""


@dataclass(frozen=True)
class Outcome:
    """What an experiment gives back: rows of a table, findings, and how to draw its figure."""

    columns: list[str]
    rows: list[list[Any]]
    findings: list[Finding]
    draw: Callable[[Any], None]  # with a matplotlib figure
    size: tuple[float, float] = (8.0, 4.5)
    more: dict[str, Any] = field(default_factory=dict)  # whatever else is worth keeping, as JSON


@dataclass
class Run:
    """One run of one experiment into one folder."""

    name: str
    folder: Path
    quick: bool = False
    seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)  # name of a source -> its hash
    show: bool = True

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.began = time.perf_counter()
        self.spent = 0.0  # seconds of steps that an earlier run finished

    def say(self, text: str) -> None:
        if self.show:
            print(f"[{self.name}] {text}", file=sys.stderr, flush=True)

    def used(self, name: str, digest: str) -> None:
        """Note a source of data or a model, with the hash of what was read."""
        self.data[name] = digest

    def step(self, key: str, work: Callable[[], Any]) -> Any:
        """What `work` gives (plain JSON values), now or in an earlier run with the same settings and data."""
        about = json.dumps([self.name, key, self.quick, self.seed, self.settings, self.data], sort_keys=True)
        path = self.folder / "steps" / f"{hashlib.sha256(about.encode()).hexdigest()[:16]}.json"
        if path.is_file():
            stored = json.loads(path.read_text(encoding="utf-8"))
            self.spent += stored["seconds"]
            self.say(f"{key}: kept from before")
            return stored["value"]
        self.say(f"{key} ...")
        start = time.perf_counter()
        value = json.loads(json.dumps(work()))  # what is kept is what is used
        seconds = time.perf_counter() - start
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps({"key": key, "value": value, "seconds": seconds}), encoding="utf-8")
        self.say(f"{key}: {seconds:.1f} s")
        return value

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        """Write result.json, table.md, figure.png and figure.svg.

        Raises:
            ExciseError: a theorem does not hold; what was measured is written all the same.
        """
        result = {
            "name": self.name,
            "quick": self.quick,
            "seed": self.seed,
            "settings": self.settings,
            "data": self.data,
            "versions": _versions(),
            "hardware": _hardware(),
            "seconds": round(time.perf_counter() - self.began + self.spent, 1),
            "columns": outcome.columns,
            "rows": outcome.rows,
            "findings": [vars(finding) for finding in outcome.findings],
            "more": outcome.more,
        }
        with replacing(self.folder / "result.json") as temporary:
            temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        with replacing(self.folder / "table.md") as temporary:
            temporary.write_text(markdown(outcome.columns, outcome.rows) + "\n", encoding="utf-8")
        self._figure(outcome)
        broken = [finding.statement for finding in outcome.findings if finding.theorem and not finding.holds]
        if broken:
            raise ExciseError(f"{self.name}: what is a theorem did not hold: {'; '.join(broken)} (see {self.folder})")
        return result

    def _figure(self, outcome: Outcome) -> None:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        settings: dict[Any, Any] = {"svg.hashsalt": self.name, "axes.spines.top": False, "axes.spines.right": False}
        with matplotlib.rc_context(settings):
            figure = Figure(figsize=outcome.size, layout="constrained")
            FigureCanvasAgg(figure)
            outcome.draw(figure)
            figure.savefig(self.folder / "figure.png", dpi=110)
            figure.savefig(self.folder / "figure.svg", metadata={"Date": None})


def _hardware() -> dict[str, Any]:
    import os

    torch: Any = sys.modules.get("torch")
    device = torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else "CPU"
    return {"processors": os.cpu_count(), "device": device}


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = dict(versions())
    for name in ("scipy", "scikit-learn", "torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def markdown(columns: list[str], rows: list[list[Any]]) -> str:
    """A table; numbers to four digits, a dash where there is none."""
    return table(columns, ([_cell(value) for value in row] for row in rows))


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        if value == 0 or 1e-3 <= abs(value) < 1e5:
            return f"{value:.4f}"
        return f"{value:.2e}"
    return str(value).replace("|", "\\|")
