"""Hooks: the one way in which activations of a model are read and changed.

Fitting, application and measurement all go through `hooked`, so that what was fitted is what is applied. A site is
the path of a module, whose output is meant, or that path with ":in", where its input is meant.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from excise.errors import ExciseError, InputError

__all__ = [
    "Stop",
    "capture",
    "evaluating",
    "first_tensor",
    "hidden_slot",
    "hooked",
    "model_inputs",
    "module_of",
    "run",
    "tokens_of",
]

USUAL = {"input_ids", "attention_mask", "token_type_ids", "position_ids"}  # for a forward(*args, **kwargs)
Visit = Callable[[str, torch.Tensor], torch.Tensor | None]


class Stop(BaseException):
    """Leaves a forward pass once all that was wanted is there. Not an Exception: no library may swallow it."""


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every module is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        # Without inference mode: its tensors would outlive it in a caller's model, and cannot be told apart.
        with torch.inference_mode(False), torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def module_of(model: torch.nn.Module, path: str) -> torch.nn.Module:
    """The module of a site.

    Raises:
        ExciseError: the model has no such module.
    """
    try:
        return model.get_submodule(path.removesuffix(":in"))
    except AttributeError:
        raise ExciseError(
            f"{type(model).__name__} has no module {path.removesuffix(':in')!r}: see model.named_modules()"
        ) from None


def first_tensor(output: Any) -> torch.Tensor | None:
    """The hidden states in the output of a module: a tensor, or the first element of a tuple or list."""
    if isinstance(output, (tuple, list)) and output:
        output = output[0]
    return output if isinstance(output, torch.Tensor) and output.is_floating_point() else None


def hidden_slot(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | str | None:
    """Where the hidden states stand among the arguments: `hidden_states=`, or the first tensor of numbers."""
    first = {"hidden_states": kwargs["hidden_states"]} if "hidden_states" in kwargs else {}
    slots: list[tuple[int | str, Any]] = [*first.items(), *enumerate(args), *kwargs.items()]
    for slot, value in slots:
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim >= 2:
            return slot
    return None


@contextmanager
def hooked(model: torch.nn.Module, paths: Iterable[str], visit: Visit) -> Iterator[None]:
    """Call `visit(path, x)` at every site; what it returns takes the place of x, None leaves x. Always removed.

    Raises:
        ExciseError: the model has no such module, or the site holds no hidden states.
    """
    with ExitStack() as stack:
        for path in paths:
            stack.callback(_hook(module_of(model, path), path, visit).remove)
        yield


def _hook(module: torch.nn.Module, path: str, visit: Visit) -> Any:
    def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        slot = hidden_slot(args, kwargs)
        if slot is None:
            raise ExciseError(f"{path}: the module is not called with hidden states; choose another site")
        new = visit(path, args[slot] if isinstance(slot, int) else kwargs[slot])
        if new is None:
            return None
        if isinstance(slot, int):
            return (*args[:slot], new, *args[slot + 1 :]), kwargs
        return args, {**kwargs, slot: new}

    def after(_: Any, args: tuple[Any, ...], output: Any) -> Any:
        x = first_tensor(output)
        if x is None:
            raise ExciseError(f"{path}: the output is {type(output).__name__}, no hidden states; choose another site")
        new = visit(path, x)
        if new is None or isinstance(output, torch.Tensor):
            return new
        return type(output)((new, *output[1:]))

    if path.endswith(":in"):
        return module.register_forward_pre_hook(before, with_kwargs=True)
    return module.register_forward_hook(after)


def model_inputs(model: torch.nn.Module, batch: Mapping[str, Any]) -> dict[str, Any]:
    """What of a batch the model's forward takes by name (never `labels`), as tensors on its device.

    Raises:
        InputError: there are no input_ids, or they are not (B, T).
    """
    if not isinstance(batch, Mapping):
        raise InputError(f"a batch must be a dict with input_ids, got {type(batch).__name__}")
    parameters = inspect.signature(model.forward).parameters
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    takes = {name for name in parameters if name not in ("labels", "concept")}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        takes |= USUAL
    known = [name for name in batch if name in takes]
    inputs: dict[str, Any] = {
        name: torch.as_tensor(batch[name]).to(device) for name in known if batch[name] is not None
    }
    tokens_of(inputs)
    if "use_cache" in parameters:
        inputs["use_cache"] = False  # keys and values of a pass are of no use to the next
    return inputs


def tokens_of(inputs: Mapping[str, Any]) -> tuple[int, int]:
    """(B, T) of a batch.

    Raises:
        InputError: there are no input_ids (or inputs_embeds), or they have another number of dimensions.
    """
    for name, extra in (("input_ids", 0), ("inputs_embeds", 1)):
        if name in inputs:
            shape = tuple(inputs[name].shape)
            if len(shape) != 2 + extra or 0 in shape:
                raise InputError(f"{name} has shape {shape}: expected (B, T{', d' * extra}), at least one token")
            return shape[0], shape[1]
    raise InputError(f"a batch needs input_ids of shape (B, T), got {', '.join(map(str, inputs)) or 'nothing'}")


def run(model: torch.nn.Module, inputs: Mapping[str, Any]) -> None:
    """One forward pass, until its end or until a hook raises Stop."""
    try:
        model(**inputs)
    except Stop:
        return


def capture(model: torch.nn.Module, batch: Mapping[str, Any], sites: Iterable[str]) -> dict[str, torch.Tensor]:
    """Activations (B, T, d) of a batch at the given sites, in one forward pass that ends at the last of them.

    Where a scrubber is attached, they are what the model reads: after erasure.

    Raises:
        ExciseError: a site that the model does not have, or that it did not come by.
    """
    paths = list(dict.fromkeys(sites))
    found: dict[str, torch.Tensor] = {}
    inputs = model_inputs(model, batch)
    lead = tokens_of(inputs)

    def visit(path: str, x: torch.Tensor) -> None:
        found[path] = x.detach().reshape(*lead, x.shape[-1])
        if len(found) == len(paths):
            raise Stop

    with evaluating(model), hooked(model, paths, visit):
        run(model, inputs)
    missing = [path for path in paths if path not in found]
    if missing:
        raise ExciseError(f"the model ran without calling {missing[0]!r}: it is no site of this model")
    return {path: found[path] for path in paths}
