"""What a model is run on: the parts of a batch that its forward takes, whatever they are called."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from excise.errors import InputError

__all__ = ["MAIN", "batch_size", "main_input", "model_inputs", "moved", "names_taken", "sample_of", "tokens_of"]

USUAL = {"input_ids", "attention_mask", "token_type_ids", "position_ids"}  # for a forward(*args, **kwargs)
NEVER = {"labels", "concept", "decoder_concept"}
TEXT = {"input_ids": 2, "inputs_embeds": 3}  # and their dimensions
OTHERS = ("pixel_values", "input_values", "input_features", "pixel_values_videos", "audio_values")
MAIN = (*TEXT, *OTHERS)
SAMPLE = (1, 13, 11)  # sequences, tokens, and tokens of a decoder: unlike each other, so that shapes tell them apart


def names_taken(model: torch.nn.Module) -> set[str]:
    """Names of what the model's forward takes."""
    parameters = inspect.signature(model.forward).parameters
    takes = {name for name in parameters if name not in NEVER}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        takes |= USUAL
    return takes


def model_inputs(model: torch.nn.Module, batch: Mapping[str, Any]) -> dict[str, Any]:
    """What of a batch the model's forward takes by name (never `labels`), as tensors on its device.

    Numbers come in the dtype of the model: pixels and samples are mostly float32, whatever the model is.

    Raises:
        InputError: there is nothing to run the model on, or of another shape.
    """
    if not isinstance(batch, Mapping):
        raise InputError(f"a batch must be a dict with input_ids, got {type(batch).__name__}")
    takes = names_taken(model)
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    device = torch.device("cpu") if first is None else first.device
    inputs: dict[str, Any] = {}
    for name in batch:
        if name in takes and batch[name] is not None:
            value = batch[name]
            if isinstance(value, (tuple, list, Mapping)) and not _is_numeric(value):
                inputs[name] = value
                continue
            value = moved(torch.as_tensor(value), device)
            if value.is_floating_point() and first is not None and "mask" not in name:
                value = value.to(first.dtype)
            inputs[name] = value
    main_input(inputs)
    tokens_of(inputs)
    if "use_cache" in inspect.signature(model.forward).parameters:
        inputs["use_cache"] = False  # keys and values of a pass are of no use to the next
    return inputs


def moved(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor on a device. The copy does not wait for what the device is doing."""
    if device.type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def _is_numeric(value: Any) -> bool:
    """Whether nested lists hold numbers alone."""
    if isinstance(value, (tuple, list)):
        return all(_is_numeric(item) for item in value)
    return isinstance(value, (int, float))


def main_input(inputs: Mapping[str, Any]) -> str:
    """The name of the input that holds the tokens, pixels or samples.

    Raises:
        InputError: there is none.
    """
    for name in MAIN:
        if inputs.get(name) is not None:
            return name
    raise InputError(
        f"a batch needs input_ids of shape (B, T) (or inputs_embeds, {', '.join(OTHERS[:3])}), got "
        f"{', '.join(map(str, inputs)) or 'nothing'}"
    )


def batch_size(inputs: Mapping[str, Any]) -> int:
    """B: sequences, images or clips of a batch."""
    return int(inputs[main_input(inputs)].shape[0])


def tokens_of(inputs: Mapping[str, Any]) -> tuple[int, int] | None:
    """(B, T) of a batch of text; None where the model itself makes the vectors (patches, frames).

    Raises:
        InputError: there is no input, or input_ids or inputs_embeds have another number of dimensions.
    """
    name = main_input(inputs)
    shape = tuple(inputs[name].shape)
    if name not in TEXT:
        if len(shape) < 2 or 0 in shape:
            raise InputError(f"{name} has shape {shape}: expected a batch of at least one example")
        return None
    if len(shape) != TEXT[name] or 0 in shape:
        expected = "(B, T)" if name == "input_ids" else "(B, T, d)"
        raise InputError(f"{name} has shape {shape}: expected {expected}, at least one token")
    return shape[0], shape[1]


def sample_of(inputs: Mapping[str, Any], size: tuple[int, int, int] = SAMPLE, padded: bool = False) -> dict[str, Any]:
    """The first tokens of the first sequences of a batch, none of them masked: what is masked reads nothing.

    Args:
        inputs: what the model takes.
        size: sequences, tokens, and tokens of a decoder. A sequence is repeated where there are too few.
        padded: mask the last tokens of the last sequence, as padding.
    """
    B, tokens = batch_size(inputs), tokens_of(inputs)
    sides = {
        "": None if tokens is None else tokens[1],
        "decoder_": inputs["decoder_input_ids"].shape[1] if inputs.get("decoder_input_ids") is not None else None,
    }

    def cut(name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.ndim == 0 or value.shape[0] != B:
            return value
        value = value[: size[0]]
        if len(value) < size[0]:
            value = torch.cat([value] * size[0])[: size[0]]
        side = "decoder_" if name.startswith("decoder_") else ""
        length = size[2] if side else size[1]
        if sides[side] is not None and value.ndim >= 2 and value.shape[1] == sides[side]:
            value = value[:, :length]
        if name.endswith("attention_mask"):
            value = torch.ones_like(value)
            if padded and value.ndim == 2 and value.shape[1] > 1:
                value[-1, -max(1, value.shape[1] // 4) :] = 0
        return value

    return {name: cut(name, value) for name, value in inputs.items()}
