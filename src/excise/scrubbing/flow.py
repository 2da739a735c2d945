"""What was computed from what in one forward pass, operation by operation.

Only what depends on the tokens (or pixels, or samples) is followed: masks, positions and weights are constants. Each
tensor is a Value that knows how it was made: by a linear map of other values, by a product with a weight matrix, or by
anything else. That is enough to say which matrices read the hidden states, and from where.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Flow", "Read", "Value", "Watch"]

How = Literal["given", "copy", "linear", "matrix", "other"]

# The same numbers in another shape, or in other memory.
COPIES = {
    *("view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "alias", "detach", "clone"),
    *("contiguous", "lift_fresh", "_to_copy", "to", "copy", "set_", "view_as", "flatten", "unflatten", "_conj"),
}
# Linear in all that depends on the tokens, if the rest is constant: some of the numbers, sums, concatenations.
LINEAR = {
    *(
        "t",
        "transpose",
        "permute",
        "expand",
        "slice",
        "select",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
        "narrow",
    ),
    *("index", "index_select", "gather", "repeat", "unfold", "as_strided", "constant_pad_nd", "roll", "flip", "neg"),
    *("cat", "stack", "where", "masked_fill", "index_put", "index_add", "scatter", "scatter_add"),
    *("copy_", "slice_scatter", "select_scatter", "lerp", "take_along_dim", "native_dropout", "squeeze_", "unsqueeze_"),
    *("masked_fill_", "index_put_", "index_add_", "scatter_", "scatter_add_", "index_copy_", "swapaxes"),
    *("movedim", "repeat_interleave", "tile", "masked_scatter", "masked_select", "diagonal", "tril", "triu", "pad"),
    *("reflection_pad1d", "replication_pad1d", "fill_", "index_copy", "_pin_memory", "split_copy", "unbind_copy"),
}
SUMS = {"add", "add_", "sub", "sub_", "rsub"}
PRODUCTS = {"mul", "mul_", "div", "div_"}  # linear in one factor where the other is constant
MATRIX = {
    *("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "mv", "addmv", "addbmm", "_grouped_mm", "_scaled_mm"),
    *("_scaled_grouped_mm", "convolution", "_convolution", "conv1d", "conv2d", "einsum", "_weight_int8pack_mm"),
    *("_weight_int4pack_mm", "_int_mm", "mkldnn_linear", "dot", "inner", "tensordot"),
}
SHAPE_ONLY = {
    *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_empty", "new_zeros"),
    *("new_ones", "new_full", "new_empty_strided", "sym_size", "sym_stride", "sym_numel", "is_same_size", "size"),
    *("zero_",),
}


@dataclass(eq=False)
class Value:
    """A tensor at one moment of the pass."""

    number: int
    how: How
    parents: tuple[Value, ...] = ()
    inputs: frozenset[str] = frozenset()  # names of the inputs of the model that it depends on

    @property
    def origin(self) -> Value:
        """The value of which this is a copy or a view of all numbers."""
        value = self
        while value.how == "copy":
            value = value.parents[0]
        return value

    def ancestors(self, through: Callable[[Value], bool], since: int = 0) -> Iterator[Value]:
        """This value and those that it was made of; the parents of a value only where `through(value)`.

        `since`: leave out what was made before the value of this number.
        """
        seen, waiting = {self}, [self]
        while waiting:
            value = waiting.pop()
            yield value
            if through(value):
                new = [parent for parent in value.parents if parent.number >= since and parent not in seen]
                seen.update(new)
                waiting += new

    def reaches(self, target: Value, through: Callable[[Value], bool]) -> bool:
        """Whether `target` is among the ancestors, on a path of values that `through` lets pass."""
        goal = target.origin
        return any(value.origin is goal for value in self.ancestors(through, goal.number))


@dataclass(frozen=True)
class Read:
    """One product of a value with a weight matrix."""

    value: Value
    result: Value
    moment: int  # of the clock of the trace
    call: int  # number of the innermost open call of a module; -1: none


class Flow:
    """The values of a pass, and the products with weights."""

    def __init__(self, constants: Iterable[torch.Tensor]) -> None:
        self.reads: list[Read] = []
        self._values: dict[int, tuple[Any, Value]] = {}  # by id of the tensor, which must still be the one referred to
        self._written: dict[int, list[Value]] = {}  # by memory: values that were written into it
        self._weights: dict[int, Any] = {}  # ids of tensors that come from parameters alone
        self._memory_of_weights = {_memory(tensor) for tensor in constants} - {0}
        self._number = 0
        self.clock: Callable[[], int] = lambda: 0
        self.open_call: Callable[[], int] = lambda: -1

    def give(self, tensor: Any, name: str) -> None:
        """Declare an input: tokens, pixels, samples."""
        if isinstance(tensor, torch.Tensor):
            self._number += 1
            self._put(tensor, Value(self._number, "given", (), frozenset([name])))

    def value(self, tensor: Any) -> Value | None:
        """How a tensor was made; None for what does not depend on the input."""
        if not isinstance(tensor, torch.Tensor):
            return None
        found = self._values.get(id(tensor))
        known = found[1] if found is not None and found[0]() is tensor else None
        since = -1 if known is None else known.number
        later = [value for value in self._written.get(_memory(tensor), ()) if value.number > since]
        if not later:
            return known
        if known is None and not tensor.is_floating_point():
            return None
        joined = self._new("linear", (*([] if known is None else [known]), *later))
        self._put(tensor, joined)
        return joined

    def record(self, name: str, namespace: str, args: Any, kwargs: Any, out: Any) -> None:
        """Note one operation, after it was done."""
        made = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        values = [self.value(x) for x in given]
        shared = {_memory(x) for x in given}
        for x in made:
            if _memory(x) not in shared:
                self._written.pop(_memory(x), None)  # new memory, perhaps at the address of some that was given back
        if name in SHAPE_ONLY or not made:
            return
        floats = [v for x, v in zip(given, values, strict=True) if v is not None and x.is_floating_point()]
        if not floats:
            self._without_floats(name, given, values, made)
            return
        how = self._kind(name, namespace, args, given, values)
        parents = tuple(dict.fromkeys(floats))
        if how == "matrix":
            value = self._read(name, given, values, parents)
        else:
            value = self._new("copy" if how == "linear" and name in COPIES and len(parents) == 1 else how, parents)
        for x in made:
            if not x.is_floating_point() and not x.is_complex():
                continue  # choices that were made by looking at numbers are taken as constants
            for old in given:
                if old is x and name.endswith("_"):
                    self._written.setdefault(_memory(x), []).append(value)
            self._put(x, value if len(made) == 1 else self._new(value.how, value.parents))

    def _without_floats(self, name: str, given: list[Any], values: list[Any], made: list[Any]) -> None:
        tokens = tuple(dict.fromkeys(v for v in values if v is not None))
        from_weights = any(self._is_weight(x) for x in given)
        for x in made:
            if tokens and x.is_floating_point():
                self._put(x, self._new("given", tokens))  # embeddings of tokens
            elif tokens and x.dtype != torch.bool:
                self._put(x, self._new("copy" if len(tokens) == 1 else "other", tokens))
            elif from_weights:
                self._weights[id(x)] = weakref.ref(x)

    def _kind(self, name: str, namespace: str, args: Any, given: list[Any], values: list[Any]) -> How:
        floating = [(x, v) for x, v in zip(given, values, strict=True) if x.is_floating_point() or x.is_complex()]
        moving = [v for _, v in floating if v is not None]
        weights = [x for x, v in zip(given, values, strict=True) if v is None and x.ndim >= 2 and self._is_weight(x)]
        if name in SUMS or name in PRODUCTS:
            # What differs from token to token tells something of the token, as positions do.
            if any(v is None and _differs_by_row(x) for x, v in floating):
                return "other"
            divided = name.startswith("div") and values[0] is None
            return "linear" if name in SUMS or (len(moving) == 1 and not divided) else "other"
        if name in COPIES or name in LINEAR:
            return "linear"
        if name in MATRIX:
            if not weights:
                return "other"
            if "conv" in name and len(args) > 8 and args[8] == given[0].shape[1] > 1:
                return "linear"  # one filter per feature: a sum over tokens
            return "matrix"
        if namespace != "aten" and weights and len(moving) == 1:
            return "matrix"  # the kernels of quantised layers and their likes
        return "other"

    def _read(self, name: str, given: list[Any], values: list[Any], parents: tuple[Value, ...]) -> Value:
        """The operand is the moving factor; what is added to the product in the same operation is a summand."""
        added = values[0] if name in ("addmm", "baddbmm", "addmv", "addbmm") else None
        factors = tuple(parent for parent in parents if parent is not added)
        if len(factors) != 1:
            return self._new("other", parents)
        result = self._new("matrix", factors)
        self.reads.append(Read(factors[0], result, self.clock(), self.open_call()))
        return result if added is None else self._new("linear", (result, added))

    def _is_weight(self, x: torch.Tensor) -> bool:
        found = self._weights.get(id(x))
        return _memory(x) in self._memory_of_weights or (found is not None and found() is x)

    def _new(self, how: How, parents: tuple[Value, ...]) -> Value:
        self._number += 1
        inputs = parents[0].inputs if len(parents) == 1 else frozenset[str]().union(*(p.inputs for p in parents))
        return Value(self._number, how, parents, inputs)

    def _put(self, tensor: torch.Tensor, value: Value) -> None:
        self._values[id(tensor)] = (weakref.ref(tensor), value)


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Shows every operation of a pass to a Flow."""

    def __init__(self, flow: Flow) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flow = flow

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        namespace, _, rest = str(func).partition(".")
        self.flow.record(rest.partition(".")[0], namespace, args, kwargs or {}, out)
        return out


def _differs_by_row(x: torch.Tensor) -> bool:
    """Whether a constant has rows, along its last dimension, that are not all the same."""
    if x.ndim < 2 or x.numel() <= x.shape[-1]:
        return False
    rows = x.reshape(-1, x.shape[-1])
    return bool((rows != rows[:1]).any())


def _memory(x: torch.Tensor) -> int:
    """The address of the memory that a tensor is a view of; 0 where it has none."""
    try:
        return x.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0
