"""excise removes a concept from representations so that no linear classifier can find it again."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from excise.class_moments import ClassMoments
    from excise.concept import Concept
    from excise.eraser import AffineEraser, OracleEraser
    from excise.errors import ConceptError, ExciseError, ExciseWarning, FileFormatError, InputError
    from excise.estimator import ConceptEraser
    from excise.fitting import erase, fit, load
    from excise.methods.leace import leace
    from excise.methods.oracle import oracle
    from excise.methods.random_projection import random_projection
    from excise.methods.sal import mean_projection, sal
    from excise.moments import Moments

__version__ = "0.1.0"

_HOMES = {
    "AffineEraser": "eraser",
    "ClassMoments": "class_moments",
    "Concept": "concept",
    "ConceptEraser": "estimator",
    "ConceptError": "errors",
    "ExciseError": "errors",
    "ExciseWarning": "errors",
    "FileFormatError": "errors",
    "InputError": "errors",
    "Moments": "moments",
    "OracleEraser": "eraser",
    "erase": "fitting",
    "fit": "fitting",
    "leace": "methods.leace",
    "load": "fitting",
    "mean_projection": "methods.sal",
    "oracle": "methods.oracle",
    "random_projection": "methods.random_projection",
    "sal": "methods.sal",
}

__all__ = [
    "AffineEraser",
    "ClassMoments",
    "Concept",
    "ConceptEraser",
    "ConceptError",
    "ExciseError",
    "ExciseWarning",
    "FileFormatError",
    "InputError",
    "Moments",
    "OracleEraser",
    "__version__",
    "erase",
    "fit",
    "leace",
    "load",
    "mean_projection",
    "oracle",
    "random_projection",
    "sal",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"excise.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'excise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
