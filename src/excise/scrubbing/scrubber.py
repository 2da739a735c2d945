"""Scrubber: the erasers of a model, attached by hooks and saved as a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from excise.erasers.protocol import Eraser
from excise.errors import ConceptError, FileFormatError, InputError
from excise.scrubbing.batches import Labels, read_labels
from excise.scrubbing.capture import hooked, module_of
from excise.scrubbing.identity import check_identity

__all__ = ["Scrubber", "apply_eraser", "placed_at"]


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
        if concept is None and any(eraser.needs_labels for eraser in self.erasers.values()):
            raise ConceptError("an oracle scrubber needs labels: attached(model, concept=labels of the batch)")
        placed = {path: placed_at(eraser, module_of(model, path), model) for path, eraser in self.erasers.items()}
        draw = [first_draw - 1]  # number of the forward pass, for the random control
        cached: dict[tuple[int, int], Labels] = {}

        def labels(rows: int) -> Labels:
            shape = tuple(concept.shape) if hasattr(concept, "shape") else (len(concept),)
            tokens = (shape[0], rows // shape[0])
            if tokens not in cached:
                cached[tokens] = read_labels(concept, tokens)
            return cached[tokens]

        def visit(path: str, x: torch.Tensor) -> torch.Tensor:
            eraser = placed[path].drawn(max(draw[0], 0))
            known = labels(x.shape[:-1].numel()) if eraser.needs_labels else None
            return apply_eraser(eraser, path, x, known)

        def count(*_: Any) -> None:
            draw[0] += 1

        with ExitStack() as stack:
            stack.callback(model.register_forward_pre_hook(count).remove)
            stack.enter_context(hooked(model, placed, visit))
            yield model

    def fold(self, model: torch.nn.Module, batch: Mapping[str, Any] | None = None) -> torch.nn.Module:
        """Move the edits into the weights of the layers that read the sites; the model is changed and returned.

        See `excise.exporting.fold.fold` for the arguments and for what is refused.
        """
        from excise.exporting.fold import fold

        return fold(self, model, batch)

    def to_lora(
        self, model: torch.nn.Module, folder: str | os.PathLike[str], batch: Mapping[str, Any] | None = None
    ) -> Path:
        """Write the edits as a PEFT adapter; the model is not changed.

        See `excise.exporting.lora.to_lora` for the arguments and for what is refused.
        """
        from excise.exporting.lora import to_lora

        return to_lora(self, model, folder, batch)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that `excise.load` reads: a JSON description, and a safetensors file per site.

        Raises:
            FileFormatError: the folder holds something else.
        """
        from excise.scrubbing.folder import write_folder

        write_folder(folder, self)

    @staticmethod
    def load(folder: str | os.PathLike[str]) -> Scrubber:
        """
        Raises:
            FileNotFoundError: there is no such folder.
            FileFormatError: it holds no scrubber, or an unfinished one.
        """
        from excise.scrubbing.folder import read_folder

        scrubber, complete = read_folder(folder)
        if not complete:
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


def apply_eraser(eraser: Eraser, path: str, x: torch.Tensor, labels: Labels | None) -> torch.Tensor:
    """What a site becomes; the one way for fitting and application.

    Rows that are not finite stay as they are: attention makes them where a whole window is padding.

    Raises:
        InputError: the edit leaves the range of the dtype; the message names the site.
    """
    rows = x.reshape(-1, x.shape[-1])
    if eraser.needs_labels:
        assert labels is not None
        keep = torch.from_numpy(labels.keep).to(x.device)
        return _some(rows, keep, lambda part: eraser(part, labels.values)).reshape(x.shape)
    try:
        erased: torch.Tensor = eraser(x)
        return erased
    except InputError as error:
        finite = rows.isfinite().all(dim=1)
        if bool(finite.all()):
            raise InputError(f"at {path}: {error}") from None
        return _some(rows, finite, eraser).reshape(x.shape)


def _some(rows: torch.Tensor, keep: torch.Tensor, edit: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    out = rows.clone()
    if bool(keep.any()):
        out[keep] = edit(rows[keep])
    return out


def placed_at(eraser: Eraser, module: torch.nn.Module, model: torch.nn.Module) -> Eraser:
    """Factors on the device of the site, so that they do not travel at every call."""
    parameter = next(module.parameters(), next(model.parameters(), None))
    if parameter is None or parameter.device.type == "cpu":
        return eraser
    return eraser.to(device=parameter.device)
