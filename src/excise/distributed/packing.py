"""Moments as bytes, for engines that move bytes (Spark, Ray, a queue, a bucket): safetensors, never pickle."""

from __future__ import annotations

from typing import Any

from excise import files
from excise.errors import FileFormatError
from excise.moments.class_moments import ClassMoments
from excise.moments.moments import Moments

__all__ = ["from_bytes", "to_bytes"]

KINDS: dict[str, Any] = {"Moments": Moments, "ClassMoments": ClassMoments}


def to_bytes(m: Moments | ClassMoments) -> bytes:
    """What `m.save` would write.

    >>> import numpy as np
    >>> m = Moments().update(np.array([[0.0], [2.0]]), ["a", "b"])
    >>> (from_bytes(to_bytes(m)) + m).n
    4.0
    """
    return files.pack(type(m).__name__, *m.stored())


def from_bytes(content: bytes) -> Any:
    """Moments or ClassMoments from `to_bytes`.

    Raises:
        FileFormatError: these bytes are something else, or cut off.
    """
    kind, arrays, about = files.unpack(content)
    if kind not in KINDS:
        raise FileFormatError(f"these bytes hold a {kind}, expected Moments")
    try:
        return KINDS[kind].from_stored(arrays, about)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise FileFormatError(f"these bytes hold {kind} with parts missing or wrong ({error})") from None
