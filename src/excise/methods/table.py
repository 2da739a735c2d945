"""The methods by name: what each needs and gives. `fit`, ConceptEraser, scrubbing and the command line read it here.

A new method is a function in a file of its own and one entry in METHODS.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from excise.errors import ExciseError
from excise.methods.alf import alf
from excise.methods.fair_pca import fair_pca
from excise.methods.inlp import inlp
from excise.methods.leace import leace
from excise.methods.oracle import oracle
from excise.methods.quadratic import quadratic
from excise.methods.random_projection import random_like
from excise.methods.rlace import rlace
from excise.methods.sal import diff_in_means, mean_projection, sal
from excise.methods.splince import splince

__all__ = ["METHODS", "Method", "Needs", "check_method"]

Needs = Literal["moments", "variances", "class moments", "rows"]


@dataclass(frozen=True)
class Method:
    """How a method is called, and what is called with its result."""

    function: Callable[..., Any]
    needs: Needs = "moments"  # "variances": Moments without the d x d covariance; "rows": X and z themselves
    labels_to_apply: bool = False  # the eraser is called with (x, z)
    seeded: bool = False  # it draws at random and has an option `seed`
    redrawn: bool = False  # in a model it is the control that draws afresh at every forward pass
    uses_task: Literal["no", "can", "must"] = "no"  # y, one class per row
    class_moments_for: tuple[str, Any] | None = None  # an option and its value for which it needs class moments
    same_map: str | None = None  # the method that gives the same map under another name

    def make(self, *data: Any, **options: Any) -> Any:
        """The eraser; `info["options"]` keeps the plain options that made it, so that it can be fitted again alike."""
        eraser = self.function(*data, **options)
        plain = {name: value for name, value in options.items() if isinstance(value, (str, int, float, bool))}
        plain.pop("kind", None)
        if plain:
            eraser.info["options"] = plain
        return eraser

    def needs_with(self, options: dict[str, Any]) -> Needs:
        """What it needs when it is called with these options."""
        if self.class_moments_for is not None and options.get(self.class_moments_for[0]) == self.class_moments_for[1]:
            return "class moments"
        return self.needs

    @property
    def options(self) -> list[str]:
        """Names of its options."""
        data = 2 if self.needs == "rows" or self.uses_task == "must" else 1
        return list(inspect.signature(self.function).parameters)[data:]


METHODS: dict[str, Method] = {
    "leace": Method(leace),
    "oracle": Method(oracle, needs="variances", labels_to_apply=True),
    "sal": Method(sal, needs="variances"),
    "mean_projection": Method(mean_projection, needs="variances", same_map="sal"),
    "diff_in_means": Method(diff_in_means, needs="variances", same_map="sal"),
    "splince": Method(splince, uses_task="must"),
    "fair_pca": Method(fair_pca, class_moments_for=("constraint", "covariance")),
    "inlp": Method(inlp, needs="rows", seeded=True, uses_task="can"),
    "rlace": Method(rlace, needs="rows", seeded=True),
    "quadratic": Method(quadratic, needs="class moments", labels_to_apply=True),
    "alf": Method(alf, needs="class moments"),
    "random": Method(random_like, needs="variances", seeded=True, redrawn=True),
}


def check_method(method: str, options: dict[str, Any]) -> Method:
    """The method behind a name.

    Raises:
        ExciseError: an unknown method, or an option that it does not have.
    """
    if method not in METHODS:
        from difflib import get_close_matches

        same_letters = [name for name in METHODS if sorted(name) == sorted(str(method))]
        near = [name for name in same_letters if name[:1] == str(method)[:1]] or get_close_matches(str(method), METHODS)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ExciseError(f"method must be one of {', '.join(METHODS)}, got {method!r}{hint}", code="method")
    found = METHODS[method]
    unknown = [name for name in options if name not in found.options]
    if unknown:
        raise ExciseError(
            f"{method} has no option {unknown[0]!r}; it has {', '.join(found.options) or 'none'}", code="option"
        )
    return found
