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
from excise.errors import ConceptError, ExciseError, FileFormatError, warn
from excise.scrubbing.addresses import address
from excise.scrubbing.capture import Visits, first_tensor, hooked, module_of, with_first
from excise.scrubbing.coverage import Coverage
from excise.scrubbing.edits import apply_eraser, edit_of, placed_at
from excise.scrubbing.identity import check_identity
from excise.scrubbing.labels import BatchLabels, Labels
from excise.scrubbing.wrappers import refuse_compiled, uncompiled, unwrapped

__all__ = ["Scrubber"]


@dataclass(eq=False)
class Scrubber:
    """Erasers by site, in the order in which they were fitted.

    `figures` has for each site: rank, canonical correlation with the concept before, spectral norm of the edit, and the
    ratio of the total variance after to that before (None where a method does not need what the figure needs).
    `coverage` is a table of all matrices of the model and of what each still receives of the concept on the fitting
    tokens; None where sites were fitted on the clean model.
    """

    erasers: dict[str, Eraser]
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)  # of the model
    about: dict[str, Any] = field(default_factory=dict)  # method, options, concept, tokens: plain JSON values
    coverage: Coverage | None = None

    @contextmanager
    def attached(
        self, model: Any, concept: Any = None, first_draw: int = 0, decoder_concept: Any = None
    ) -> Iterator[Any]:
        """Hooks on, and always off again; `model.generate` and training work as ever in between. May be nested.

        A compiled model runs uncompiled while hooks are on: compiled code would not see them.

        Args:
            model: the model that was scrubbed, or a wrapper around it.
            concept: labels of the batch that is run, as in `scrub`, where the method is "oracle" or `where` was "labelled";
                positions with -100 are left as they are. Otherwise it is not used.
            first_draw: number of the first forward pass, for the random control, which draws a subspace for each: give
                another one where hooks go on and off between the batches of one measurement.
            decoder_concept: the same as concept, for the tokens of a decoder.

        Raises:
            ExciseError: another model; or a forward pass that went by without calling a single hook.
            ConceptError: the oracle without labels.
        """
        inner = unwrapped(model)
        refuse_compiled(inner)
        check_identity(inner, self.identity)
        given = {"concept": concept, "decoder_concept": decoder_concept}
        attachment = Attachment(self, inner, {name: z for name, z in given.items() if z is not None}, first_draw)
        with uncompiled(), attachment.on(), _saving_warns(model, inner):
            yield model
        attachment.check()

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


class Attachment:
    """A scrubber on a model, for the time of a `with` statement."""

    def __init__(self, scrubber: Scrubber, model: torch.nn.Module, concepts: dict[str, Any], first_draw: int) -> None:
        self.model, self.concepts, self.about = model, concepts, scrubber.about
        self.placed = {path: placed_at(e, module_of(model, path), model) for path, e in scrubber.erasers.items()}
        self.labelled = scrubber.about.get("arguments", {}).get("where", "all") == "labelled"
        self.sides: dict[str, str] = scrubber.about.get("sides", {})
        self.time_first = frozenset(scrubber.about.get("time_first", ()))
        for path, eraser in scrubber.erasers.items():
            side = self.sides.get(path, "concept")
            if (eraser.needs_labels or self.labelled) and side not in concepts:
                kind = "an oracle scrubber" if eraser.needs_labels else "a scrubber with where='labelled'"
                raise ConceptError(f"{kind} needs labels: attached(model, {side}=labels of the batch)")
        self.draw = first_draw - 1  # number of the forward pass, for the random control
        self.drawn = {path: eraser.drawn(0) is not eraser for path, eraser in self.placed.items()}
        self.edits = {path: edit_of(eraser, path) for path, eraser in self.placed.items()}
        self.forwards = self.fired = 0
        self._labels: dict[str, BatchLabels] = {}

    @contextmanager
    def on(self) -> Iterator[None]:
        visits = Visits()
        repeated = {path: within for path, (_, within) in self.about.get("repeated", {}).items()}
        ours = {address(path).path for path in self.placed}
        with ExitStack() as stack:
            stack.callback(self.model.register_forward_pre_hook(self._begin).remove)
            stack.callback(self.model.register_forward_hook(self._end).remove)
            for within in dict.fromkeys(repeated[path] for path in ours if path in repeated):
                inside = [path for path in ours if repeated.get(path) == within]
                module = self.model.get_submodule(within)
                stack.callback(module.register_forward_pre_hook(lambda *_, inside=inside: visits.reset(inside)).remove)
            rest = []
            for path, eraser in self.placed.items():
                site = address(path)
                if site.inside or site.path in repeated or eraser.needs_labels or self.labelled or self.drawn[path]:
                    rest.append(path)
                else:
                    hook = self._short(path, self.edits[path])
                    stack.callback(module_of(self.model, path).register_forward_hook(hook).remove)
            stack.enter_context(hooked(self.model, rest, self._visit, visits, ours - set(repeated)))
            yield

    def _short(self, path: str, edit: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        """A hook for the usual case, the output of a module that runs once: it is called for every generated token."""

        def after(_: Any, args: Any, output: Any) -> Any:
            self.fired += 1
            if type(output) is torch.Tensor:
                return edit(output)
            x = first_tensor(output)
            if x is None:
                raise ExciseError(
                    f"{path}: the output is {type(output).__name__}, no hidden states; choose another site"
                )
            return with_first(output, edit(x))

        return after

    def check(self) -> None:
        """
        Raises:
            ExciseError: the model ran, and no eraser with it.
        """
        if self.forwards and not self.fired and self.placed:
            raise ExciseError(
                f"the model ran {self.forwards} times while the scrubber was attached, and not one of its {len(self.placed)} hooks "
                f"was called: what came out is the clean model's. Was it compiled, traced or exported before? Pass the plain "
                f"model, or put the erasers into its weights with scrubber.fold(model)",
                code="no-hook",
            )

    def _begin(self, *_: Any) -> None:
        self.draw += 1

    def _end(self, *_: Any) -> None:
        self.forwards += 1

    def _visit(self, path: str, x: torch.Tensor) -> torch.Tensor:
        self.fired += 1
        eraser = self.placed[path]
        if self.drawn[path]:
            return apply_eraser(eraser.drawn(max(self.draw, 0)), path, x, None)
        if not eraser.needs_labels and not self.labelled:
            return self.edits[path](x)
        return apply_eraser(eraser, path, x, self._labels_at(path, x), path in self.time_first)

    def _labels_at(self, path: str, x: torch.Tensor) -> Labels:
        side = self.sides.get(path, "concept")
        concept = self.concepts[side]
        shape = tuple(concept.shape) if hasattr(concept, "shape") else (len(concept),)
        rows = x.shape[:-1].numel() // shape[0]
        if side not in self._labels:
            self._labels[side] = BatchLabels(concept, shape[0])
        return self._labels[side].at(rows, self.about.get("extra"))


@contextmanager
def _saving_warns(*models: Any) -> Iterator[None]:
    """While it lasts, `save_pretrained` says that it writes the clean model."""
    with ExitStack() as stack:
        for model in dict.fromkeys(models):
            own = getattr(model, "save_pretrained", None)
            if own is None or "save_pretrained" in model.__dict__:
                continue  # not such a model, or attached already

            def save(*args: Any, own: Any = own, **kwargs: Any) -> Any:
                warn(
                    "save_pretrained while a scrubber is attached writes the clean model: hooks are not saved. Use "
                    "scrubber.fold(model) for a model that has the erasers in its weights, or scrubber.save(folder)",
                    code="saves-clean",
                )
                return own(*args, **kwargs)

            model.__dict__["save_pretrained"] = save
            stack.callback(model.__dict__.pop, "save_pretrained", None)
        yield
