"""Which model a scrubber belongs to: its configuration, the modules at its sites, and a few of its weights.

Weights are compared as numbers, to the accuracy of bfloat16: the same model in another dtype is the same model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from excise.errors import ExciseError
from excise.scrubbing.capture import module_of

__all__ = ["check_identity", "identify"]

VOLATILE = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "use_cache"}
SAMPLED = 8  # parameters, and numbers of each
RELATIVE = 2.0**-7  # one step of bfloat16


def identify(model: torch.nn.Module, sites: Iterable[str]) -> dict[str, Any]:
    """Plain JSON values."""
    config: Any = getattr(model, "config", None)
    settings = config.to_dict() if hasattr(config, "to_dict") else {}
    settings = {name: value for name, value in settings.items() if name not in VOLATILE and name[:1] != "_"}
    text = json.dumps(settings, sort_keys=True, default=str)
    parameters = dict(model.named_parameters())
    names = list(parameters)
    chosen = [names[i] for i in sorted({round(i) for i in np.linspace(0, len(names) - 1, SAMPLED)})] if names else []
    return {
        "model": type(model).__name__,
        "config": hashlib.sha256(text.encode()).hexdigest()[:16],
        "sites": {path: type(module_of(model, path)).__name__ for path in sites},
        "shapes": {name: list(parameters[name].shape) for name in chosen},
        "weights": {name: _few(parameters[name]) for name in chosen},
    }


def _few(parameter: torch.Tensor) -> list[float]:
    flat = parameter.detach().reshape(-1)
    places = torch.linspace(0, flat.numel() - 1, SAMPLED, dtype=torch.float64).long()
    return [float(value) for value in flat[places.to(flat.device)].to(torch.float64).cpu()]


def check_identity(model: torch.nn.Module, expected: dict[str, Any], what: str = "this scrubber") -> None:
    """
    Raises:
        ExciseError: another model than the one that was scrubbed; the message says in what it differs.
    """
    found = identify(model, [])
    missing = [path for path in expected["sites"] if not _has(model, path)]
    if missing or found["model"] != expected["model"]:
        raise ExciseError(
            f"{what} was fitted on a {expected['model']}, got a {found['model']}"
            + (f" without {missing[0]!r}" if missing else "")
            + ": pass the model that was scrubbed"
        )
    if found["shapes"] != expected["shapes"] or found["config"] != expected["config"]:
        differs = "parameters of other shapes" if found["shapes"] != expected["shapes"] else "another configuration"
        raise ExciseError(f"{what} was fitted on another {expected['model']}: this one has {differs}")
    for name, values in expected["weights"].items():
        a, b = np.array(values), np.array(found["weights"][name])
        if not np.allclose(a, b, rtol=RELATIVE, atol=RELATIVE * float(np.abs(a).max(initial=0.0))):
            raise ExciseError(
                f"{what} was fitted on a {expected['model']} with other weights (first seen in {name}): pass the model that "
                f"was scrubbed, not one that was trained further"
            )


def _has(model: torch.nn.Module, path: str) -> bool:
    try:
        return module_of(model, path) is not None
    except ExciseError:
        return False
