"""What must hold before a scrubber is written into a model's weights or into an adapter. Nothing is changed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from excise.erasers.affine import AffineEraser
from excise.errors import ConceptError, ExciseError, InputError
from excise.exporting.quantised import is_quantised, without_quantisation
from excise.exporting.scrubbed import Scrubber, check_identity, model_inputs, sample_of

__all__ = ["MARK", "affine_erasers", "check_model", "sample_inputs"]

MARK = "excise"  # name of the entry in the configuration of a folded model
TOKENS = 16


def affine_erasers(scrubber: Scrubber) -> dict[str, AffineEraser]:
    """The erasers, where all of them are fixed affine maps; those that change nothing are left out.

    Raises:
        ConceptError: they need labels when applied.
        ExciseError: they are no affine maps (drawn at random, or normalised), or none of them changes anything.
    """
    out: dict[str, AffineEraser] = {}
    for path, eraser in scrubber.erasers.items():
        if eraser.needs_labels:
            raise ConceptError(
                f"the {scrubber.about.get('method', 'oracle')} scrubber needs the label of every token when it is applied: it is "
                f"not a fixed map and cannot be moved into weights; scrub with method='leace'",
                code="needs-labels",
            )
        if not isinstance(eraser, AffineEraser):
            raise ExciseError(
                f"the eraser at {path} is a {type(eraser).__name__}, which is drawn anew at every forward pass: only fixed "
                f"affine maps can be moved into weights",
                code="not-affine",
            )
        if eraser.normalize:
            raise ExciseError(
                f"the eraser at {path} divides by the length of its result (normalize=True): that is no affine map and cannot "
                f"be moved into weights; scrub without normalize",
                code="not-affine",
            )
        if eraser.rank or (eraser.emptied is not None and len(eraser.emptied)):
            out[path] = eraser
    if not out:
        raise ExciseError(
            f"this scrubber changes nothing at its {len(scrubber.erasers)} sites (rank 0): there is nothing to fold",
            code="rank-zero",
        )
    return out


def check_model(model: torch.nn.Module, scrubber: Scrubber, allow_quantised: bool = False) -> None:
    """
    Raises:
        ExciseError: another model than the one that was scrubbed, or one whose weights cannot be read here: folded
            already, quantised (unless allowed), on the meta device, or spread over several devices.
    """
    _check_not_folded(model)
    _check_not_wrapped(model)
    _check_weights_at_hand(model)
    if not is_quantised(model):
        check_identity(model, scrubber.identity)
        return
    if not allow_quantised:
        raise ExciseError(
            f"this {type(model).__name__} is quantised: weights of 8 bits or fewer cannot hold the edit, and rounding it away "
            f"would bring the concept back. Fold the model that was scrubbed and quantise the result, or use scrubber.to_lora",
            code="quantised",
        )
    with without_quantisation(model, scrubber.identity) as expected:
        check_identity(model, expected)


def _check_not_folded(model: torch.nn.Module) -> None:
    done = getattr(getattr(model, "config", model), MARK, None)
    if done is not None:
        raise ExciseError(
            f"a scrubber is folded into this model already ({_described(done)}). A second edit in front of the first would bring "
            f"the first concept back: scrub the original model of both concepts jointly, then fold that",
            code="folded-already",
        )


def _described(done: Any) -> str:
    return ", ".join(
        f"{name}: {done[name]}" for name in ("method", "sites") if isinstance(done, Mapping) and name in done
    )


def _check_not_wrapped(model: torch.nn.Module) -> None:
    if isinstance(model, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
        raise ExciseError("the model is wrapped for parallel training: pass model.module", code="sharded")
    if hasattr(model, "_orig_mod"):
        raise ExciseError("the model is compiled: pass it as it was before torch.compile", code="wrapped")
    if hasattr(model, "peft_config") or any(hasattr(module, "base_layer") for module in model.modules()):
        raise ExciseError(
            "the model carries an adapter of PEFT: merge it (merge_and_unload) and scrub the result, or take it off (unload)",
            code="adapter",
        )


def _check_weights_at_hand(model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.device.type == "meta":
            raise ExciseError(
                f"{name} is on the meta device: the model has no weights here (offloaded, or not loaded yet); load it whole, "
                f"without device_map or with one device",
                code="no-weights",
            )
        if type(parameter.data).__name__ == "DTensor":
            raise ExciseError(
                f"{name} is a DTensor: this process holds only a shard of it; load the model whole in one process",
                code="sharded",
            )
    places = getattr(model, "hf_device_map", None) or {}
    if len(set(map(str, places.values()))) > 1:
        raise ExciseError(
            f"the model is spread over {', '.join(sorted(set(map(str, places.values()))))}: load it on one device (device_map="
            f"None or 'cpu'), fold it there and save it",
            code="sharded",
        )


def sample_inputs(model: torch.nn.Module, batch: Mapping[str, Any] | None) -> dict[str, Any]:
    """A few tokens to trace the model with: those of `batch`, or any that the vocabulary has.

    Raises:
        InputError: no batch, and the model has no token embeddings that would tell its vocabulary.
    """
    if batch is not None:
        return sample_of(model_inputs(model, batch))
    embeddings = getattr(model, "get_input_embeddings", lambda: None)()
    size = getattr(embeddings, "num_embeddings", None)
    if size is None:
        raise InputError(
            f"cannot tell what {type(model).__name__} takes as input: pass batch=, a dict of its inputs",
            code="no-batch",
        )
    ids = (torch.arange(1, TOKENS + 1) % size)[None, :]
    made = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        made["decoder_input_ids"] = ids
    return sample_of(model_inputs(model, made))
