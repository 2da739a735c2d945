"""The probes: models that look for the concept, with settings that do not depend on the data's units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["PENALTIES", "PROBES", "penalised_logistic", "sized_for"]

WIDE = 50  # quadratic discriminants get this many principal components at most
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)  # of linear probes, per row; cross-validation on their training rows chooses


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


def sized_for(make: Callable[[int], Any], X: Any, z: Any, seed: int) -> Any:
    """The model, with its sizes cut to what the training rows allow."""
    model = penalised_logistic(z, seed) if make is _logistic else make(seed)
    if hasattr(model, "steps") and "pca" in model.named_steps:
        model.set_params(pca__n_components=min(WIDE, *X.shape))
    if hasattr(model, "steps") and "nystroem" in model.named_steps:
        model.set_params(nystroem__n_components=min(300, len(X)))
    if hasattr(model, "n_neighbors"):
        model.set_params(n_neighbors=min(25, len(X)))
    return model
