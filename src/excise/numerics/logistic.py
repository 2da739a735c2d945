"""Logistic regression: the one way in which a linear classifier is fitted and scored.

scikit-learn does the work. The penalty is given per row (penalty / 2 times the squared weights is added to the mean
loss), so that it means the same for any number of rows.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["PENALTIES", "Logistic", "fit_logistic"]

PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)  # among which cross-validation chooses
LEAST_CHANCE = 1e-300


@dataclass(frozen=True)
class Logistic:
    """A fitted classifier with probabilities."""

    model: Any

    @property
    def classes(self) -> Any:
        return self.model.classes_

    @property
    def converged(self) -> bool:
        return int(np.max(self.model.n_iter_)) < int(self.model.max_iter)

    def losses(self, X: Any, z: Any, least: float = LEAST_CHANCE) -> Any:
        """(n,) nats lost on each row; chances below `least` count as that."""
        return -np.log(np.maximum(self.chances(X)[np.arange(len(z)), np.searchsorted(self.classes, z)], least))

    def chances(self, X: Any) -> Any:
        return self.model.predict_proba(X)

    def right(self, X: Any, z: Any) -> Any:
        """(n,) whether the likeliest class is the true one."""
        return self.model.predict(X) == z


def fit_logistic(
    X: Any, z: Any, penalty: float | None = None, seed: int = 0, tol: float = 1e-4, max_iter: int = 2000
) -> Logistic:
    """Fit on X (n, d) with classes z (n,).

    Args:
        penalty: per row; 0 for none. None lets cross-validation on these rows choose among PENALTIES.
        seed: of the folds.
        tol, max_iter: of the optimiser; whether it converged is `Logistic.converged`.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

    if penalty is None:
        smallest = int(np.bincount(z)[np.unique(z)].min())
        model: Any = LogisticRegressionCV(
            Cs=[1.0 / (penalty * len(z)) for penalty in PENALTIES],
            cv=max(2, min(3, smallest)),
            scoring="neg_log_loss",
            tol=1e-6,
            max_iter=1000,
            random_state=seed,
            **_plain_attributes(LogisticRegressionCV),
        )
    else:
        model = LogisticRegression(C=np.inf if penalty == 0.0 else 1.0 / (penalty * len(z)), tol=tol, max_iter=max_iter)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # asked of the result
        warnings.filterwarnings("ignore", "Setting penalty=None will ignore the C")  # scikit-learn 1.8, for C=inf
        return Logistic(model.fit(X, z))


def _plain_attributes(kind: Any) -> dict[str, Any]:
    """scikit-learn 1.8 warns unless it is told which form its fitted attributes should have; earlier versions have one."""
    import inspect

    known = inspect.signature(kind).parameters
    return {"use_legacy_attributes": False, "l1_ratios": (0.0,)} if "use_legacy_attributes" in known else {}
