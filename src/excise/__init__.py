"""excise removes a concept from representations so that no linear classifier can find it again."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from excise.auditing.audit import audit
    from excise.auditing.comparison import Comparison, compare
    from excise.auditing.report import Report
    from excise.concepts.concept import Concept
    from excise.erasers.affine import AffineEraser
    from excise.erasers.oracle import OracleEraser
    from excise.erasers.transport import TransportEraser
    from excise.errors import ConceptError, ExciseError, ExciseWarning, FileFormatError, InputError
    from excise.estimator import ConceptEraser
    from excise.fitting import erase, fit, fit_batches
    from excise.loading import load
    from excise.measuring.amnesic import Amnesic, amnesic
    from excise.measuring.decodability import Decodability, decodability
    from excise.measuring.evaluation import evaluate
    from excise.measuring.figures import Evaluation
    from excise.methods.alf import alf
    from excise.methods.fair_pca import fair_pca
    from excise.methods.inlp import inlp
    from excise.methods.leace import leace
    from excise.methods.oracle import oracle
    from excise.methods.quadratic import quadratic
    from excise.methods.random_projection import random_projection
    from excise.methods.rlace import rlace
    from excise.methods.sal import diff_in_means, mean_projection, sal
    from excise.methods.splince import splince
    from excise.methods.switch import switch
    from excise.methods.transport import transport
    from excise.moments.class_moments import ClassMoments
    from excise.moments.conditional import ConditionalMoments
    from excise.moments.moments import Moments
    from excise.scrubbing.loop import scrub
    from excise.scrubbing.scrubber import Scrubber

__version__ = "0.1.0"

_HOMES = {
    "AffineEraser": "erasers.affine",
    "Amnesic": "measuring.amnesic",
    "ClassMoments": "moments.class_moments",
    "Comparison": "auditing.comparison",
    "Concept": "concepts.concept",
    "ConceptEraser": "estimator",
    "ConceptError": "errors",
    "ConditionalMoments": "moments.conditional",
    "Decodability": "measuring.decodability",
    "Evaluation": "measuring.figures",
    "ExciseError": "errors",
    "ExciseWarning": "errors",
    "FileFormatError": "errors",
    "InputError": "errors",
    "Moments": "moments.moments",
    "OracleEraser": "erasers.oracle",
    "Report": "auditing.report",
    "Scrubber": "scrubbing.scrubber",
    "TransportEraser": "erasers.transport",
    "alf": "methods.alf",
    "amnesic": "measuring.amnesic",
    "audit": "auditing.audit",
    "compare": "auditing.comparison",
    "decodability": "measuring.decodability",
    "diff_in_means": "methods.sal",
    "erase": "fitting",
    "evaluate": "measuring.evaluation",
    "fair_pca": "methods.fair_pca",
    "fit": "fitting",
    "fit_batches": "fitting",
    "inlp": "methods.inlp",
    "leace": "methods.leace",
    "load": "loading",
    "mean_projection": "methods.sal",
    "oracle": "methods.oracle",
    "quadratic": "methods.quadratic",
    "random_projection": "methods.random_projection",
    "rlace": "methods.rlace",
    "sal": "methods.sal",
    "scrub": "scrubbing.loop",
    "splince": "methods.splince",
    "switch": "methods.switch",
    "transport": "methods.transport",
}

__all__ = [
    "AffineEraser",
    "Amnesic",
    "ClassMoments",
    "Comparison",
    "Concept",
    "ConceptEraser",
    "ConceptError",
    "ConditionalMoments",
    "Decodability",
    "Evaluation",
    "ExciseError",
    "ExciseWarning",
    "FileFormatError",
    "InputError",
    "Moments",
    "OracleEraser",
    "Report",
    "Scrubber",
    "TransportEraser",
    "__version__",
    "alf",
    "amnesic",
    "audit",
    "compare",
    "decodability",
    "diff_in_means",
    "erase",
    "evaluate",
    "fair_pca",
    "fit",
    "fit_batches",
    "inlp",
    "leace",
    "load",
    "mean_projection",
    "oracle",
    "quadratic",
    "random_projection",
    "rlace",
    "sal",
    "scrub",
    "splince",
    "switch",
    "transport",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        if _HOMES[name].startswith(("scrubbing", "measuring")):
            from excise.errors import need

            need("transformers", f"excise.{name}", "torch", "transformers")
        value = getattr(importlib.import_module(f"excise.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'excise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
