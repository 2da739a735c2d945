"""Labels as people hold them (arrays, lists, series, frames) -> columns of plain NumPy values.

Only reading happens here: what is missing, what type the values have, which classes occur. What they mean is
decided in `concept.py`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from excise.errors import ConceptError
from excise.numerics.arrays import host, is_torch

__all__ = [
    "Column",
    "Name",
    "Values",
    "classes_of",
    "device_classes",
    "distinct_numbers",
    "kind_of_column",
    "name_order",
    "question",
    "read_columns",
]

Values: TypeAlias = np.ndarray[Any, Any]
Name: TypeAlias = Any  # bool, int, float or str; a tuple of them for a column of a frame or an intersection


MOST_COUNTED = 4096  # range of integer labels that are counted on a device


@dataclass(frozen=True)
class Column:
    """One column of labels (n,), or a block of numeric columns (n, k) that are taken as they are."""

    name: Name
    values: Values
    categories: bool = False  # the labels came as a categorical type: never numbers


def question(what: str, column: Name = None) -> ConceptError:
    """The error for labels that could be classes or numbers."""
    how = "" if column is None else f"; for this column alone, kind={{{column!r}: ...}}"
    where = "" if column is None else f"column {column!r}: "
    return ConceptError(
        f"{where}{what}: kind='categorical' or kind='continuous'? Pass one of them to say whether they are classes or "
        f"numbers{how}",
        code="classes-or-numbers",
    )


def kind_of_column(kind: Any, column: Name) -> Any:
    """What the caller said about one column: kind= is one name for all, or a dict by column."""
    return kind.get(column) if isinstance(kind, Mapping) else kind


def name_order(name: Name) -> tuple[Any, ...]:
    """A sort key for class names of any type: false, true, numbers, strings; tuples by their parts."""
    if isinstance(name, tuple):
        return (3, tuple(name_order(part) for part in name))
    return (0 if isinstance(name, bool) else 2 if isinstance(name, str) else 1, name)


def _plain(value: object) -> Name:
    """A class name with its JSON type; a float that is whole is the same name as the integer."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        number = float(value)
        return int(number) if number.is_integer() else number
    raise ConceptError(
        f"labels must be numbers, booleans or strings, got {value!r} ({type(value).__name__}); convert them, e.g. "
        f"with [str(v) for v in z]"
    )


def _is_missing(value: object) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, (float, np.floating)) and math.isnan(value)


def _refuse_missing(missing: Values, name: Name) -> None:
    if missing.any():
        rows = np.flatnonzero(missing.reshape(len(missing), -1).any(axis=1))
        where = "" if name is None else f" in column {name!r}"
        raise ConceptError(
            f"{len(rows)} of {len(missing)} labels are missing{where} (first at row {rows[0]}): drop those rows and fit on the "
            f"{len(missing) - len(rows)} that have a label (--skip-bad on the command line)",
            code="missing-labels",
        )


def _checked(values: Values, name: Name) -> Values:
    """Values of kind b, i, f or O (classes), nothing missing, nothing infinite."""
    kind = values.dtype.kind
    if kind in "biu":
        return values
    if kind == "f" or values.dtype.name == "bfloat16":
        values = values.astype(np.float64)
        _refuse_missing(np.isnan(values), name)
        if not np.isfinite(values).all():
            raise ConceptError(f"{int(np.isinf(values).sum())} labels are infinite: pass finite numbers")
        return values
    if kind in "UT":
        return values.astype(object)
    if kind == "O":
        flat = values.ravel().tolist()
        _refuse_missing(np.array([_is_missing(v) for v in flat], dtype=bool).reshape(values.shape), name)
        types = {type(_plain(v)) if not isinstance(v, float) else float for v in flat}
        if types and types <= {int, float} and float in types:
            return _checked(values.astype(np.float64), name)
        if types == {int} and all(abs(v) < 2**62 for v in flat):
            return values.astype(np.int64)
        return values
    raise ConceptError(
        f"labels have dtype {values.dtype}: expected numbers, booleans or strings; convert them, e.g. z.astype(str)"
    )


def _from_list(z: Sequence[Any]) -> Values:
    """np.asarray would turn [1, 'a'] and [True, 1] into one type; keep each label's own."""
    if len(z) and isinstance(z[0], (list, tuple, np.ndarray)):
        if len({len(row) if hasattr(row, "__len__") else -1 for row in z}) > 1:
            raise ConceptError("labels are lists of unequal length: pass one label per row, or rows of equal length")
        types = {type(v) for row in z for v in row}
        return np.asarray(z) if types <= {int} or types <= {float} or types <= {bool} else np.array(z, dtype=object)
    values = np.empty(len(z), dtype=object)
    values[:] = z
    types = {type(v) for v in z}
    return np.asarray(z) if types in ({bool}, {int}, {float}, {str}) else values


def _from_series(series: Any, name: Name) -> Column:
    import narwhals as nw

    _refuse_missing(np.asarray(series.is_null().to_numpy(), dtype=bool), name)
    if series.dtype in (nw.Categorical, nw.Enum):
        return Column(name, _checked(np.array(series.to_list(), dtype=object), name), categories=True)
    if series.dtype == nw.Boolean:
        return Column(name, np.asarray(series.to_numpy(), dtype=bool))
    if series.dtype.is_integer():
        values = np.asarray(series.to_numpy())
        return Column(name, values if values.dtype.kind in "iu" else values.astype(np.int64))
    if series.dtype.is_float():
        return Column(name, _checked(np.asarray(series.to_numpy(), dtype=np.float64), name))
    return Column(name, _checked(np.array(series.to_list(), dtype=object), name))


def read_columns(z: Any, kind: Any) -> list[Column]:
    """The columns of `z`: one for (n,) and (n, 1), one per column for frames and 2-D categories.

    Raises:
        ConceptError: missing or infinite labels, unreadable types, ambiguous 2-D integers.
    """
    if isinstance(z, np.ma.MaskedArray):
        raise ConceptError(
            f"labels are a masked array ({int(np.sum(np.ma.getmaskarray(z)))} masked): drop the masked rows first"
        )
    if isinstance(z, Mapping):
        columns = [
            (name, read_columns(part, "categorical" if kind == "categorical" else None)) for name, part in z.items()
        ]
        if any(len(read) != 1 for _, read in columns):
            raise ConceptError("a dict of labels must hold one column each")
        return [replace(read[0], name=name) for name, read in columns]
    if hasattr(z, "categories") and hasattr(z, "codes"):  # a bare pandas Categorical
        return [Column(None, _checked(np.asarray(z, dtype=object), None), categories=True)]
    if not isinstance(z, (np.ndarray, list, tuple)):
        import narwhals as nw

        native = nw.from_native(z, eager_only=True, allow_series=True, pass_through=True)
        if isinstance(native, nw.DataFrame):
            return [_from_series(column, column.name) for column in native.iter_columns()]
        if isinstance(native, nw.Series):
            return [_from_series(native, None)]
    if isinstance(z, (str, bytes)) or not any(hasattr(z, a) for a in ("__len__", "shape", "__array__")):
        raise ConceptError(f"labels must be an array, a list, a series or a data frame, got {type(z).__name__}")
    array = _from_list(z) if isinstance(z, (list, tuple)) else host(z) if hasattr(z, "dtype") else np.asarray(z)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim == 1:
        return [Column(None, _checked(array, None))]
    if array.ndim != 2 or array.shape[1] == 0:
        raise ConceptError(f"labels have shape {array.shape}: expected (n,) or (n, k)")
    values = _checked(array, None)
    split = kind == "categorical" or values.dtype.kind == "O"
    if split:
        return [Column(j, values[:, j]) for j in range(values.shape[1])]
    if values.dtype.kind in "iu" and kind is None and not ((values == 0) | (values == 1)).all():
        raise question(f"labels are a 2-D array of integers, shape {values.shape}, other than 0 and 1")
    return [Column(None, values.astype(np.float64))]


def distinct_numbers(values: Values, limit: int) -> Values:
    """The distinct values, or at least limit + 1 of them; a look at a few rows ends the search in most cases."""
    few = np.unique(values[: 4 * limit])
    return few if len(few) > limit else np.unique(values)


def classes_of(values: Values) -> tuple[list[Name], Values]:
    """Sorted class names and the code of each row: names[codes[i]] is the class of row i."""
    if values.dtype.kind in "biu" and len(values) and int(values.max()) < 2**62:
        low, high = int(values.min()), int(values.max())
        if high - low < 4 * len(values) + 1024:  # count instead of sorting
            offset = values.astype(np.int64) - low
            present = np.flatnonzero(np.bincount(offset, minlength=high - low + 1))
            place = np.zeros(high - low + 1, dtype=np.int64)
            place[present] = np.arange(len(present))
            cast = bool if values.dtype.kind == "b" else int
            return [cast(v + low) for v in present.tolist()], place[offset]
    if values.dtype.kind != "O":
        distinct, codes = np.unique(values, return_inverse=True)
        return [_plain(v) for v in distinct], codes.reshape(-1)
    # One look-up per row; the type is part of the key because 1 == True == 1.0.
    seen: dict[tuple[type, Any], int] = {}
    keys = [(type(v), v) for v in values.tolist()]
    codes = np.fromiter((seen.setdefault(key, len(seen)) for key in keys), np.int64, len(keys))
    plain = [_plain(value) for _, value in seen]
    first = sorted(range(len(plain)), key=lambda i: name_order(plain[i]))
    names: list[Name] = []
    place = np.zeros(len(plain), dtype=np.int64)
    for i in first:  # two keys may be one name: 2 and 2.0
        if not names or name_order(names[-1]) != name_order(plain[i]):
            names.append(plain[i])
        place[i] = len(names) - 1
    return names, place[codes]


def device_classes(z: Any) -> tuple[list[Name], Values, Any] | None:
    """Names, counts (k,) and codes (n,) of integer labels in a PyTorch tensor on a device, without bringing them to the
    host; None for any other labels, and where they are spread too widely to be counted."""
    if not is_torch(z) or z.is_cpu or z.ndim != 1 or z.is_floating_point() or z.is_complex() or not z.numel():
        return None
    torch: Any = sys.modules["torch"]
    if z.dtype == torch.bool:
        return None
    low, high = torch.stack(torch.aminmax(z)).tolist()
    if high - low >= MOST_COUNTED:
        return None
    codes = z.long() - low if low else z.long()
    counts = np.array(torch.bincount(codes, minlength=high - low + 1).tolist())
    present = np.flatnonzero(counts)
    if len(present) < len(counts):
        place = np.zeros(len(counts), dtype=np.int64)
        place[present] = np.arange(len(present))
        codes = torch.from_numpy(place).to(codes.device)[codes]
    return [low + int(v) for v in present], counts[present], codes
