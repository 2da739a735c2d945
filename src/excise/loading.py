"""Back from files: erasers and moments, and folders that hold a scrubber."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from excise import _files
from excise.class_moments import ClassMoments
from excise.eraser import AffineEraser, OracleEraser
from excise.errors import FileFormatError, InputError
from excise.moments import Moments
from excise.transport import TransportEraser

__all__ = ["load"]

KINDS: dict[str, Any] = {
    "AffineEraser": AffineEraser,
    "OracleEraser": OracleEraser,
    "TransportEraser": TransportEraser,
    "Moments": Moments,
    "ClassMoments": ClassMoments,
}


def load(path: str | os.PathLike[str]) -> Any:
    """Read what `save` wrote: an eraser or Moments from a file, a Scrubber from a folder. safetensors only, never pickle.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: it is truncated, not from excise, or from a newer excise.
    """
    if Path(path).is_dir():
        from excise.scrubbing.scrubber import Scrubber

        return Scrubber.load(path)
    kind, arrays, about = _files.read(path)
    if kind not in KINDS:
        raise FileFormatError(f"{path} holds a {kind}, which this excise does not know: upgrade excise")
    try:
        return KINDS[kind].from_stored(arrays, about)
    except (KeyError, TypeError, InputError) as error:
        raise FileFormatError(f"{path} holds a {kind} with parts missing or wrong ({error})") from None
