"""What excise raises and warns with.

Every error says what was wrong, what was found and what to do. All errors are `ValueError`s, so code that already
guards a scikit-learn call guards an excise call too. Messages that users meet often end in a short stable code in
brackets, e.g. `[not-finite]`; docs/errors.md has an entry for each.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any, Self

__all__ = [
    "ConceptError",
    "ExciseError",
    "ExciseWarning",
    "FileFormatError",
    "InputError",
    "Interrupted",
    "absent_package",
    "missing_extra",
    "need",
    "warn",
]

PACKAGE = str(Path(__file__).parent)


class ExciseError(ValueError):
    """Anything that excise refuses to do."""

    def __init__(self, message: Any = "", code: str | None = None) -> None:
        super().__init__(f"{message} [{code}]" if code else message)
        self.message, self.code = message, code

    def of(self, argument: str, kind: str = "kind") -> Self:
        """The same error with the argument that is wrong named first. `kind` is the option that says what its labels are."""
        message = f"{argument}: {self.message}"
        return type(self)(message.replace("kind=", f"{kind}="), self.code)


class InputError(ExciseError):
    """The features are not a finite real array of the expected shape."""


class ConceptError(ExciseError):
    """The labels cannot be read as a concept, or leave nothing to erase."""


class FileFormatError(ExciseError):
    """A file is not what excise wrote: truncated, foreign, or from a newer version."""


class Interrupted(BaseException):
    """Ctrl-C in a command, with a line that says what is kept and how to continue."""


class ExciseWarning(UserWarning):
    """The result is correct, but may not mean what one expects."""


def warn(message: str, code: str | None = None) -> None:
    """Warn at the line of the caller's own code, however deep inside excise this was called."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"{message} [{code}]" if code else message, ExciseWarning, stacklevel=level)


# Packages that come with an extra, by the name they are imported under.
EXTRA_OF = {
    **dict.fromkeys(("pyarrow", "fsspec"), "data"),
    **dict.fromkeys(("dask", "distributed"), "dask"),
    **dict.fromkeys(("matplotlib", "jinja2"), "report"),
    **dict.fromkeys(("typer", "rich", "tqdm"), "cli"),
    **dict.fromkeys(("transformers", "tokenizers", "accelerate", "peft", "datasets"), "transformers"),
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), "onnx"),
    "sentence_transformers": "encoders",
    "spacy": "text",
    "torch": "torch",
}


def absent_package(error: ImportError) -> ExciseError | None:
    """The error to show for a package of an extra that is not installed; None for any other failed import."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRA_OF:
        return None
    return missing_extra(f"this needs the package {package}, which is not installed", EXTRA_OF[package])


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
