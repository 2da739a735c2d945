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

from excise.auditing.linear import BITS
from excise.numerics.chunks import worker_count

__all__ = ["PENALTIES", "PROBES", "ProbeResult", "penalised_logistic", "run_probes", "score", "standardised", "units"]

WIDE = 50  # quadratic discriminants get this many principal components at most
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)  # of linear probes, per row; cross-validation on their training rows chooses


@dataclass(frozen=True)
class ProbeResult:
    """One probe before and after. Information: bits per row for classes, R^2 for numbers; at most what it can use."""

    name: str
    linear: bool  # covered by the theorem
    information_before: float
    information: float
    interval: tuple[float, float]  # 95%, from the spread over test rows
    loss: float | None  # nats; None for numbers
    accuracy_before: float | None
    accuracy: float | None
    converged: bool
    seconds: float


def units(X: Any, scale: Any) -> tuple[Any, Any]:
    """Mean and spread to standardise by; what is left of an erased feature, below a millionth of `scale`, is not blown up."""
    return X.mean(axis=0), np.maximum(X.std(axis=0), np.maximum(1e-6 * scale, 1e-300))


def standardised(X: Any, X_new: Any, scale: Any) -> tuple[Any, Any]:
    """Both in the units of X."""
    mean, spread = units(X, scale)
    return (X - mean) / spread, (X_new - mean) / spread


def penalised_logistic(z: Any, seed: int) -> Any:
    """Logistic regression with the penalty that cross-validation on its own rows prefers; z: their classes."""
    from sklearn.linear_model import LogisticRegressionCV

    return LogisticRegressionCV(
        Cs=[1.0 / (penalty * len(z)) for penalty in PENALTIES],
        l1_ratios=(0.0,),
        cv=max(2, min(3, int(np.bincount(z)[np.unique(z)].min()))),
        scoring="neg_log_loss",
        tol=1e-6,
        max_iter=1000,
        random_state=seed,
        use_legacy_attributes=False,
    )


def _logistic(seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=2000)  # its penalty is chosen when the rows are known


def _discriminant(seed: int) -> Any:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    return LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")


def _support_vectors(seed: int) -> Any:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.svm import LinearSVC

    machine = LinearSVC(C=0.01, dual=False, max_iter=5000, random_state=seed)
    return CalibratedClassifierCV(machine, cv=3, ensemble=False)


def _network(seed: int) -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier(
        (128,),
        alpha=1e-3,
        learning_rate_init=3e-3,
        early_stopping=True,
        n_iter_no_change=15,
        max_iter=300,
        random_state=seed,
    )


def _radial(seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    return _with_radial_basis(LogisticRegression(max_iter=2000), seed)


def _with_radial_basis(model: Any, seed: int) -> Any:
    from sklearn.kernel_approximation import Nystroem
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    return make_pipeline(
        FunctionTransformer(_per_feature), Nystroem(gamma=0.5, n_components=300, random_state=seed), model
    )


def _per_feature(X: Any) -> Any:
    return X / np.sqrt(X.shape[1])  # so that a typical squared distance is 2, whatever the number of features


def _neighbours(seed: int) -> Any:
    from sklearn.neighbors import KNeighborsClassifier

    return KNeighborsClassifier(n_neighbors=25)


def _trees(seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(
        max_iter=100, learning_rate=0.1, max_leaf_nodes=15, early_stopping=True, random_state=seed
    )


def _quadratic(seed: int) -> Any:
    from sklearn.decomposition import PCA
    from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
    from sklearn.pipeline import make_pipeline

    return make_pipeline(
        PCA(n_components=WIDE, svd_solver="randomized", random_state=seed),
        QuadraticDiscriminantAnalysis(reg_param=0.2),  # erased directions have no variance left to divide by
    )


def _ridge(seed: int) -> Any:
    from sklearn.linear_model import RidgeCV

    return RidgeCV(alphas=np.logspace(-2, 4, 7))


def _radial_ridge(seed: int) -> Any:
    from sklearn.linear_model import RidgeCV

    return _with_radial_basis(RidgeCV(alphas=np.logspace(-4, 2, 7)), seed)


def _neighbours_mean(seed: int) -> Any:
    from sklearn.neighbors import KNeighborsRegressor

    return KNeighborsRegressor(n_neighbors=25)


def _trees_mean(seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.multioutput import MultiOutputRegressor

    trees = HistGradientBoostingRegressor(max_iter=100, max_leaf_nodes=15, early_stopping=True, random_state=seed)
    return MultiOutputRegressor(trees)


def _network_mean(seed: int) -> Any:
    from sklearn.neural_network import MLPRegressor

    return MLPRegressor(hidden_layer_sizes=(128,), alpha=1e-3, early_stopping=True, max_iter=200, random_state=seed)


# name: (linear?, classifier, regressor). A later probe is simply added.
PROBES: dict[str, tuple[bool, Callable[[int], Any], Callable[[int], Any] | None]] = {
    "logistic regression": (True, _logistic, None),
    "least squares": (True, _discriminant, _ridge),
    "linear support vectors": (True, _support_vectors, None),
    "neural network": (False, _network, _network_mean),
    "radial basis functions": (False, _radial, _radial_ridge),
    "nearest neighbours": (False, _neighbours, _neighbours_mean),
    "boosted trees": (False, _trees, _trees_mean),
    "quadratic discriminant": (False, _quadratic, None),
}
STACKED = "classifier on a softmax"


def score(model: Any, X: Any, z: Any, share: Any) -> tuple[Any, Any]:
    """Per row: loss (nats) and whether it is right. Probabilities are mixed with 1% of the constant's, so that one
    certain mistake (of nearest neighbours, say) does not cost everything."""
    proba = 0.99 * model.predict_proba(X) + 0.01 * share[model.classes_]
    place = np.searchsorted(model.classes_, z)
    return -np.log(proba[np.arange(len(z)), place]), model.classes_[np.argmax(proba, axis=1)] == z


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
) -> tuple[list[ProbeResult], list[str]]:
    """Train every probe on the first of each pair and measure it on the second, before and after the edit.

    A probe that fails is left out and said: the others go on.
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
        tasks.append(_Task(STACKED, False, _trees, stacked=True))
    changed = after is not before
    inputs = {"before": standardised(*before, scale)}
    inputs["after"] = standardised(*after, scale) if changed else inputs["before"]

    def work(task: _Task) -> ProbeResult | tuple[str, Exception]:
        start = time.perf_counter()
        try:
            first = _measure(task, *inputs["before"], *z, y, seed)
            second = _measure(task, *inputs["after"], *z, y, seed) if changed else first
        except Exception as error:
            return task.name, error
        half = 1.96 * second.gain.std() / np.sqrt(len(second.gain))
        mean = float(second.gain.mean())
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
    return [found[task.name] for task in tasks if task.name in found], failed


@dataclass(frozen=True)
class _Measured:
    gain: Any
    loss: Any
    right: Any
    converged: bool


def _measure(task: _Task, X: Any, X_new: Any, z: Any, z_new: Any, y: Any, seed: int) -> _Measured:
    if task.stacked:
        # A softmax is not linear: a guarded classifier's output may tell a second one what its scores do not.
        first = penalised_logistic(z if y is None else y, seed).fit(X, z if y is None else y)
        X, X_new = first.predict_proba(X), first.predict_proba(X_new)
    model = penalised_logistic(z, seed) if task.make is _logistic else task.make(seed)
    if hasattr(model, "steps") and "pca" in model.named_steps:
        model.set_params(pca__n_components=min(WIDE, *X.shape))
    if hasattr(model, "steps") and "nystroem" in model.named_steps:
        model.set_params(nystroem__n_components=min(300, len(X)))
    if hasattr(model, "n_neighbors"):
        model.set_params(n_neighbors=min(25, len(X)))
    if z.ndim == 2:
        spread = np.where(z.std(axis=0) > 0, z.std(axis=0), 1.0)
        true, new = (z - z.mean(axis=0)) / spread, (z_new - z.mean(axis=0)) / spread
        fit_on = true if true.shape[1] > 1 or "MultiOutput" in type(model).__name__ else true[:, 0]
        said = model.fit(X, fit_on).predict(X_new).reshape(new.shape)
        return _Measured((new**2 - (new - said) ** 2).mean(axis=1) / np.mean(new**2), None, None, _converged(model))
    model.fit(X, z)
    share = np.bincount(z) / len(z)
    loss, right = score(model, X_new, z_new, share)
    return _Measured((-np.log(share[z_new]) - loss) * BITS, loss, right, _converged(model))


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
