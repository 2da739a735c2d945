"""INLP (Ravfogel et al. 2020): train a linear classifier, project its directions away, repeat.

It stops when the classifier is at chance, or after the given rounds; the concept may still be there then. Each round
removes up to as many directions as there are classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from excise.erasers.affine import AffineEraser
from excise.errors import ConceptError, ExciseError, warn
from excise.files import versions
from excise.methods.checks import check_strength, check_whole, class_codes, json_names, warn_left
from excise.methods.training_rows import read_training_rows
from excise.numerics.arrays import convert, host
from excise.numerics.linalg import canonical_correlation, extend_basis
from excise.numerics.logistic import LEAST_CHANCE

__all__ = ["inlp"]


def inlp(
    X: Any,
    z: Any,
    rounds: int = 20,
    classifier: Any = None,
    y: Any = None,
    kind: Any = None,
    strength: float = 1.0,
    seed: int = 0,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> AffineEraser:
    """r(x) = P x with P = I - (projector on the sum of all row spaces so far), always applied to the original X.

    Args:
        X: features (..., d), an array or a data frame.
        z: classes, one per row.
        rounds: the largest number of rounds.
        classifier: any scikit-learn linear classifier (with `coef_`); logistic regression unless given.
        y: the task: with it, each round trains on the rows of one class of y, in turn (the by-class variant).
        kind: "categorical" if it cannot be inferred from the labels.
        strength: 1 erases, 0 changes nothing.
        seed: for the classifier, if it has a random state.
        progress: called with the figures of each round.

    A round is at chance when, on the rows that it was trained on, its accuracy exceeds the majority's share by no more than
    one standard error, and its loss is below the constant's by no more than random labels would give. `info["rounds"]` has
    loss and accuracy per round, `info["at_chance"]` says whether it got there.

    Raises:
        InputError, ConceptError: as leace; also a concept that is not one column of classes.
    """
    check_whole("rounds", rounds, 1)
    check_whole("seed", seed, 0)
    check_strength(strength)
    if isinstance(classifier, type):
        raise ExciseError(f"classifier must be an object, not a class: {classifier.__name__}()")
    rows = read_training_rows(X, z, kind)
    game, labels, d = np.asarray(host(rows.X)), rows.codes, rows.d
    groups = _groups(y, rows.lead, labels)
    B = np.zeros((d, 0))
    history: list[dict[str, Any]] = []
    quiet = 0  # groups in a row that were at chance
    for number in range(rounds):
        part = groups[number % len(groups)]
        projected = game[part] - game[part] @ B @ B.T
        figures, weights = _train(projected, labels[part], classifier, seed + number)
        figures["round"] = number + 1
        history.append(figures)
        if progress is not None:
            progress(figures)
        quiet = quiet + 1 if _at_chance(figures, (d - B.shape[1]) * (len(rows.classes) - 1) / len(part)) else 0
        if quiet >= len(groups):
            break
        if quiet == 0:
            B = extend_basis(B, weights)
        if B.shape[1] == d:
            break
    at_chance = quiet >= len(groups) or B.shape[1] == d  # without features there is nothing but chance
    before = canonical_correlation(game, labels)
    after = canonical_correlation(game - game @ B @ B.T, labels) if B.shape[1] < d else 0.0
    _warn(at_chance, history, B.shape[1])
    if at_chance:
        warn_left(before, after, float(np.sqrt(d / rows.n)), "INLP")
    info = {
        "method": "inlp",
        "n": float(rows.n),
        "rows": rows.n,
        "d": d,
        "classes": json_names(rows.classes),
        "rounds": history,
        "at_chance": at_chance,
        "canonical_before": before,
        "canonical_left": after,
        "by_class": y is not None,
        "strength": strength,
        "seed": seed,
        "versions": versions(),
    }
    B = convert(B, rows.like)
    return AffineEraser(B, strength * B, convert(np.zeros(d), rows.like), info, None, rows.concept, rows.feature_names)


def _warn(at_chance: bool, history: list[dict[str, Any]], rank: int) -> None:
    if not at_chance:
        last = history[-1]
        warn(
            f"INLP has not reached chance: after {len(history)} rounds and {rank} directions a linear classifier still has "
            f"accuracy {last['accuracy']:.3f} (majority {last['majority']:.3f}); raise rounds, or use leace",
            code="not-at-chance",
        )
    slow = sum(not h["converged"] for h in history)
    if slow:
        warn(
            f"the classifier did not converge in {slow} of {len(history)} rounds: raise its max_iter",
            code="not-converged",
        )


def _at_chance(figures: dict[str, Any], by_chance: float) -> bool:
    """Accuracy and, if there is one, loss as if the labels were random; `by_chance` nats are gained by overfitting."""
    if figures["accuracy"] > figures["majority"] + figures["standard_error"]:
        return False
    return figures["loss"] is None or bool(figures["trivial_loss"] - figures["loss"] <= by_chance)


def _groups(y: Any, lead: tuple[int, ...], labels: Any) -> list[Any]:
    """Rows of each class of y that have at least two classes of the concept; all rows if there is no y."""
    if y is None:
        return [np.arange(len(labels))]
    codes, _ = class_codes(y, lead, len(labels), "categorical", "y (the task)")
    groups = [np.flatnonzero(codes == c) for c in range(codes.max() + 1)]
    usable = [group for group in groups if len(np.unique(labels[group])) > 1]
    if not usable:
        raise ConceptError("no class of y holds two classes of the concept: nothing can be learnt by class")
    return usable


def _train(X: Any, labels: Any, classifier: Any, seed: int) -> tuple[dict[str, Any], Any]:
    """Figures of a classifier on its own rows, and its weights; any linear classifier of scikit-learn may be given."""
    from sklearn.base import clone
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=1000) if classifier is None else clone(classifier)
    if "random_state" in model.get_params() and model.get_params()["random_state"] is None:
        model.set_params(random_state=seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(X, labels)
    if not hasattr(model, "coef_"):
        raise ExciseError(f"classifier must be linear (have coef_ after fit), got {type(model).__name__}")
    share = np.bincount(labels) / len(labels)
    majority = float(share.max())
    figures = {
        "loss": _log_loss(model, X, labels),
        "trivial_loss": float(-(share[share > 0] * np.log(share[share > 0])).sum()),
        "accuracy": float(model.score(X, labels)),
        "majority": majority,
        "standard_error": float(np.sqrt(majority * (1 - majority) / len(labels))),
        "converged": not any(issubclass(w.category, ConvergenceWarning) for w in caught),
    }
    return figures, np.atleast_2d(model.coef_)


def _log_loss(model: Any, X: Any, labels: Any) -> float | None:
    if not hasattr(model, "predict_proba"):
        return None  # a support vector machine has no probabilities
    proba = model.predict_proba(X)
    place = np.searchsorted(model.classes_, labels)
    return float(-np.log(np.maximum(proba[np.arange(len(labels)), place], LEAST_CHANCE)).mean())
