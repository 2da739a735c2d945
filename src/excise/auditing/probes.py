"""Models that look for the concept: linear ones, which the theorem covers, and others, which it does not.

Each is trained on one part of the rows and measured on another, on standardised features, and set beside the best
constant. What a nonlinear probe finds is a warning, not a failure of the eraser: linear erasure promises nothing about it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.auditing.probe_models import PROBES, penalised_logistic, sized_for
from excise.numerics.chunks import worker_count

__all__ = ["Fitted", "ProbeResult", "run_probes", "score", "standardised", "units"]

WRITES, CERTAIN = 0.005, 3.3  # more information than before, beyond so many standard errors, is written by the edit


@dataclass(frozen=True)
class ProbeResult:
    """One probe before and after. Information: bits per row for classes, R^2 for numbers; at most what it can use."""

    name: str
    linear: bool  # covered by the theorem
    information_before: float
    information: float
    interval: tuple[float, float]  # 95%, from the spread over test rows
    loss: float | None  # bits; None for numbers
    accuracy_before: float | None
    accuracy: float | None
    converged: bool
    writes: bool  # it finds clearly more after the edit than before
    seconds: float


@dataclass(frozen=True)
class Fitted:
    """A trained probe, with the rows that it was measured on."""

    model: Any
    X: Any  # (n, d) standardised
    z: Any
    share: Any  # of the classes among the training rows
    unit: Any = None  # (mean, spread) of numbers

    def gain(self, X: Any, z: Any) -> Any:
        """(n,) what it gains on the constant, row by row."""
        return self.look(X, z)[0]

    def look(self, X: Any, z: Any) -> tuple[Any, Any, Any]:
        """(n,) gain, loss (bits) and whether it is right; the last two None for numbers."""
        if self.unit is not None:
            new = (z - self.unit[0]) / self.unit[1]
            said = self.model.predict(X).reshape(new.shape)
            return (new**2 - (new - said) ** 2).mean(axis=1) / np.mean(new**2), None, None
        loss, right = score(self.model, X, z, self.share)
        return -np.log2(self.share[z]) - loss, loss, right


def units(X: Any, scale: Any) -> tuple[Any, Any]:
    """Mean and spread to standardise by; what is left of an erased feature, below a millionth of `scale`, is not blown up."""
    return X.mean(axis=0), np.maximum(X.std(axis=0), np.maximum(1e-6 * scale, 1e-300))


def standardised(X: Any, X_new: Any, scale: Any) -> tuple[Any, Any]:
    """Both in the units of X."""
    mean, spread = units(X, scale)
    return (X - mean) / spread, (X_new - mean) / spread


STACKED = "classifier on a softmax"


def score(model: Any, X: Any, z: Any, share: Any, mixed: float = 0.01) -> tuple[Any, Any]:
    """Per row: loss (bits) and whether it is right. Probabilities are mixed with 1% (`mixed`) of the constant's, so that one
    certain mistake (of nearest neighbours, say) does not cost everything."""
    proba = np.maximum((1 - mixed) * model.predict_proba(X) + mixed * share[model.classes_], 1e-15)
    place = np.searchsorted(model.classes_, z)
    return -np.log2(proba[np.arange(len(z)), place]), model.classes_[np.argmax(proba, axis=1)] == z


@dataclass(frozen=True)
class _Task:
    name: str
    linear: bool
    make: Callable[[int], Any]
    stacked: bool = False


def run_probes(
    before: tuple[Any, Any],
    after: tuple[Any, Any],
    z: tuple[Any, Any],
    y: Any,
    scale: Any,
    seed: int,
    step: Callable[[str], None],
) -> tuple[list[ProbeResult], dict[str, Fitted], list[str]]:
    """Train every probe on the first of each pair and measure it on the second, before and after the edit.

    Returns the results, the probes after the edit by name, and what failed: a probe that fails is left out and said.
    """
    from joblib import Parallel, delayed
    from threadpoolctl import threadpool_limits

    classes = z[0].ndim == 1
    tasks = [
        _Task(name, linear, make if classes else numbers or make)
        for name, (linear, make, numbers) in PROBES.items()
        if classes or numbers is not None
    ]
    if classes:
        tasks.append(_Task(STACKED, False, PROBES["boosted trees"][1], stacked=True))
    changed = after is not before
    inputs = {"before": standardised(*before, scale)}
    inputs["after"] = standardised(*after, scale) if changed else inputs["before"]

    trained: dict[str, Fitted] = {}

    def work(task: _Task) -> ProbeResult | tuple[str, Exception]:
        start = time.perf_counter()
        try:
            first = _measure(task, *inputs["before"], *z, y, seed)
            second = _measure(task, *inputs["after"], *z, y, seed) if changed else first
        except Exception as error:
            return task.name, error
        if not task.stacked:
            trained[task.name] = second.fitted
        half = 1.96 * second.gain.std() / np.sqrt(len(second.gain))
        mean = float(second.gain.mean())
        more = second.gain - first.gain
        certain = float(more.mean()) - CERTAIN * float(more.std()) / np.sqrt(len(more))
        return ProbeResult(
            task.name,
            task.linear,
            float(first.gain.mean()),
            mean,
            (mean - float(half), mean + float(half)),
            None if second.loss is None else float(second.loss.mean()),
            None if first.right is None else float(first.right.mean()),
            None if second.right is None else float(second.right.mean()),
            first.converged and second.converged,
            not task.stacked and certain > WRITES,
            time.perf_counter() - start,
        )

    found: dict[str, ProbeResult] = {}
    failed: list[str] = []
    with warnings.catch_warnings(), threadpool_limits(limits=1):  # one thread each: more would wait for one another
        warnings.simplefilter("ignore")  # convergence is asked of the model itself: it is reported, not printed
        for result in Parallel(n_jobs=worker_count(8), backend="threading", return_as="generator_unordered")(
            delayed(work)(task) for task in tasks
        ):
            name = result[0] if isinstance(result, tuple) else result.name
            if isinstance(result, tuple):
                failed.append(f"the probe {name!r} failed and is left out: {result[1]}")
            else:
                found[name] = result
            step(f"probe: {name}")
    return [found[task.name] for task in tasks if task.name in found], trained, failed


@dataclass(frozen=True)
class _Measured:
    gain: Any
    loss: Any
    right: Any
    converged: bool
    fitted: Fitted


def _measure(task: _Task, X: Any, X_new: Any, z: Any, z_new: Any, y: Any, seed: int) -> _Measured:
    if task.stacked:
        # A softmax is not linear: a guarded classifier's output may tell a second one what its scores do not.
        first = penalised_logistic(z if y is None else y, seed).fit(X, z if y is None else y)
        X, X_new = first.predict_proba(X), first.predict_proba(X_new)
    model = sized_for(task.make, X, z, seed)
    if z.ndim == 2:
        spread = np.where(z.std(axis=0) > 0, z.std(axis=0), 1.0)
        true = (z - z.mean(axis=0)) / spread
        fit_on = true if true.shape[1] > 1 or "MultiOutput" in type(model).__name__ else true[:, 0]
        model.fit(X, fit_on)
        fitted = Fitted(model, X_new, z_new, None, (z.mean(axis=0), spread))
    else:
        model.fit(X, z)
        fitted = Fitted(model, X_new, z_new, np.bincount(z) / len(z))
    return _Measured(*fitted.look(X_new, z_new), _converged(model), fitted)


def _converged(model: Any) -> bool:
    if hasattr(model, "steps"):
        return _converged(model.steps[-1][1])
    if hasattr(model, "calibrated_classifiers_"):
        return all(_converged(c.estimator) for c in model.calibrated_classifiers_)
    if type(model).__name__.startswith("HistGradient"):
        return True  # boosting has no optimum to reach: its rounds are a setting
    done = getattr(model, "n_iter_", None)
    most = getattr(model, "max_iter", None)
    return done is None or most is None or int(np.max(done)) < int(most)
