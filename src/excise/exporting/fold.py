"""fold: a scrubber inside the ordinary weights of a model, at no cost when it runs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from excise import files
from excise.errors import ExciseError
from excise.exporting.checks import MARK
from excise.exporting.edits import Edit, edits_of
from excise.exporting.quantised import forget_quantiser, weight_of
from excise.exporting.scrubbed import Scrubber
from excise.exporting.slots import Slots, find_slots

__all__ = ["fold"]


def fold(scrubber: Scrubber, model: torch.nn.Module, batch: Mapping[str, Any] | None = None) -> torch.nn.Module:
    """Move the edits of a scrubber into the layers that read its sites: W' = W - (W U) V^T, b' = b + (W U)(V^T mu).

    The model is changed and returned. It needs no hooks any more, runs as fast as before, and `save_pretrained` and
    `from_pretrained` work without excise. What the layers compute is the same as with hooks; the tensor of a site
    itself is not erased any more, only what its readers make of it. Nothing is changed if anything is refused.

    Args:
        scrubber: fitted on this model, by a method whose erasers are fixed affine maps.
        model: the model that was scrubbed.
        batch: inputs to trace the model with; any few tokens unless given.

    Raises:
        ExciseError: another model; folded already; quantised, sharded or without weights; a site that something else
            than linear layers reads; a mean to keep and no slot for a bias; weights tied to other layers.
    """
    edits = edits_of(scrubber, model, batch)
    untied = [edit for edit in edits if _is_tied(model, edit)]
    slots = find_slots(model, [edit.path for edit in edits if edit.c is not None and edit.reader.module.bias is None])
    new = [_changed(edit) for edit in edits]  # all of it is there and finite before anything is changed
    _take_own_config(model)
    _commit(model, edits, new, slots)
    _untie(model, untied)
    forget_quantiser(model)
    _mark(model, scrubber)
    return model


def _changed(edit: Edit) -> tuple[torch.Tensor, torch.Tensor | None]:
    """W' and b' in the dtype of the layer, computed in float64 and rounded once."""
    module: Any = edit.reader.module
    W = weight_of(module, edit.reader.transposed)
    weight = W + edit.B @ edit.A
    weight = (weight.T if edit.reader.transposed else weight).contiguous()
    bias = None
    if edit.c is not None:
        bias = edit.c if module.bias is None else module.bias.detach().to(edit.c.device, torch.float64) + edit.c
    like = module.weight
    rounded = [None if part is None else part.to(device=like.device, dtype=like.dtype) for part in (weight, bias)]
    for part in rounded:
        if part is not None and not bool(part.isfinite().all()):
            raise ExciseError(
                f"the new weights of {edit.path} leave the range of {like.dtype}: fold the model in a wider dtype; nothing was "
                f"changed",
                code="out-of-range",
            )
    assert rounded[0] is not None
    return rounded[0], rounded[1]


def _take_own_config(model: Any) -> None:
    """Two models may be built from one configuration object: only that of the folded model changes."""
    copies: dict[int, Any] = {}
    copy.deepcopy(getattr(model, "config", None), copies)
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if hasattr(value, "to_dict") and hasattr(value, "model_type") and id(value) in copies:
                setattr(module, name, copies[id(value)])


def _commit(
    model: torch.nn.Module, edits: list[Edit], new: list[tuple[torch.Tensor, torch.Tensor | None]], slots: Slots
) -> None:
    for edit, (weight, bias) in zip(edits, new, strict=True):
        _put(edit.reader.module, "weight", weight)
        if bias is not None:
            _put(edit.reader.module, "bias", bias)
    for name in slots.gained:
        module: Any = model.get_submodule(name.rpartition(".")[0])
        if module.bias is None:  # the switch adds biases to more layers than needed
            zeros = torch.zeros(module.weight.shape[0], dtype=module.weight.dtype, device=module.weight.device)
            _put(module, "bias", zeros, module.weight.requires_grad)
    slots.turn_on(getattr(model, "config", None))


def _put(module: torch.nn.Module, name: str, value: torch.Tensor, requires_grad: bool | None = None) -> None:
    """A new parameter, so that whatever shared the old one keeps it."""
    old = getattr(module, name)
    if requires_grad is None:
        requires_grad = module.weight.requires_grad if old is None else old.requires_grad  # type: ignore[assignment]
    setattr(module, name, torch.nn.Parameter(value, requires_grad=bool(requires_grad)))


def _is_tied(model: Any, edit: Edit) -> bool:
    """Whether the layer's weight is that of the token embeddings too.

    Raises:
        ExciseError: it is shared with something else.
    """
    weight = edit.reader.module.weight
    sharing = [
        path
        for path, module in model.named_modules()
        if path != edit.path and any(own is weight for own in module.parameters(recurse=False))
    ]
    if not sharing:
        return False
    known = {id(f()) for f in (getattr(model, "get_input_embeddings", None),) if f is not None}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is edit.reader.module and len(sharing) == 1 and id(model.get_submodule(sharing[0])) in known:
        return True
    raise ExciseError(
        f"{edit.path} shares its weight with {', '.join(sharing)}: folding {edit.reader.site} would change them too; give it a "
        f"weight of its own first, or keep the hooks (scrubber.attached)",
        code="shared-weights",
    )


def _untie(model: Any, edits: list[Edit]) -> None:
    if not edits:
        return
    model.config.tie_word_embeddings = False
    keys = getattr(model, "all_tied_weights_keys", None)
    if isinstance(keys, dict):
        for edit in edits:
            keys.pop(f"{edit.path}.weight", None)


def _mark(model: Any, scrubber: Scrubber) -> None:
    """A note in the configuration, so that a folded model is known when it is loaded again."""
    note = {
        "version": files.versions()["excise"],
        "method": scrubber.about.get("method"),
        "concept": scrubber.about.get("concept"),
        "sites": len(scrubber.erasers),
    }
    setattr(getattr(model, "config", model), MARK, note)
