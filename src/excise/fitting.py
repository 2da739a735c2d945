"""From arrays to an eraser in one call."""

from __future__ import annotations

from typing import Any

from excise.concepts.concept import Concept
from excise.erasers.protocol import Eraser
from excise.errors import ExciseError
from excise.methods.checks import warn_fingerprints
from excise.methods.special import check_special, fit_batches, fit_special
from excise.methods.table import Method, check_method
from excise.moments.class_moments import ClassMoments
from excise.moments.labelled_rows import flat_labels, read_labelled_rows, refuse_features_as_labels
from excise.moments.moments import Moments

__all__ = ["erase", "fit", "fit_batches", "fit_moments"]


def fit_moments(m: Any, method: str = "leace", task: Moments | None = None, **options: Any) -> Eraser:
    """An eraser from moments (ClassMoments for "quadratic"), by the name of the method.

    Raises:
        ExciseError: the method needs more than moments: the data themselves, or the task.
    """
    found = check_method(method, options)
    needs = found.needs_with(options)
    if needs == "rows":
        raise ExciseError(
            f"method {method!r} trains on the rows themselves and cannot be fitted from moments: use excise.fit"
        )
    if needs == "class moments" and not isinstance(m, ClassMoments):
        raise ExciseError(f"method {method!r} needs ClassMoments (a covariance per class), got {type(m).__name__}")
    warn_fingerprints(m.fingerprints, found.labels_to_apply, method, m.feature_names)
    if found.uses_task != "must":
        return found.make(m, **options)  # type: ignore[no-any-return]
    if task is None:
        raise ExciseError(
            f"method {method!r} needs the task too: pass y= to fit, or task= Moments of X and y", code="no-task"
        )
    return found.make(m, task, **options)  # type: ignore[no-any-return]


def fit(
    X: Any,
    z: Any,
    method: str = "leace",
    y: Any = None,
    sample_weight: Any = None,
    kind: Any = None,
    normalize: bool = False,
    condition_on: Any = None,
    task_kind: Any = None,
    **options: Any,
) -> Eraser:
    """Fit an eraser of the concept z on X (..., d).

    Args:
        X: features of NumPy, PyTorch or any Array API library, or a data frame of numbers (pandas, polars, pyarrow).
        z: one label per row, or a data frame of several columns: see `Concept.of`.
        method: "leace", "oracle", "sal", "mean_projection", "splince", "fair_pca", "inlp", "rlace", "quadratic" or "random".
        y: the task, one label per row: splince keeps what predicts it, inlp then works class by class.
        sample_weight: one weight per row, for the methods that are fitted from moments.
        kind: "categorical" or "continuous" if it cannot be inferred from the labels.
        normalize: give unit vectors, r(x)/|r(x)|, and make *them* free of the concept (LEACE only).
        condition_on: one class per row: erase what z says within each of these classes, and keep what they explain
            (methods "leace" and "sal"). No labels are needed to apply the eraser.
        task_kind: what `kind` is, for y (splince).
        options: of the method, e.g. shrinkage="oas" for LEACE.

    Raises:
        ExciseError: bad input; the message says what was found and what to do.

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
    _check_task(found, method, y)
    needs = found.needs_with(options)
    if normalize or condition_on is not None:
        check_special(method, options, normalize, condition_on is not None)
        return fit_special(X, z, method, sample_weight, kind, bool(normalize), condition_on, options)
    if needs == "rows":
        if sample_weight is not None:
            raise ExciseError(f"method {method!r} takes no sample_weight")
        return found.make(X, z, kind=kind, **options, **({} if y is None else {"y": y}))  # type: ignore[no-any-return]
    given = read_labelled_rows(X, z=z)
    concept, encoded = Concept.learn(flat_labels(z, given.lead), kind=kind)
    refuse_features_as_labels(concept, encoded, given.rows.shape[1])
    if needs == "class moments":
        classes = ClassMoments().update_encoded(given.rows, concept, encoded, sample_weight, given.names)
        return fit_moments(classes, method, **options)
    m = Moments(track_xx=needs == "moments")
    m.update_encoded(given.rows, concept, encoded, sample_weight, given.names)
    task = None
    if found.uses_task == "must":
        task = Moments.of_task(X, y, sample_weight, task_kind)
    return fit_moments(m, method, task=task, **options)


def _check_task(found: Method, method: str, y: Any) -> None:
    if y is not None and found.uses_task == "no":
        raise ExciseError(f"method {method!r} has no use for y (the task): leave it out")
    if y is None and found.uses_task == "must":
        raise ExciseError(f"method {method!r} needs the task: pass y=", code="no-task")


def erase(
    X: Any, z: Any, method: str = "leace", rounding: str = "nearest", rounding_seed: int | None = None, **options: Any
) -> Any:
    """X with the concept z erased: fit on (X, z), then apply. Library, dtype, device and shape of X are kept.

    `rounding` and `rounding_seed` are those of the eraser's call; all other arguments are those of `fit`.

    >>> import numpy as np
    >>> erase(np.array([[0.0], [1.0], [10.0], [11.0]]), ["a", "a", "b", "b"], method="oracle").ravel().round(9).tolist()
    [5.0, 6.0, 5.0, 6.0]
    """
    found = check_method(method, {})
    if "seed" in options and not found.seeded:  # of the rounding, where the method itself draws nothing
        rounding_seed = options.pop("seed") if rounding_seed is None else rounding_seed
    return fit(X, z, method, **options)(X, z, rounding=rounding, rounding_seed=rounding_seed)
