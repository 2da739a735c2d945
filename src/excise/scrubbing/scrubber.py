"""Scrubber: the erasers of a model, attached by hooks and saved as a folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from excise import _files
from excise.eraser import AffineEraser, OracleEraser
from excise.errors import ConceptError, FileFormatError, InputError
from excise.scrubbing.capture import hooked, module_of
from excise.scrubbing.controls import RandomEraser
from excise.scrubbing.identity import check_identity
from excise.scrubbing.labels import Labels, read_labels

__all__ = ["STATE", "Eraser", "Scrubber", "apply_eraser", "read_state", "write_state"]

Eraser = AffineEraser | OracleEraser | RandomEraser
KINDS: dict[str, Any] = {"AffineEraser": AffineEraser, "OracleEraser": OracleEraser, "RandomEraser": RandomEraser}
STATE = "scrubber.json"


@dataclass(eq=False)
class Scrubber:
    """Erasers by site, in the order in which they were fitted.

    `figures` has for each site: rank, canonical correlation with the concept before, spectral norm of the edit, and the
    ratio of the total variance after to that before (None where a method does not need what the figure needs).
    """

    erasers: dict[str, Eraser]
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)  # of the model
    about: dict[str, Any] = field(default_factory=dict)  # method, options, concept, tokens: plain JSON values

    @contextmanager
    def attached(self, model: torch.nn.Module, concept: Any = None, first_draw: int = 0) -> Iterator[torch.nn.Module]:
        """Hooks on, and always off again; `model.generate` and training work as ever in between. May be nested.

        Args:
            model: the model that was scrubbed.
            concept: labels of the batch that is run, as in `scrub`, where the method is "oracle"; positions with -100
                are left as they are. Other methods have no use for it.
            first_draw: number of the first forward pass, for the random control, which draws a subspace for each: give
                another one where hooks go on and off between the batches of one measurement.

        Raises:
            ExciseError: another model.
            ConceptError: the oracle without labels.
        """
        check_identity(model, self.identity)
        if concept is None and any(isinstance(eraser, OracleEraser) for eraser in self.erasers.values()):
            raise ConceptError("an oracle scrubber needs labels: attached(model, concept=labels of the batch)")
        placed = {path: _placed(eraser, module_of(model, path), model) for path, eraser in self.erasers.items()}
        draw = [first_draw - 1]  # number of the forward pass, for the random control
        cached: dict[tuple[int, int], Labels] = {}

        def labels(rows: int) -> Labels:
            shape = tuple(concept.shape) if hasattr(concept, "shape") else (len(concept),)
            tokens = (shape[0], rows // shape[0])
            if tokens not in cached:
                cached[tokens] = read_labels(concept, tokens)
            return cached[tokens]

        def visit(path: str, x: torch.Tensor) -> torch.Tensor:
            eraser = placed[path]
            rows = x.shape[:-1].numel()
            return apply_eraser(
                eraser, path, x, labels(rows) if isinstance(eraser, OracleEraser) else None, max(draw[0], 0)
            )

        def count(*_: Any) -> None:
            draw[0] += 1

        with ExitStack() as stack:
            stack.callback(model.register_forward_pre_hook(count).remove)
            stack.enter_context(hooked(model, placed, visit))
            yield model

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that `excise.load` reads: a JSON description, and a safetensors file per site.

        Raises:
            FileFormatError: the folder holds something else.
        """
        write_state(folder, self, complete=True)

    @staticmethod
    def load(folder: str | os.PathLike[str]) -> Scrubber:
        """
        Raises:
            FileNotFoundError: there is no such folder.
            FileFormatError: it holds no scrubber, or an unfinished one.
        """
        scrubber, state = read_state(folder)
        if not state["complete"]:
            raise FileFormatError(
                f"{folder} holds an unfinished scrubber ({len(scrubber.erasers)} sites): finish it with scrub(..., "
                f"resume={str(folder)!r}) and the same arguments"
            )
        return scrubber

    def __repr__(self) -> str:
        ranks = sorted({eraser.rank for eraser in self.erasers.values()})
        return (
            f"Scrubber(method={self.about.get('method')!r}, model={self.identity.get('model')!r}, sites={len(self.erasers)}, "
            f"rank={'-'.join(map(str, ranks[:: max(1, len(ranks) - 1)]))})"
        )


def apply_eraser(eraser: Eraser, path: str, x: torch.Tensor, labels: Labels | None, draw: int = 0) -> torch.Tensor:
    """What a site becomes; the one way for fitting and application.

    Rows that are not finite stay as they are: attention makes them where a whole window is padding.

    Raises:
        InputError: the edit leaves the range of the dtype; the message names the site.
    """
    rows = x.reshape(-1, x.shape[-1])
    if isinstance(eraser, OracleEraser):
        assert labels is not None
        keep = torch.from_numpy(labels.keep).to(x.device)
        return _some(rows, keep, lambda part: eraser(part, labels.values)).reshape(x.shape)
    edit = eraser.at(draw) if isinstance(eraser, RandomEraser) else eraser
    try:
        erased: torch.Tensor = edit(x)
        return erased
    except InputError as error:
        finite = rows.isfinite().all(dim=1)
        if bool(finite.all()):
            raise InputError(f"at {path}: {error}") from None
        return _some(rows, finite, edit).reshape(x.shape)


def _some(rows: torch.Tensor, keep: torch.Tensor, edit: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    out = rows.clone()
    if bool(keep.any()):
        out[keep] = edit(rows[keep])
    return out


def _placed(eraser: Eraser, module: torch.nn.Module, model: torch.nn.Module) -> Eraser:
    """Factors on the device of the site, so that they do not travel at every call."""
    parameter = next(module.parameters(), next(model.parameters(), None))
    if isinstance(eraser, RandomEraser) or parameter is None or parameter.device.type == "cpu":
        return eraser
    return eraser.to(device=parameter.device)


def write_state(
    folder: str | os.PathLike[str], scrubber: Scrubber, complete: bool, more: Mapping[str, Any] | None = None
) -> None:
    """Save a scrubber, or what there is of it. The description comes last: a crash leaves the state before.

    Raises:
        FileFormatError: the folder holds something else.
    """
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise FileFormatError(f"{target} is a file: a scrubber is saved as a folder")
    files = target / "erasers"
    if target.is_dir() and any(target.iterdir()) and not (target / STATE).exists() and not files.is_dir():
        raise FileFormatError(f"the folder {target} holds other files: save a scrubber into an empty or a new folder")
    old = _read_json(target) if (target / STATE).exists() else None
    known = old["sites"] if old and old["run"] == (more or {}) and more else []
    if old is not None and not known and old["sites"]:  # another scrubber: never a mixture of the two
        (target / STATE).unlink()
        shutil.rmtree(files, ignore_errors=True)
    files.mkdir(parents=True, exist_ok=True)
    sites = []
    for number, (path, eraser) in enumerate(scrubber.erasers.items()):
        name = f"{number:04d}.safetensors"
        if number >= len(known):
            eraser.save(files / name)
        sites.append({"path": path, "file": name, "figures": scrubber.figures.get(path, {})})
    state = {
        "format": _files.FORMAT,
        "kind": "Scrubber",
        "versions": _files.versions() | {"torch": torch.__version__},
        "complete": complete,
        "about": scrubber.about,
        "identity": scrubber.identity,
        "sites": sites,
        "run": dict(more or {}),
    }
    with _files.replacing(target / STATE) as temporary:
        temporary.write_text(json.dumps(state, indent=1))


def _read_json(folder: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text())
        if state["kind"] != "Scrubber":
            raise KeyError
    except (ValueError, KeyError, TypeError):
        raise FileFormatError(f"{folder / STATE} was not written by excise, or is damaged") from None
    if state["format"] > _files.FORMAT:
        raise FileFormatError(
            f"{folder} has format {state['format']}, this excise reads up to {_files.FORMAT}: upgrade"
        )
    return state


def read_state(folder: str | os.PathLike[str]) -> tuple[Scrubber, dict[str, Any]]:
    """A scrubber, finished or not, and its description.

    Raises:
        FileNotFoundError: there is no such folder.
        FileFormatError: it holds no scrubber.
    """
    source = Path(folder)
    if not source.exists():
        raise FileNotFoundError(f"no such folder: {source}")
    if not (source / STATE).exists():
        raise FileFormatError(f"the folder {source} holds no scrubber ({STATE} is not there)")
    state = _read_json(source)
    erasers: dict[str, Eraser] = {}
    try:
        for site in state["sites"]:
            kind, arrays, about = _files.read(source / "erasers" / site["file"])
            erasers[site["path"]] = KINDS[kind].from_stored(arrays, about)
        figures = {site["path"]: site["figures"] for site in state["sites"]}
        return Scrubber(erasers, figures, state["identity"], state["about"]), state
    except (KeyError, TypeError, InputError, FileNotFoundError) as error:
        raise FileFormatError(f"{source} holds a scrubber with parts missing or wrong ({error})") from None
