"""Which model a scrubber belongs to: its settings, the modules at its sites, and a few weights at and between them.

What does not change what the sites hold is left out: token ids, embeddings of further tokens, the version of
Transformers, wrappers. Weights are compared as numbers, to the accuracy of bfloat16: the same model in another dtype is
the same model.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from excise.errors import ExciseError
from excise.scrubbing.addresses import address
from excise.scrubbing.capture import module_of
from excise.scrubbing.wrappers import check_weights, unwrapped

__all__ = ["check_identity", "identify"]

# Entries of a configuration that do not change what a model computes of given weights and tokens.
VOLATILE = re.compile(
    r"(^|\.)(_.*|transformers_version|dtype|torch_dtype|architectures|use_cache|vocab_size|name_or_path|id2label|label2id"
    r"|num_labels|problem_type|return_dict|output_.*|.*token_id|.*token_ids|.*_index|.*dropout.*|.*_pdrop|.*drop_rate"
    r"|initializer_.*|tie_.*|quantization_config.*|gradient_checkpointing|task_specific_params.*|finetuning_task"
    r"|attn_implementation|layerdrop|.*_layerdrop|max_length|tokenizer_class|prefix|torchscript|excise.*)(\.|$)"
)
SAMPLED = 24  # parameters
NUMBERS = 8  # of each
RELATIVE = 2.0**-7  # one step of bfloat16
_checked: Any = weakref.WeakKeyDictionary()  # model -> (identity, state of the sampled parameters)


def identify(model: torch.nn.Module, sites: Iterable[str]) -> dict[str, Any]:
    """Plain JSON values."""
    model = unwrapped(model)
    paths = list(sites)
    parameters = _parameters(model)
    names = _between(parameters, paths)
    places = sorted({round(i) for i in np.linspace(0, len(names) - 1, SAMPLED)}) if names else []
    chosen = [names[i] for i in places]
    return {
        "model": type(model).__name__,
        "settings": _settings(model),
        "sites": {path: type(module_of(model, path)).__name__ for path in paths},
        "shapes": {name: list(parameters[name].shape) for name in chosen},
        "weights": {name: _few(parameters[name]) for name in chosen},
        "adapter": _adapter(model),
    }


def _settings(model: torch.nn.Module) -> dict[str, Any]:
    """The configuration as one flat dict, without what does not matter."""
    config: Any = getattr(model, "config", None)
    out: dict[str, Any] = {}

    def put(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                put(f"{name}.{key}" if name else str(key), inner)
        elif not VOLATILE.search(name) and (value is None or isinstance(value, (bool, int, float, str, list))):
            out[name] = value

    put("", config.to_dict() if hasattr(config, "to_dict") else {})
    return out


def _parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters by name, those of adapters left out: a layer that an adapter wraps has its own name."""
    adapted = [f"{path}." for path, module in model.named_modules() if path and hasattr(module, "base_layer")]
    out: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        own = next((path for path in adapted if name.startswith(path)), None)
        if own is None or name.startswith(own + "base_layer."):
            out[name.replace(".base_layer.", ".")] = parameter
    return out


def _between(parameters: Mapping[str, torch.Tensor], sites: list[str]) -> list[str]:
    """Names of the parameters of the module lists that sites are in; of everything where that tells nothing."""
    lists = {match.group(1) for site in sites if (match := re.match(r"(.*?\.|)\d+(\.|:|@|$)", site))}
    own = [address(site).path + "." for site in sites]
    found = [name for name in parameters if name.startswith(tuple([*lists, *own]))] if lists else []
    return found or list(parameters)


def _few(parameter: torch.Tensor) -> list[float] | None:
    """Some numbers of a parameter; None where it holds codes of a quantiser."""
    if not parameter.is_floating_point() or type(parameter.data).__module__.startswith("torchao."):
        return None
    flat = parameter.detach().reshape(-1)
    places = torch.linspace(0, flat.numel() - 1, NUMBERS, dtype=torch.float64).long()
    return [float(value) for value in flat[places.to(flat.device)].to(torch.float64).cpu()]


def _adapter(model: torch.nn.Module) -> list[float] | None:
    """A few numbers of the first low-rank adapter that changes something; None if there is none."""
    for module in model.modules():
        matrices = getattr(module, "lora_B", None)
        if not hasattr(module, "base_layer") or matrices is None or getattr(module, "disable_adapters", False):
            continue
        for name in getattr(module, "active_adapters", ()):
            weight = getattr(matrices[name], "weight", None) if name in matrices else None
            if weight is not None and bool(weight.detach().any()) and not getattr(module, "merged", False):
                return _few(weight)
    return None


def check_identity(model: torch.nn.Module, expected: dict[str, Any], what: str = "this scrubber") -> None:
    """
    Raises:
        ExciseError: another model than the one that was scrubbed; the message says in what it differs.
    """
    model = unwrapped(model)
    known = _checked.get(model)
    if known is not None and known[0] is expected and known[1] == _state(model, expected):
        return
    check_weights(model)
    name = type(model).__name__
    missing = [path for path in expected["sites"] if not _has(model, path)]
    if missing:
        raise ExciseError(
            f"{what} was fitted on a {expected['model']}, got a {name} without {missing[0]!r}: pass the model that was scrubbed",
            code="another-model",
        )
    parameters = _parameters(model)
    for parameter, shape in expected["shapes"].items():
        if shape is not None and (parameter not in parameters or list(parameters[parameter].shape) != shape):
            found = list(parameters[parameter].shape) if parameter in parameters else "no such parameter"
            raise ExciseError(
                f"{what} was fitted on a {expected['model']} with parameters of other shapes ({parameter}: {shape}, here {found})",
                code="another-model",
            )
    _check_settings(_settings(model), expected.get("settings", {}), what)
    _check_numbers(model, parameters, expected, what)
    _checked[model] = (expected, _state(model, expected))


def _check_settings(found: dict[str, Any], expected: dict[str, Any], what: str) -> None:
    """Entries that both have: another version of Transformers has some more and some fewer."""
    for name, value in expected.items():
        if name in found and found[name] != value:
            raise ExciseError(
                f"{what} was fitted on another configuration of this model: {name} was {value!r}, now it is {found[name]!r}",
                code="another-model",
            )


def _check_numbers(
    model: torch.nn.Module, parameters: dict[str, torch.Tensor], expected: dict[str, Any], what: str
) -> None:
    for name, values in expected["weights"].items():
        now = None if name not in parameters else _few(parameters[name])
        if values is None or now is None:
            continue
        if not _close(values, now):
            raise ExciseError(
                f"{what} was fitted on a {expected['model']} with other weights (first seen in {name}): pass the model that was "
                f"scrubbed, not one that was trained further",
                code="another-model",
            )
    then, now = expected.get("adapter"), _adapter(model)
    if "adapter" in expected and ((then is None) != (now is None) or (then and now and not _close(then, now))):
        raise ExciseError(
            f"{what} was fitted {'without' if then is None else 'with'} an adapter, and this model has "
            f"{'none' if now is None else 'one that changes it'}: what its layers hold is not what was scrubbed; scrub this model",
            code="another-model",
        )


def _close(a: list[float], b: list[float]) -> bool:
    x, y = np.array(a), np.array(b)
    return bool(np.allclose(x, y, rtol=RELATIVE, atol=RELATIVE * float(np.abs(x).max(initial=0.0))))


def _state(model: torch.nn.Module, expected: dict[str, Any]) -> Any:
    """Changes whenever the sampled parameters do: checking again and again costs little then."""
    found = [(id(parameter), parameter._version) for parameter in model.parameters()]
    config: Any = getattr(model, "config", None)
    return hash(tuple(found)), repr(config.to_dict()) if hasattr(config, "to_dict") else ""


def _has(model: torch.nn.Module, path: str) -> bool:
    try:
        return module_of(model, path) is not None
    except ExciseError:
        return False
