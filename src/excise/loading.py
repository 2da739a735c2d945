"""Back from files: erasers and moments, and folders that hold a scrubber."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from excise import files
from excise.erasers.stored import ERASERS
from excise.errors import FileFormatError, InputError, missing_extra
from excise.moments.class_moments import ClassMoments
from excise.moments.moments import Moments

__all__ = ["load"]

KINDS: dict[str, Any] = {**ERASERS, "Moments": Moments, "ClassMoments": ClassMoments}


def load(path: str | os.PathLike[str]) -> Any:
    """Read what `save` wrote: an eraser or Moments from a file, a Scrubber from a folder. safetensors only, never pickle.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: it is truncated, not from excise, or from a newer excise.
        ExciseError: it is a folder, and PyTorch is not installed.
    """
    if Path(path).is_dir():
        try:
            from excise.scrubbing.scrubber import Scrubber
        except ModuleNotFoundError as error:
            if error.name not in ("torch", "transformers"):
                raise
            raise missing_extra(
                f"{path} is a folder, and a folder holds a Scrubber, which needs PyTorch", "transformers"
            ) from None
        return Scrubber.load(path)
    kind, arrays, about = files.read(path)
    if kind not in KINDS:
        raise FileFormatError(f"{path} holds a {kind}, which this excise does not know: upgrade excise")
    try:
        return KINDS[kind].from_stored(arrays, about)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RecursionError) as error:
        if isinstance(error, FileFormatError):
            raise FileFormatError(f"{path} holds a {kind} that is damaged: {error}") from None
        what = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        raise FileFormatError(f"{path} holds a {kind} with parts missing or wrong ({what})") from None
