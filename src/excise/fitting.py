"""From arrays to an eraser in one call."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Literal

from excise._array import Array
from excise.class_moments import ClassMoments
from excise.concept import Concept
from excise.eraser import AffineEraser, OracleEraser
from excise.errors import ConceptError, ExciseError
from excise.methods.fair_pca import fair_pca
from excise.methods.inlp import inlp
from excise.methods.leace import leace
from excise.methods.oracle import oracle
from excise.methods.quadratic import quadratic
from excise.methods.random_projection import random_projection
from excise.methods.rlace import rlace
from excise.methods.sal import concept_rank, mean_projection, sal
from excise.methods.splince import splince
from excise.moments import Moments
from excise.transport import TransportEraser

__all__ = ["METHODS", "Method", "check_method", "erase", "fit", "fit_moments"]

Eraser = AffineEraser | OracleEraser | TransportEraser


@dataclass(frozen=True)
class Method:
    """How a method is called. Later methods are added to METHODS and are then known to `fit`, ConceptEraser and the
    command line."""

    function: Any
    takes: Literal["moments", "task", "class moments", "arrays"] = "moments"
    covariance: bool = True  # needs the d x d covariance
    labels: bool = False  # the eraser is called with (x, z)


def _random(m: Moments, rank: int | None = None, seed: int = 0, strength: float = 1.0) -> AffineEraser:
    """A random projection of the rank that LEACE would remove."""
    assert m.d is not None
    return random_projection(m.d, min(m.d, rank if rank is not None else concept_rank(m)), seed, strength)


def _fair_pca(
    m: Moments | ClassMoments,
    n_components: int | None = None,
    constraint: str = "mean",
    candidates: int | None = None,
    strength: float = 1.0,
) -> AffineEraser:
    """Fair PCA with as many components as there can be, unless told otherwise."""
    if n_components is None:
        whole = m.to_moments() if isinstance(m, ClassMoments) else m
        assert whole.d is not None
        n_components = max(1, whole.d - concept_rank(whole))
    return fair_pca(m, n_components, constraint, candidates, strength)


METHODS: dict[str, Method] = {
    "leace": Method(leace),
    "oracle": Method(oracle, covariance=False, labels=True),
    "sal": Method(sal, covariance=False),
    "mean_projection": Method(mean_projection, covariance=False),
    "splince": Method(splince, takes="task"),
    "fair_pca": Method(_fair_pca),
    "inlp": Method(inlp, takes="arrays"),
    "rlace": Method(rlace, takes="arrays"),
    "quadratic": Method(quadratic, takes="class moments", labels=True),
    "random": Method(_random, covariance=False),
}


def check_method(method: str, options: dict[str, Any]) -> Method:
    """The method behind a name.

    Raises:
        ExciseError: an unknown method, or an option that it does not have.
    """
    if method not in METHODS:
        raise ExciseError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    found = METHODS[method]
    parameters = list(inspect.signature(found.function).parameters)
    known = parameters[2:] if found.takes in ("task", "arrays") else parameters[1:]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ExciseError(f"{method} has no option {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    return found


def fit_moments(m: Any, method: str = "leace", task: Moments | None = None, **options: Any) -> Eraser:
    """An eraser from moments (ClassMoments for "quadratic"), by the name of the method.

    Raises:
        ExciseError: the method needs more than moments: the data themselves, or the task.
    """
    found = check_method(method, options)
    if found.takes == "arrays":
        raise ExciseError(
            f"method {method!r} trains on the rows themselves and cannot be fitted from moments: use excise.fit"
        )
    if found.takes == "class moments" and not isinstance(m, ClassMoments):
        raise ExciseError(f"method {method!r} needs ClassMoments (a covariance per class), got {type(m).__name__}")
    if found.takes == "task":
        if task is None:
            raise ExciseError(f"method {method!r} needs the task too: pass y= to fit, or task= Moments of X and y")
        eraser: Eraser = found.function(m, task, **options)
        return eraser
    eraser = found.function(m, **options)
    return eraser


def fit(
    X: Array,
    z: Any,
    method: str = "leace",
    y: Any = None,
    sample_weight: Any = None,
    kind: Any = None,
    **options: Any,
) -> Eraser:
    """Fit an eraser of the concept z on X (..., d).

    Args:
        X: features of NumPy, PyTorch or any Array API library.
        z: one label per row, or a data frame of several columns: see `Concept.of`.
        method: "leace", "oracle", "sal", "mean_projection", "splince", "fair_pca", "inlp", "rlace", "quadratic" or "random".
        y: the task, one label per row: splince keeps what predicts it, inlp then works class by class.
        sample_weight: one weight per row, for the methods that are fitted from moments.
        kind: "categorical" or "continuous" where the labels do not say it themselves.
        options: of the method, e.g. shrinkage="oas" for LEACE.

    Raises:
        ExciseError: bad input; the message says what was got and what to do.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> z = rng.integers(0, 2, 1000)
    >>> X = rng.standard_normal((1000, 5)) + z[:, None]
    >>> eraser = fit(X, z)
    >>> gap = lambda X: float(abs(X[z == 1].mean(0) - X[z == 0].mean(0)).max())
    >>> gap(X) > 0.9, gap(eraser(X)) < 1e-12
    (True, True)
    """
    found = check_method(method, options)
    if y is not None and found.takes != "task" and method != "inlp":
        raise ExciseError(f"method {method!r} has no use for y (the task): leave it out")
    if found.takes == "arrays":
        if sample_weight is not None:
            raise ExciseError(f"method {method!r} takes no sample_weight")
        trained: Eraser = found.function(X, z, kind=kind, **options, **({} if y is None else {"y": y}))
        return trained
    concept = Concept.of(_flat(X, z), kind=kind) if kind is not None else None
    if found.takes == "class moments" or (method == "fair_pca" and options.get("constraint") == "covariance"):
        return fit_moments(ClassMoments(concept).update(X, z, sample_weight), method, **options)
    m = Moments(concept=concept, track_xx=found.covariance).update(X, z, sample_weight)
    if found.takes == "task":
        if y is None:
            raise ExciseError(f"method {method!r} needs the task: pass y=")
        try:
            task = Moments(track_xx=False).update(X, y, sample_weight)
        except ConceptError as error:
            raise ConceptError(f"y (the task): {error}") from None
        return fit_moments(m, method, task=task, **options)
    return fit_moments(m, method, **options)


def _flat(X: Array, z: Any) -> Any:
    from excise.moments import flat_labels

    return flat_labels(z, tuple(getattr(X, "shape", ()))[:-1])


def erase(X: Array, z: Any, method: str = "leace", **options: Any) -> Array:
    """X with the concept z erased: fit on (X, z), then apply. Library, dtype, device and shape of X are kept.

    >>> import numpy as np
    >>> erase(np.array([[0.0], [1.0], [10.0], [11.0]]), ["a", "a", "b", "b"], method="oracle").ravel().round(9).tolist()
    [5.0, 6.0, 5.0, 6.0]
    """
    rounding = {
        name: options.pop(name)
        for name in ("rounding", "seed")
        if name in options and method not in ("random", "inlp", "rlace")
    }
    eraser = fit(X, z, method, **options)
    return eraser(X, **rounding) if isinstance(eraser, AffineEraser) else eraser(X, z, **rounding)
