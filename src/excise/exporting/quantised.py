"""Models whose weights are held in 8 or 4 bits: how they are recognised, and their weights as numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from excise.errors import ExciseError
from excise.exporting.scrubbed import identify

__all__ = ["forget_quantiser", "is_quantised", "weight_of", "without_quantisation"]


def is_quantised(model: torch.nn.Module) -> bool:
    """Whether Transformers loaded the model with a quantiser, or a linear layer holds no floating-point weight.

    A GGUF file whose weights were unpacked when it was loaded is an ordinary model, though a quantiser loaded it.
    """
    quantiser: Any = getattr(model, "hf_quantizer", None)
    if quantiser is not None and "gguf" not in str(quantiser.quantization_config.quant_method).lower():
        return True
    return any(_holds_codes(module) for module in model.modules() if isinstance(module, torch.nn.Linear))


def _holds_codes(module: torch.nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor):
        return True
    return not weight.is_floating_point() or type(weight.data).__module__.startswith("torchao.")


def forget_quantiser(model: Any) -> None:
    """Take away what is left of the loading of a GGUF file: without it, `save_pretrained` writes an ordinary checkpoint."""
    quantiser: Any = getattr(model, "hf_quantizer", None)
    if quantiser is not None:
        quantiser.remove_quantization_config(model)


def weight_of(module: Any, transposed: bool) -> torch.Tensor:
    """W (outputs, inputs) of a linear layer in float64, dequantised where it is held in codes.

    Raises:
        ExciseError: PEFT cannot dequantise this kind of layer.
    """
    weight = module.weight.detach() if not _holds_codes(module) else _dequantised(module)
    wide = weight.to(device="cpu" if weight.device.type == "mps" else weight.device, dtype=torch.float64)
    return wide.T if transposed else wide


def _dequantised(module: Any) -> torch.Tensor:
    if type(module.weight).__name__ == "Int8Params":
        # By hand: PEFT's function replaces the parameter, and on the CPU the layer then runs no more.
        scale = module.state.SCB if module.state.SCB is not None else module.weight.SCB
        codes: torch.Tensor = module.weight.data
        numbers: torch.Tensor = codes.double() * scale.to(codes.device, torch.float64)[:, None] / 127.0
        return numbers
    if getattr(getattr(module.weight, "quant_state", None), "packing_format_for_cpu", False):
        return _read_off(module)
    try:
        from peft.utils.integrations import dequantize_module_weight

        weight: torch.Tensor = dequantize_module_weight(module).detach()
    except (ImportError, TypeError, AttributeError, RuntimeError, NotImplementedError) as error:
        raise ExciseError(
            f"the weight of a {type(module).__name__} cannot be dequantised ({type(error).__name__}: {error}): make the adapter "
            f"with the model in 16 or 32 bits; it works on the quantised model too",
            code="quantised",
        ) from None
    if tuple(weight.shape) != (module.out_features, module.in_features) or not weight.is_floating_point():
        raise ExciseError(
            f"PEFT cannot dequantise a {type(module).__name__} (got {tuple(weight.shape)} {weight.dtype}): make the adapter with "
            f"the model in 16 or 32 bits; it works on the quantised model too",
            code="quantised",
        )
    return weight


def _read_off(module: Any) -> torch.Tensor:
    """W of a layer that bitsandbytes has packed for AVX512-bf16, which no dequantising function understands: W I."""
    with torch.no_grad():
        rows: torch.Tensor = module(torch.eye(module.in_features, device=module.weight.device))
        return (rows if module.bias is None else rows - module.bias).T


@contextmanager
def without_quantisation(model: torch.nn.Module, expected: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """While it lasts, the configuration has no entry of the quantiser. Gives the identity that the model must then have.

    Weights that are held as codes cannot be compared with the numbers of a scrubber: norms, embeddings and shapes are.
    """
    config: Any = getattr(model, "config", None)
    hidden = vars(config).pop("quantization_config", None) if config is not None else None
    codes = {
        f"{path}.weight"
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and _holds_codes(module)
    }
    try:
        found = identify(model, [])
        yield {
            **expected,
            "shapes": {
                name: found["shapes"].get(name) if name in codes else v for name, v in expected["shapes"].items()
            },
            "weights": {
                name: found["weights"].get(name) if name in codes else v for name, v in expected["weights"].items()
            },
        }
    finally:
        if hidden is not None:
            config.quantization_config = hidden
