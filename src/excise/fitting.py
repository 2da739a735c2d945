"""From arrays to an eraser in one call, and back from files."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

from excise import _files
from excise._array import Array
from excise.class_moments import ClassMoments
from excise.concept import Concept
from excise.eraser import AffineEraser, OracleEraser
from excise.errors import ExciseError, FileFormatError
from excise.methods.leace import leace
from excise.methods.oracle import oracle
from excise.methods.random_projection import random_projection
from excise.methods.sal import mean_projection, sal
from excise.moments import Moments

__all__ = ["METHODS", "erase", "fit", "fit_moments", "load", "needs_labels"]

Eraser = AffineEraser | OracleEraser


def _random(m: Moments, rank: int | None = None, seed: int = 0) -> AffineEraser:
    """A random projection of the rank that LEACE would remove."""
    assert m.d is not None
    return random_projection(m.d, min(m.d, rank if rank is not None else sal(m).rank), seed)


# name -> function of Moments. Later methods are added here and are then known to fit, ConceptEraser and the command line.
METHODS: dict[str, Any] = {
    "leace": leace,
    "oracle": oracle,
    "sal": sal,
    "mean_projection": mean_projection,
    "random": _random,
}


def needs_labels(method: str) -> bool:
    """Whether the eraser of this method is called with (x, z)."""
    return method == "oracle"


def needs_covariance(method: str) -> bool:
    return method == "leace"


def check_method(method: str, options: dict[str, Any]) -> Any:
    """The function behind a name.

    Raises:
        ExciseError: an unknown method, or an option that it does not have.
    """
    if method not in METHODS:
        raise ExciseError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    function = METHODS[method]
    known = list(inspect.signature(function).parameters)[1:]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ExciseError(f"{method} has no option {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    return function


def fit_moments(m: Moments, method: str = "leace", **options: Any) -> Eraser:
    """An eraser from moments, by the name of the method."""
    eraser: Eraser = check_method(method, options)(m, **options)
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
        z: one label per row: see `Concept.of`; or a Concept's data frame of several columns.
        method: "leace", "oracle", "sal", "mean_projection" or "random".
        y: the task, for methods that keep what predicts it; none of those above does.
        sample_weight: one weight per row.
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
    check_method(method, options)
    if y is not None:
        raise ExciseError(f"method {method!r} has no use for y (the task): leave it out")
    concept = Concept.of(_flat(X, z), kind=kind) if kind is not None else None
    m = Moments(concept=concept, track_xx=needs_covariance(method)).update(X, z, sample_weight)
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
    rounding = {name: options.pop(name) for name in ("rounding", "seed") if name in options and method != "random"}
    eraser = fit(X, z, method, **options)
    return eraser(X, z, **rounding) if isinstance(eraser, OracleEraser) else eraser(X, **rounding)


KINDS: dict[str, Any] = {
    "AffineEraser": AffineEraser,
    "OracleEraser": OracleEraser,
    "Moments": Moments,
    "ClassMoments": ClassMoments,
}


def load(path: str | os.PathLike[str]) -> Any:
    """Read what `save` wrote: an eraser or Moments. safetensors only, never pickle.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: it is truncated, not from excise, or from a newer excise.
    """
    if Path(path).is_dir():
        raise FileFormatError(f"{path} is a folder: this version of excise reads single files")
    kind, arrays, about = _files.read(path)
    if kind not in KINDS:
        raise FileFormatError(f"{path} holds a {kind}, which this excise does not know: upgrade excise")
    try:
        return KINDS[kind].from_stored(arrays, about)
    except (KeyError, TypeError) as error:
        raise FileFormatError(f"{path} holds a {kind} with parts missing ({error})") from None
