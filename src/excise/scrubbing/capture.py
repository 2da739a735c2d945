"""Hooks: the one way in which activations of a model are read and changed.

Fitting, application and measurement all go through `hooked`, so that what was fitted is what is applied. What a site's
name means is in `addresses`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from excise.errors import ExciseError
from excise.scrubbing.addresses import Address, address
from excise.scrubbing.inputs import batch_size, model_inputs, tokens_of
from excise.scrubbing.wrappers import uncompiled, unwrapped

__all__ = [
    "Stop",
    "Visits",
    "capture",
    "evaluating",
    "first_tensor",
    "hidden_slot",
    "hooked",
    "model_inputs",
    "module_of",
    "run",
    "tokens_of",
    "with_first",
]

Visit = Callable[[str, torch.Tensor], torch.Tensor | None]


class Stop(BaseException):
    """Leaves a forward pass once all that was wanted is there. Not an Exception: no library may swallow it."""


class Visits:
    """How often each module was called in a forward pass; used where a module serves several layers."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, bool], int] = {}  # inputs apart from outputs: one may be a site, the other not

    def next(self, path: str, inside: bool) -> int:
        self.counts[path, inside] = self.counts.get((path, inside), 0) + 1
        return self.counts[path, inside]

    def skip(self, visits: Mapping[str, int]) -> None:
        """Calls that did not take place, because the block around them was replaced."""
        for path, number in visits.items():
            for inside in (False, True):
                self.counts[path, inside] = self.counts.get((path, inside), 0) + number

    def reset(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.counts.pop((path, False), None)
            self.counts.pop((path, True), None)


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients and uncompiled; afterwards every module is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        # Without inference mode: its tensors would outlive it in a caller's model, and cannot be told apart.
        with uncompiled(), torch.inference_mode(False), torch.no_grad():
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
        return model.get_submodule(address(path).path)
    except AttributeError:
        raise ExciseError(
            f"{type(model).__name__} has no module {address(path).path!r}: see model.named_modules()"
        ) from None


def first_tensor(output: Any) -> torch.Tensor | None:
    """The hidden states in the output of a module: a tensor, or the first element of a tuple, list or ModelOutput."""
    if isinstance(output, Mapping) and output:
        output = next(iter(output.values()))
    elif isinstance(output, (tuple, list)) and output:
        output = output[0]
    return output if isinstance(output, torch.Tensor) and output.is_floating_point() else None


def with_first(output: Any, new: torch.Tensor) -> Any:
    """The same output with other hidden states."""
    if isinstance(output, torch.Tensor):
        return new
    if isinstance(output, Mapping):
        name = next(iter(output))
        return type(output)(**{**output, name: new})
    if hasattr(output, "_replace"):  # a named tuple
        return output._replace(**{output._fields[0]: new})
    return type(output)((new, *output[1:]))


def hidden_slot(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | str | None:
    """Where the hidden states stand among the arguments: `hidden_states=`, or the first tensor of numbers."""
    first = {"hidden_states": kwargs["hidden_states"]} if "hidden_states" in kwargs else {}
    slots: list[tuple[int | str, Any]] = [*first.items(), *enumerate(args), *kwargs.items()]
    for slot, value in slots:
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim >= 2:
            return slot
    return None


@contextmanager
def hooked(
    model: torch.nn.Module,
    paths: Iterable[str],
    visit: Visit,
    visits: Visits | None = None,
    single: Iterable[str] = (),
) -> Iterator[None]:
    """Call `visit(site, x)` at every site; what it returns takes the place of x, None leaves x. Always removed.

    Args:
        model: the model.
        paths: names of sites.
        visit: what is done there.
        visits: counts the calls of modules, so that the second visit is told from the first; a new count unless given,
            which is right for one forward pass.
        single: paths of modules that run once per forward pass, and need no count.

    Raises:
        ExciseError: the model has no such module, or the site holds no hidden states.
    """
    count = Visits() if visits is None else visits
    wanted: dict[tuple[str, bool], set[int]] = {}
    for site in map(address, paths):
        wanted.setdefault((site.path, site.inside), set()).add(site.visit)
    once = set(single)
    with ExitStack() as stack:
        for (path, inside), numbers in wanted.items():
            module = module_of(model, path)
            if path in once:
                name = str(Address(path, 1, inside))
                stack.callback(_hook(module, inside, lambda name=name: name, visit).remove)  # type: ignore[misc]
                continue

            def site_now(path: str = path, inside: bool = inside, numbers: set[int] = numbers) -> Any:
                number = count.next(path, inside)
                return str(Address(path, number, inside)) if number in numbers else None

            stack.callback(_hook(module, inside, site_now, visit).remove)
        yield


def _hook(module: torch.nn.Module, inside: bool, site_now: Callable[[], str | None], visit: Visit) -> Any:
    def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        site = site_now()
        if site is None:
            return None
        slot = hidden_slot(args, kwargs)
        if slot is None:
            raise ExciseError(f"{site}: the module is not called with hidden states; choose another site")
        new = visit(site, args[slot] if isinstance(slot, int) else kwargs[slot])
        if new is None:
            return None
        if isinstance(slot, int):
            return (*args[:slot], new, *args[slot + 1 :]), kwargs
        return args, {**kwargs, slot: new}

    def after(_: Any, args: tuple[Any, ...], output: Any) -> Any:
        site = site_now()
        if site is None:
            return None
        x = output if type(output) is torch.Tensor else first_tensor(output)
        if x is None:
            raise ExciseError(f"{site}: the output is {type(output).__name__}, no hidden states; choose another site")
        new = visit(site, x)
        if new is None or type(output) is torch.Tensor:
            return new
        return with_first(output, new)

    if inside:
        return module.register_forward_pre_hook(before, with_kwargs=True)
    return module.register_forward_hook(after)


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
    model = unwrapped(model)
    paths = list(dict.fromkeys(sites))
    found: dict[str, torch.Tensor] = {}
    inputs = model_inputs(model, batch)
    B = batch_size(inputs)

    def visit(path: str, x: torch.Tensor) -> None:
        found[path] = x.detach().reshape(B, -1, x.shape[-1])
        if len(found) == len(paths):
            raise Stop

    with evaluating(model), hooked(model, paths, visit):
        run(model, inputs)
    missing = [path for path in paths if path not in found]
    if missing:
        raise ExciseError(f"the model ran without calling {missing[0]!r}: it is no site of this model")
    return {path: found[path] for path in paths}
