"""What a model comes wrapped in: torch.compile, PEFT, sentence-transformers, data parallel; and weights that are elsewhere.

Sites are named, and hooks set, in the model inside. Compiled code does not see hooks that came later, so while excise
looks at a model it runs uncompiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from excise.errors import ExciseError, InputError

__all__ = ["check_weights", "inner_transformer", "refuse_compiled", "uncompiled", "unwrapped"]


def unwrapped(model: Any) -> torch.nn.Module:
    """The model inside of its wrappers.

    Raises:
        InputError: no PyTorch model, or one whose wrapper changes the input.
    """
    while True:
        inside = _inside(model)
        if inside is None:
            break
        model = inside
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model must be a torch.nn.Module, got {type(model).__name__}", code="model")
    return model


def _inside(model: Any) -> Any:
    if isinstance(model, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
        return model.module
    if hasattr(model, "_orig_mod"):  # torch.compile(model)
        return model._orig_mod
    if hasattr(model, "get_base_model") and hasattr(model, "peft_config"):
        if getattr(model.active_peft_config, "is_prompt_learning", False):
            raise InputError(
                f"{type(model).__name__} with {type(model.active_peft_config).__name__} puts virtual tokens before the input: "
                f"its tokens cannot be matched with labels; pass the model without this adapter",
                code="prompt-learning",
            )
        return model.get_base_model()
    return inner_transformer(model)


def inner_transformer(model: Any) -> Any:
    """The transformer of a SentenceTransformer; None for everything else.

    Raises:
        InputError: it has none.
    """
    if not any(kind.__name__ == "SentenceTransformer" for kind in type(model).__mro__):
        return None
    for part in model.modules():
        for name in ("auto_model", "model"):
            found = part.__dict__.get("_modules", {}).get(name)
            if isinstance(found, torch.nn.Module) and hasattr(found, "config"):
                return found
    raise InputError("this SentenceTransformer has no transformer inside: there is nothing to scrub", code="model")


def check_weights(model: torch.nn.Module) -> None:
    """
    Raises:
        ExciseError: weights on the meta device, as those that were offloaded to disk.
    """
    for name, parameter in model.named_parameters():
        if parameter.device.type == "meta":
            raise ExciseError(
                f"{name} is on the meta device: its numbers are not in memory (offloaded to disk or to the CPU by device_map, or "
                f"not loaded yet). Load the model whole: without device_map, or with one that offloads nothing, or in 16 bits",
                code="no-weights",
            )


@contextmanager
def uncompiled() -> Iterator[None]:
    """While it lasts, torch.compile is not in force: neither in `model.compile()` nor in a wrapper around the model."""
    stance = getattr(torch.compiler, "set_stance", None)
    if stance is None:  # before PyTorch 2.6
        yield
        return
    with stance("force_eager"):
        yield


def refuse_compiled(model: torch.nn.Module) -> None:
    """
    Raises:
        ExciseError: a compiled model, in a version of PyTorch that cannot run it uncompiled for a while.
    """
    if hasattr(torch.compiler, "set_stance"):
        return
    if any(getattr(module, "_compiled_call_impl", None) is not None for module in model.modules()):
        raise ExciseError(
            f"this model is compiled, and PyTorch {torch.__version__} cannot run it uncompiled for a while: hooks would not be "
            f"seen. Pass the model as it was before model.compile(), or use PyTorch 2.6 or later",
            code="compiled",
        )
