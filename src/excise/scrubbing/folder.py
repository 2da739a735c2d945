"""A scrubber as a folder: a JSON description and a safetensors file per site. Unfinished runs are kept the same way.

The description is written last and renamed into place, so a crash leaves the state before it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

from excise import files
from excise.erasers.protocol import Eraser
from excise.erasers.stored import ERASERS
from excise.errors import FileFormatError, InputError
from excise.scrubbing.coverage import Coverage
from excise.scrubbing.scrubber import Scrubber

__all__ = ["holds_scrubber", "read_folder", "write_folder"]

DESCRIPTION, FOLDER = "scrubber.json", "erasers"


def holds_scrubber(folder: str | os.PathLike[str]) -> bool:
    return (Path(folder) / DESCRIPTION).exists()


def write_folder(folder: str | os.PathLike[str], scrubber: Scrubber, complete: bool = True, known: int = 0) -> None:
    """Save a scrubber, or what there is of it. The first `known` erasers are there already.

    Raises:
        FileFormatError: the folder holds something else.
    """
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise FileFormatError(f"{target} is a file: a scrubber is saved as a folder")
    ours = holds_scrubber(target) or (target / FOLDER).is_dir()
    if target.is_dir() and not ours and any(target.iterdir()):
        raise FileFormatError(f"the folder {target} holds other files: save a scrubber into an empty or a new folder")
    (target / FOLDER).mkdir(parents=True, exist_ok=True)
    if not known:
        (target / DESCRIPTION).unlink(missing_ok=True)  # never the description of one scrubber with erasers of another
    sites = []
    for number, (path, eraser) in enumerate(scrubber.erasers.items()):
        name = f"{number:04d}.safetensors"
        if number >= known:
            eraser.save(target / FOLDER / name)
        sites.append({"path": path, "file": name, "figures": scrubber.figures.get(path, {})})
    description = {
        "format": files.FORMAT,
        "kind": "Scrubber",
        "versions": files.versions() | {"torch": torch.__version__},
        "about": scrubber.about,
        "identity": scrubber.identity,
        "sites": sites,
        "coverage": None if scrubber.coverage is None else scrubber.coverage.to_dict(),
        "complete": complete,
    }
    with files.replacing(target / DESCRIPTION) as temporary:
        temporary.write_text(json.dumps(description, indent=1), encoding="utf-8")


def read_folder(folder: str | os.PathLike[str]) -> tuple[Scrubber, bool]:
    """A scrubber, and whether it is complete.

    Raises:
        FileNotFoundError: there is no such folder.
        FileFormatError: it holds no scrubber, or one of a newer excise.
    """
    source = Path(folder)
    if not source.exists():
        raise FileNotFoundError(f"no such folder: {source}")
    if not holds_scrubber(source):
        raise FileFormatError(f"the folder {source} holds no scrubber ({DESCRIPTION} is not there)")
    try:
        stored = json.loads((source / DESCRIPTION).read_text(encoding="utf-8"))
        version, sites = stored["format"], stored["sites"]
        if stored["kind"] != "Scrubber" or not isinstance(version, int):
            raise KeyError("kind")
    except (ValueError, KeyError, TypeError):
        raise FileFormatError(f"{source / DESCRIPTION} was not written by excise, or is damaged") from None
    if version > files.FORMAT:
        raise FileFormatError(f"{source} has format {version}, this excise reads up to {files.FORMAT}: upgrade excise")
    try:
        erasers: dict[str, Eraser] = {}
        for site in sites:
            kind, arrays, about = files.read(source / FOLDER / site["file"])
            erasers[site["path"]] = ERASERS[kind].from_stored(arrays, about)
        figures = {site["path"]: site["figures"] for site in sites}
        coverage = None if stored.get("coverage") is None else Coverage.from_dict(stored["coverage"])
        return Scrubber(erasers, figures, stored["identity"], stored["about"], coverage), stored["complete"]
    except (KeyError, TypeError, InputError, FileNotFoundError) as error:
        raise FileFormatError(f"{source} holds a scrubber with parts missing or wrong ({error})") from None
