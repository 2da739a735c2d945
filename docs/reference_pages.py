"""Write the reference: every public name, in groups, and the help of every command.

The pages are made from `excise.__all__` at each build, so that a new public name cannot be forgotten: what no group
names is listed under "More".
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import excise

FOLDER = Path(__file__).parent / "reference"
# Methods that scikit-learn adds to every estimator, documented there.
ROUTING = "set_fit_request, set_partial_fit_request, set_transform_request"


@dataclass(frozen=True)
class Group:
    """One page: names of excise, and names of rooms, by module, that are part of a result or an interface."""

    file: str
    title: str
    text: str
    names: tuple[str, ...]
    more: tuple[str, ...] = ()


GROUPS = (
    Group(
        "fitting",
        "Fit and erase",
        "From arrays to an eraser, with one call or with a scikit-learn transformer.",
        ("fit", "erase", "ConceptEraser", "load"),
    ),
    Group(
        "concepts",
        "Concepts and moments",
        "Labels of any kind are read once, as a Concept. Moments are all that most methods need to know of the data.",
        ("Concept", "Moments", "ClassMoments"),
    ),
    Group(
        "methods",
        "Methods",
        "Each method is a function that returns an eraser. `excise.fit(X, z, method=...)` calls them by name.",
        (
            "leace",
            "oracle",
            "sal",
            "mean_projection",
            "splince",
            "switch",
            "fair_pca",
            "inlp",
            "rlace",
            "quadratic",
            "alf",
            "transport",
            "joint",
            "random_projection",
        ),
    ),
    Group(
        "erasers",
        "Erasers",
        "What a method returns: a small frozen object. Call it on rows; save it as safetensors.",
        ("AffineEraser", "OracleEraser", "TransportEraser"),
        ("excise.erasers.random.RandomEraser", "excise.erasers.protocol.Eraser"),
    ),
    Group(
        "auditing",
        "Audit and compare",
        "The evidence, as plain data: every class below is a field of a report.",
        ("audit", "Report", "compare", "Comparison"),
        (
            "excise.auditing.guardedness.Guardedness",
            "excise.auditing.guardedness.Condition",
            "excise.auditing.held_out.HeldOut",
            "excise.auditing.probes.ProbeResult",
            "excise.auditing.cost.Cost",
            "excise.auditing.fairness.Fairness",
            "excise.auditing.fairness.Outcomes",
            "excise.auditing.comparison.Outcome",
        ),
    ),
    Group(
        "scrubbing",
        "Language models",
        "Erasers at every site of a transformer, and what they did.",
        ("scrub", "Scrubber", "evaluate", "Evaluation", "decodability", "Decodability", "amnesic", "Amnesic"),
        (
            "excise.measuring.figures.LabelFigures",
            "excise.measuring.figures.EvaluationTable",
            "excise.measuring.decodability.SiteFigures",
            "excise.measuring.amnesic.LayerFigures",
            "excise.measuring.unigram.Unigram",
            "excise.text.tagging.tag",
            "excise.text.tagged.TaggedText",
            "excise.text.words.LabelledText",
        ),
    ),
    Group("data", "Files", "Tables on disk, read and written in batches.", (), ("excise.data",)),
    Group("exporting", "Export", "Erasers and scrubbers in other people's formats.", (), ("excise.exporting",)),
    Group("distributed", "Clusters", "Moments from many workers.", (), ("excise.distributed",)),
    Group(
        "errors",
        "Errors",
        "All errors are `ValueError`s. Codes are explained in [Errors and warnings](../errors.md).",
        ("ExciseError", "InputError", "ConceptError", "FileFormatError", "ExciseWarning"),
    ),
)


def public_names() -> list[str]:
    return [name for name in excise.__all__ if name != "__version__"]


def qualified(name: str) -> str:
    return f"excise.{name}"


def rooms_names(path: str) -> list[str]:
    """A name by its module; a room stands for the public names of its files. Nothing where it does not exist (yet)."""
    try:
        room = importlib.import_module(path)
        if hasattr(room, "__all__"):
            return [f"{path}.{name}" for name in room.__all__]
        files = [_importable(f"{path}.{file.name}") for file in pkgutil.iter_modules(room.__path__)]
        names = [(file, name) for file in files for name in getattr(file, "__all__", [])]
        own = [(file, name) for file, name in names if getattr(getattr(file, name), "__module__", "") == file.__name__]
        return [f"{file.__name__}.{name}" for file, name in own]
    except ModuleNotFoundError:
        module, name = path.rsplit(".", 1)
        try:
            return [path] if hasattr(importlib.import_module(module), name) else []
        except ModuleNotFoundError:
            return []


def _importable(path: str) -> Any:
    """The module, or None if it needs an extra that the site is built without."""
    try:
        return importlib.import_module(path)
    except (ImportError, excise.ExciseError):
        return None


def entry(path: str) -> str:
    module, name = path.rsplit(".", 1)
    found = getattr(importlib.import_module(module), name)
    if inspect.isclass(found):
        quiet = issubclass(found, (Exception, Warning))
        options = (
            ""
            if quiet
            else f"   :members:\n   :undoc-members:\n   :special-members: __call__\n   :exclude-members: {ROUTING}\n"
        )
        directive = "autoexception" if quiet else "autoclass"
        return f".. {directive}:: {path}\n{options}"
    return f".. {'autofunction' if callable(found) else 'autodata'}:: {path}\n"


def page(title: str, text: str, paths: list[str]) -> str:
    blocks = [f"# {title}\n\n{text}\n"]
    for path in paths:
        blocks.append(f"## {path.rsplit('.', 1)[1]}\n\n```{{eval-rst}}\n{entry(path)}```\n")
    return "\n".join(blocks)


def commands_page() -> str:
    """The help of every command, as the terminal shows it, 100 columns wide."""
    import typer
    from typer.testing import CliRunner

    from excise.cli.app import app

    app.rich_markup_mode = None  # plain text, without frames
    names = sorted(getattr(typer.main.get_command(app), "commands", {}))
    blocks = ["# Command line\n\n`excise COMMAND --help` shows the same text.\n"]
    for name in ["", *names]:
        arguments = [*([name] if name else []), "--help"]
        said = CliRunner().invoke(app, arguments, prog_name="excise", terminal_width=100, max_content_width=100).output
        blocks.append(f"## {f'excise {name}'.strip()}\n\n```text\n{said.strip()}\n```\n")
    return "\n".join(blocks)


def write() -> None:
    """All pages, and their index. A file is touched only where its text changed, so that builds are incremental."""
    FOLDER.mkdir(exist_ok=True)
    texts: dict[str, str] = {}
    left = set(public_names())
    for group in GROUPS:
        names = [name for name in group.names if name in left]
        left -= set(names)
        paths = [qualified(name) for name in names] + [path for more in group.more for path in rooms_names(more)]
        if paths:
            texts[group.file] = page(group.title, group.text, paths)
    if left:
        texts["more"] = page("More", "Public names of this version.", [qualified(name) for name in sorted(left)])
    texts["commands"] = commands_page()
    toctree = "\n".join(texts)
    texts["index"] = (
        "# Reference\n\nEvery public name of excise. `import excise` is enough for all of them; nothing heavy is imported "
        f"before it is used.\n\n```{{toctree}}\n:maxdepth: 2\n\n{toctree}\n```\n"
    )
    for name, text in texts.items():
        path = FOLDER / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for path in FOLDER.glob("*.md"):
        if path.stem not in texts:
            path.unlink()


if __name__ == "__main__":
    write()
