"""Erasers as layers inside a model: for torch.compile, torch.export and ONNX, and for sites that cannot be folded.

`scrubber.attached` computes on the host with NumPy where that is fastest, which no compiler can follow. Here every
eraser is a layer of PyTorch that belongs to the module of its site, so the model compiles and exports in one graph.
"""

from __future__ import annotations

from typing import Any

import torch

from excise.errors import ConceptError, ExciseError
from excise.exporting.checks import MARK
from excise.exporting.scrubbed import Scrubber, check_identity, first_tensor, hidden_slot, module_of, visit_of

__all__ = ["Inserted", "insert"]

NAMES = {False: "excise_eraser", True: "excise_input_eraser"}  # of the layer that erases the output, or the input


class Inserted:
    """Layers that were put into a model. `remove()` takes them out; so does the end of a `with` block."""

    def __init__(self, model: torch.nn.Module, handles: list[Any], layers: list[tuple[torch.nn.Module, str]]) -> None:
        self.model = model
        self._handles, self._layers = handles, layers

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        for module, name in self._layers:
            if name in module._modules:
                delattr(module, name)
        self._handles, self._layers = [], []

    def __enter__(self) -> torch.nn.Module:
        return self.model

    def __exit__(self, *_: Any) -> None:
        self.remove()


def insert(scrubber: Scrubber, model: torch.nn.Module) -> Inserted:
    """Put the erasers of a scrubber into a model as layers, at every kind of site, post-norm ones too.

    The layers move with the model (`.to(device)`), keep their float64 factors when it is cast, and are part of its graph.
    They are no part of stock Transformers: a saved checkpoint does not run them. Use `fold` for that.

    Raises:
        ConceptError: the erasers need labels.
        ExciseError: another model, or one that holds erasers already; erasers that are drawn at random.
    """
    if getattr(getattr(model, "config", model), MARK, None) is not None:
        raise ExciseError("a scrubber is folded into this model already: it needs no layers", code="folded-already")
    if any(hasattr(module, name) for module in model.modules() for name in NAMES.values()):
        raise ExciseError(
            "this model holds the layers of a scrubber already: remove() them first", code="inserted-already"
        )
    check_identity(model, scrubber.identity)
    for path, eraser in scrubber.erasers.items():
        if visit_of(path) > 1:
            raise ExciseError(
                f"{path} is one of several visits of a module in one forward pass: a layer cannot tell them apart; keep the hooks "
                f"(scrubber.attached)",
                code="shared-weights",
            )
        if eraser.needs_labels:
            raise ConceptError(
                f"the eraser at {path} needs the label of every token: it cannot be a layer", code="needs-labels"
            )
        if not hasattr(eraser, "as_module"):
            raise ExciseError(
                f"the eraser at {path} is a {type(eraser).__name__}, which is no fixed map", code="not-affine"
            )
    handles: list[Any] = []
    layers: list[tuple[torch.nn.Module, str]] = []
    for path, eraser in scrubber.erasers.items():
        module, at_input = module_of(model, path), path.endswith(":in")
        layer: Any = eraser.as_module()  # type: ignore[attr-defined]
        parameter = next(module.parameters(), next(model.parameters()))
        module.add_module(NAMES[at_input], layer.to(parameter.device).train(module.training))
        layers.append((module, NAMES[at_input]))
        handles.append(
            module.register_forward_pre_hook(_EraseInput(), with_kwargs=True)
            if at_input
            else module.register_forward_hook(_EraseOutput())
        )
    return Inserted(model, handles, layers)


class _EraseOutput:
    """A hook that holds nothing itself: the layer belongs to the module, so a copy of the model has its own."""

    def __call__(self, module: Any, args: tuple[Any, ...], output: Any) -> Any:
        x = first_tensor(output)
        if x is None:
            raise ExciseError(f"the output of a {type(module).__name__} is {type(output).__name__}, no hidden states")
        erased = module.excise_eraser(x)
        return erased if isinstance(output, torch.Tensor) else type(output)((erased, *output[1:]))


class _EraseInput:
    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        slot = hidden_slot(args, kwargs)
        if slot is None:
            raise ExciseError(f"a {type(module).__name__} is not called with hidden states")
        if isinstance(slot, int):
            return (*args[:slot], module.excise_input_eraser(args[slot]), *args[slot + 1 :]), kwargs
        return args, {**kwargs, slot: module.excise_input_eraser(kwargs[slot])}
