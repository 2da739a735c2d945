"""Slots for biases: where a layer has none, the switch in the configuration that gives it one.

The switches are found by trying: each entry of the configuration that is False and speaks of a bias is turned on in a
model without weights (on the meta device), and what it gains is looked at. So a folded model is one that stock
Transformers builds from its configuration.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from excise.errors import ExciseError

__all__ = ["Slots", "find_slots"]

LISTED = 4


@dataclass(frozen=True)
class Slots:
    """Entries of the configuration to turn on, and the biases that a model built from it has in addition."""

    switches: tuple[tuple[tuple[str, ...], str], ...]  # (path to a part of the configuration, name of the entry)
    gained: tuple[str, ...]  # names of parameters

    def turn_on(self, config: Any) -> None:
        for keys, name in self.switches:
            setattr(_holder(config, keys), name, True)


def find_slots(model: torch.nn.Module, layers: list[str]) -> Slots:
    """What must be turned on so that every one of `layers`, which have no bias, gets one.

    Raises:
        ExciseError: the family has no such switch for some of them.
    """
    if not layers:
        return Slots((), ())
    wanted = {f"{layer}.bias" for layer in layers}
    config: Any = getattr(model, "config", None)
    useful = [at for at in _candidates(config) if wanted & set(_gained(model, [at]))]
    gained = _gained(model, useful) if useful else []
    missing = sorted(wanted - set(gained))
    if missing:
        names = ", ".join(name.removesuffix(".bias") for name in missing[:LISTED])
        more = f" and {len(missing) - LISTED} others" if len(missing) > LISTED else ""
        raise ExciseError(
            f"{names}{more} have no bias, and the configuration of {type(model).__name__} has no switch that adds one, so the mean "
            f"that the eraser keeps has no place in this model. Scrub with affine=False: it needs no bias, guards just as "
            f"exactly (only the mean moves) and folds into every pre-norm family. Or use scrubber.to_lora, whose adapter has "
            f"biases of its own",
            code="no-bias-slot",
        )
    return Slots(tuple(useful), tuple(gained))


def _candidates(config: Any) -> list[tuple[tuple[str, ...], str]]:
    """(path to a part of the configuration, name of an entry that is False and speaks of a bias)"""
    if config is None:
        return []
    return [
        (keys, name)
        for keys, part in _parts(config)
        for name in sorted(vars(part))
        if "bias" in name and getattr(part, name) is False
    ]


def _parts(config: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield keys, config
    for name, value in vars(config).items():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from _parts(value, (*keys, name))


def _holder(config: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        config = getattr(config, key)
    return config


def _gained(model: torch.nn.Module, switches: list[tuple[tuple[str, ...], str]]) -> list[str]:
    """Names of the biases that a model gains by these switches; none if anything else would change."""
    config = copy.deepcopy(model.config)
    for keys, name in switches:
        setattr(_holder(config, keys), name, True)
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            built = type(model)(config)
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        return []  # a switch that cannot be turned on alone
    now, then = _shapes(model), _shapes(built)
    gained = [name for name in then if name not in now]
    same = all(then.get(name) == shape for name, shape in now.items())
    only_biases = all(name.endswith(".bias") and len(then[name]) == 1 for name in gained)
    return gained if same and only_biases else []


def _shapes(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes of all parameters and buffers. Not by state_dict(): bitsandbytes converts its weights in place there."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: tuple(value.shape) for name, value in named}
