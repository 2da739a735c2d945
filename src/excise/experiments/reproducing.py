"""Which experiments there are, and how one of them is run by its name."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excise.errors import ExciseError, need
from excise.experiments.running import Run
from excise.experiments.sources import digest

__all__ = ["EXPERIMENTS", "Options", "reproduce"]

# name: (module, what it shows). A later experiment is simply added.
EXPERIMENTS: dict[str, tuple[str, str]] = {
    "oblique": ("four_points", "the four-point example, and LEACE in three steps"),
    "intrinsic": ("edit_frontier", "what is left of the concept against the size of the edit, for every method"),
    "fairness": ("profession_gaps", "profession prediction: accuracy and TPR gaps before, after, and re-fitted"),
    "amnesic": ("layer_by_layer", "part of speech erased at one layer at a time of a masked language model"),
    "scrubbing": ("every_layer", "bits per byte with part of speech erased at every layer, and what fitting costs"),
    "norm-growth": ("norm_growth", "total variance after and before, by site: when does the limit fire?"),
    "theory": ("equivalence", "the equivalent conditions as the strength goes from 0 to 1, and what they do not cover"),
    "oracle": ("oracle_edit", "oracle LEACE against LEACE: edit size, and what nonlinear probes find"),
}


@dataclass(frozen=True)
class Options:
    """Paths of data and models. None means the paper's originals, loaded from the Hub."""

    data: Path | None = None  # a folder of local files of the same kind
    models: Path | None = None  # a folder that holds small local models
    model: str | None = None  # one model by name or path, in place of the experiment's own
    gguf_file: str | None = None
    window: int | None = None  # tokens; the paper's 2,048 or the model's context if that is shorter


def reproduce(
    name: str, folder: Path, options: Options | None = None, quick: bool = False, seed: int = 0, show: bool = True
) -> dict[str, Any]:
    """Run an experiment; its result.json, table.md, figure.png and figure.svg are written to `folder`.

    Raises:
        ExciseError: an unknown name, missing data or models (before any long work), or a theorem that did not hold.
    """
    if name not in EXPERIMENTS:
        raise ExciseError(f"there is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    need("report", "the figure of an experiment", "matplotlib")
    module = importlib.import_module(f"excise.experiments.{EXPERIMENTS[name][0]}")
    options = options or Options()
    for path in (options.data, options.models):
        if path is not None and not path.is_dir():
            raise ExciseError(f"{path} is not a folder")
    settings: dict[str, Any] = {
        "data": "local" if options.data else "hub",
        "model": Path(options.model).name if options.model else None,
    }
    assert module.__file__ is not None
    settings["code"] = digest(Path(module.__file__))  # other code, other steps
    run = Run(name, folder, quick, seed, settings, show=show)
    result = run.finish(module.experiment(run, options))
    return {**result, "paper": module.PAPER}
