"""Arrays of any library: recognise them, compute on them, give back the same kind.

NumPy, PyTorch and CuPy arrays are computed on where they are. Every other Array API library (JAX, array-api-strict)
is read to the host as NumPy and given back its own kind. PyTorch is never imported here: a tensor can only exist
when its owner imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import array_api_compat
import numpy as np

from excise.errors import InputError

Array: TypeAlias = Any

__all__ = [
    "Array",
    "as_rows",
    "check_features",
    "convert",
    "describe_device",
    "exact_products",
    "host",
    "is_16_bit",
    "is_cupy",
    "is_numpy",
    "is_torch",
    "namespace",
    "on_host",
    "restore_like",
    "to_compute_array",
]

FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")


def is_torch(x: object) -> bool:
    return bool(array_api_compat.is_torch_array(x))


def is_numpy(x: object) -> bool:
    return isinstance(x, np.ndarray)


def is_cupy(x: object) -> bool:
    return bool(array_api_compat.is_cupy_array(x))


def namespace(*arrays: Array) -> Any:
    """The Array API namespace of `arrays` (NumPy, PyTorch or CuPy inside this package)."""
    return array_api_compat.array_namespace(*arrays)


def dtype_name(x: Array) -> str:
    """'float32' and the like, for any library."""
    return str(x.dtype).rsplit(".", 1)[-1]


def is_16_bit(x: Array) -> bool:
    return dtype_name(x) in ("float16", "bfloat16")


def on_host(x: Array) -> bool:
    """Whether NumPy can see the memory of `x`."""
    return is_numpy(x) or (is_torch(x) and x.device.type == "cpu")


def describe_device(x: Array) -> str:
    return str(x.device) if is_torch(x) or is_cupy(x) else "cpu"


def host(x: Array) -> np.ndarray[Any, Any]:
    """`x` as NumPy; shares memory where it can. bfloat16 becomes float32, which holds it exactly."""
    if is_numpy(x):
        return np.asarray(x)
    if is_torch(x):
        x = x.detach().cpu()
        return np.asarray((x.float() if dtype_name(x) == "bfloat16" else x).numpy())
    if is_cupy(x):
        return np.asarray(x.get())
    if dtype_name(x) == "bfloat16":  # JAX: NumPy knows bfloat16 only through ml_dtypes
        return np.asarray(x).astype(np.float32)
    try:
        return np.asarray(np.from_dlpack(x))
    except (AttributeError, BufferError, RuntimeError, TypeError):
        return np.asarray(x)


def check_features(X: Array, what: str = "X") -> Array:
    """Refuse what is not a real array of features; integers become float64. The values are not looked at.

    Raises:
        InputError: sparse, complex, object or string arrays, scalars, arrays without values.
    """
    if type(X) is np.ndarray and X.dtype.char in "df" and X.ndim:  # the usual case, in a microsecond
        return X
    _refuse_without_values(X, what)
    if isinstance(X, (list, tuple)):
        try:
            X = np.asarray(X)
        except ValueError:
            raise InputError(f"{what} is a list of rows of unequal length: expected (n, d)") from None
    elif not array_api_compat.is_array_api_obj(X):
        raise InputError(
            f"{what} must be an array or a data frame of features (..., d), got {type(X).__name__}", code="not-an-array"
        )
    name = dtype_name(X)
    if name in INTEGERS:
        X = X.astype(np.float64) if is_numpy(X) else _to_float64(X)
    elif name.startswith("complex"):
        raise InputError(f"{what} is complex ({name}): pass real and imaginary parts as separate features")
    elif name not in FLOATS:
        raise InputError(
            f"{what} has dtype {name}: expected {', '.join(FLOATS)} or integers; convert it first, e.g. "
            f"{what}.astype('float64')",
            code="feature-dtype",
        )
    if X.ndim == 0:
        raise InputError(f"{what} is a single number: expected an array of features (..., d)")
    return X


def _refuse_without_values(X: Array, what: str) -> None:
    """Sparse and masked arrays, and tensors that have a shape but no numbers."""
    module = type(X).__module__
    if hasattr(X, "tocsr") or module.startswith("scipy.sparse"):
        raise InputError(
            f"{what} is a sparse matrix of shape {X.shape}: an erased matrix is dense, so pass dense batches, e.g. "
            f"Moments().update(X[i:i + 4096].toarray(), z[i:i + 4096]) in a loop",
            code="sparse",
        )
    if isinstance(X, np.ma.MaskedArray):
        raise InputError(
            f"{what} is a masked array ({int(np.sum(np.ma.getmaskarray(X)))} masked): impute or drop those values first"
        )
    if is_torch(X):
        if str(X.layout) != "torch.strided":
            raise InputError(
                f"{what} is a sparse tensor of shape {tuple(X.shape)}: an erased matrix is dense; pass {what}.to_dense(), "
                f"in batches if it is large",
                code="sparse",
            )
        if X.device.type == "meta":
            raise InputError(
                f"{what} is a tensor on the meta device, which has a shape but no values: load the weights or the data first",
                code="meta-tensor",
            )
    if module.startswith("jax") and "Tracer" in type(X).__name__:
        raise InputError(
            f"{what} is a JAX tracer: excise computes on values and cannot be traced by jit or grad. Inside traced code "
            f"use the matrix: x @ eraser.P.T + eraser.bias",
            code="jax-tracer",
        )


def _to_float64(X: Array) -> Array:
    xp = namespace(X)
    return xp.astype(X, xp.float64)


def to_compute_array(X: Array) -> Array:
    """`X` where excise computes: itself for NumPy, PyTorch and CuPy, a NumPy copy on the host otherwise."""
    if is_torch(X):
        # Apple's MPS has no float64, which carries the guarantee.
        return X.detach().cpu() if X.device.type == "mps" else X.detach()
    return X if is_numpy(X) or is_cupy(X) else host(X)


def as_rows(X: Array) -> Array:
    """(..., d) -> (n, d), sharing memory where the layout allows it."""
    return X if X.ndim == 2 else X.reshape(-1, X.shape[-1])


def convert(x: Array, like: Array, dtype: str | None = None) -> Array:
    """`x` in the library and on the device of `like` (NumPy, PyTorch or CuPy), optionally in another dtype."""
    if is_torch(like):
        torch: Any = sys.modules["torch"]
        tensor = x if is_torch(x) else torch.from_numpy(np.ascontiguousarray(host(x)))
        return tensor.to(device=like.device, dtype=getattr(torch, dtype) if dtype else None)
    if is_cupy(like):
        cupy: Any = sys.modules["cupy"]
        with like.device:
            return cupy.asarray(x if is_cupy(x) else host(x), dtype=dtype)
    return np.asarray(host(x), dtype=dtype)


def restore_like(result: Array, like: Array) -> Array:
    """A computed `result` as the library, dtype and device of the array `like` that came in."""
    if is_torch(like):
        torch: Any = sys.modules["torch"]
        tensor = result if is_torch(result) else torch.from_numpy(result)
        return tensor.to(device=like.device, dtype=like.dtype)
    if is_numpy(like) or is_cupy(like):
        return result
    xp = namespace(like)
    if hasattr(like, "at"):  # JAX, whose asarray takes a sharding rather than a device
        return xp.asarray(result, dtype=like.dtype)
    return xp.asarray(result, dtype=like.dtype, device=array_api_compat.device(like))


@contextmanager
def exact_products(x: Array) -> Iterator[None]:
    """Matrix products in the dtype of their inputs: no autocast, no TF32, whatever the caller has switched on."""
    if not is_torch(x):
        yield
        return
    torch: Any = sys.modules["torch"]
    with ExitStack() as stack:
        stack.enter_context(torch.autocast(device_type=x.device.type, enabled=False))
        precision = torch.get_float32_matmul_precision()
        if precision != "highest":
            torch.set_float32_matmul_precision("highest")
            stack.callback(torch.set_float32_matmul_precision, precision)
        yield
