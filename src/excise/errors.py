"""What excise raises and warns with.

Every error says what was wrong, what was found and what to do. All errors are `ValueError`s, so code that already
guards a scikit-learn call guards an excise call too. Messages that users meet often end in a short stable code in
brackets, e.g. `[not-finite]`; docs/errors.md has an entry for each.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

__all__ = [
    "ConceptError",
    "ExciseError",
    "ExciseWarning",
    "FileFormatError",
    "InputError",
    "missing_extra",
    "need",
    "warn",
]

PACKAGE = str(Path(__file__).parent)


class ExciseError(ValueError):
    """Anything that excise refuses to do."""

    def __init__(self, message: Any = "", code: str | None = None) -> None:
        super().__init__(f"{message} [{code}]" if code else message)
        self.code = code


class InputError(ExciseError):
    """The features are not a finite real array of the expected shape."""


class ConceptError(ExciseError):
    """The labels cannot be read as a concept, or leave nothing to erase."""


class FileFormatError(ExciseError):
    """A file is not what excise wrote: truncated, foreign, or from a newer version."""


class ExciseWarning(UserWarning):
    """The result is correct, but may not mean what one expects."""


def warn(message: str, code: str | None = None) -> None:
    """Warn at the line of the caller's own code, however deep inside excise this was called."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"{message} [{code}]" if code else message, ExciseWarning, stacklevel=level)


def need(extra: str, what: str, *modules: str) -> None:
    """Look for packages of an extra before any work.

    Raises:
        ExciseError: one of them is not installed; the message says which extra to install.
    """
    from importlib.util import find_spec

    for module in modules:
        try:
            found = find_spec(module) is not None
        except (ImportError, ValueError):
            found = False
        if not found:
            raise missing_extra(f"{what} needs the package {module}", extra)


def missing_extra(what: str, extra: str) -> ExciseError:
    """The error for a package that belongs to an extra and is not installed."""
    return ExciseError(f"{what}: pip install 'excise[{extra}]'", code="missing-extra")
