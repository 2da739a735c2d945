"""What this room takes from `scrubbing`: all of it passes through here."""

from __future__ import annotations

from excise.scrubbing.capture import evaluating, first_tensor, hidden_slot, hooked, model_inputs, module_of
from excise.scrubbing.identity import check_identity, identify
from excise.scrubbing.scrubber import Scrubber
from excise.scrubbing.trace import sample_of

__all__ = [
    "Scrubber",
    "check_identity",
    "evaluating",
    "first_tensor",
    "hidden_slot",
    "hooked",
    "identify",
    "model_inputs",
    "module_of",
    "sample_of",
    "visit_of",
]


def visit_of(site: str) -> int:
    """Number of the visit that a site names: 2 for `path@2` and `path@2:in`, else 1.

    >>> visit_of("layer.norm@2:in"), visit_of("layer.norm")
    (2, 1)
    """
    path, _, number = site.removesuffix(":in").rpartition("@")
    return int(number) if path and number.isdigit() else 1
