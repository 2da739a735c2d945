"""Independent measurements: plain NumPy in float64, nothing of excise. Also the one function of tolerances."""

from __future__ import annotations

from typing import Any

import numpy as np

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def tolerance(dtype: str = "float64", n: int = 1, d: int = 1, condition: float = 1.0) -> float:
    """How far two right computations may differ, relative to the size of the data."""
    return 50 * EPS[dtype] * np.sqrt(d) * condition * (1 + np.log2(max(n, 1)))


def one_hot(z: Any) -> np.ndarray:
    z = np.asarray(z)
    return (z[:, None] == np.unique(z)[None, :]).astype(float)


def covariance(X: Any, Z: Any) -> np.ndarray:
    X, Z = np.asarray(X, float), np.asarray(Z, float).reshape(len(Z), -1)
    return (X - X.mean(0)).T @ (Z - Z.mean(0)) / len(X)


def class_gap(X: Any, z: Any) -> float:
    """Greatest distance between two class means, over features and pairs."""
    means = np.stack([np.asarray(X, float)[np.asarray(z) == c].mean(0) for c in np.unique(z)])
    return float((means.max(0) - means.min(0)).max())


def correlation(X: Any, Z: Any) -> float:
    """Greatest |correlation| of a feature with a column of Z; constant features have none."""
    X, Z = np.asarray(X, float), np.asarray(Z, float).reshape(len(Z), -1)
    sx, sz = X.std(0), Z.std(0)
    c = np.abs(covariance(X, Z))[sx > 0][:, sz > 0] / np.outer(sx[sx > 0], sz[sz > 0])
    return float(c.max(initial=0.0))


def canonical_correlation(X: Any, Z: Any, floor: float = 1e-13) -> float:
    """Greatest canonical correlation, by QR and SVD of the data (no covariance is squared).

    Directions of the standardised X with less than `floor` of the greatest singular value do not count.
    """
    X, Z = np.asarray(X, float), np.asarray(Z, float).reshape(len(Z), -1)
    Xc, Zc = X - X.mean(0), Z - Z.mean(0)
    sx = Xc.std(0)
    Xs = Xc[:, sx > 0] / sx[sx > 0]
    qx, s, _ = np.linalg.svd(Xs, full_matrices=False)
    qx = qx[:, s > floor * s[0]]
    qz, sz, _ = np.linalg.svd(Zc / np.where(Zc.std(0) > 0, Zc.std(0), 1), full_matrices=False)
    return float(np.linalg.svd(qx.T @ qz[:, sz > 1e-10 * sz[0]], compute_uv=False)[0])


def leace_by_definition(X: Any, Z: Any) -> tuple[np.ndarray, np.ndarray]:
    """P and the mean from the paper's formula I - W^+ P_{W Sxz} W with W = (Sxx^1/2)^+, by eigendecomposition."""
    X, Z = np.asarray(X, float), np.asarray(Z, float).reshape(len(Z), -1)
    values, vectors = np.linalg.eigh(covariance(X, X))
    keep = values > 1e-10 * values[-1]
    W = vectors[:, keep] / np.sqrt(values[keep]) @ vectors[:, keep].T
    W_plus = vectors[:, keep] * np.sqrt(values[keep]) @ vectors[:, keep].T
    A = W @ covariance(X, Z)
    u, s, _ = np.linalg.svd(A, full_matrices=False)
    u = u[:, s > 1e-10 * s[0]]
    return np.eye(X.shape[1]) - W_plus @ u @ u.T @ W, X.mean(0)


def logistic_losses(X: Any, z: Any) -> tuple[float, float, float]:
    """Best logistic loss (nats, unpenalised), the constant's loss, and the standard error of their difference."""
    from sklearn.linear_model import LogisticRegression

    X, z = np.asarray(X, float), np.asarray(z)
    sd = X.std(0)
    Xs = (X - X.mean(0))[:, sd > 0] / sd[sd > 0]
    model = LogisticRegression(C=np.inf, tol=1e-9, max_iter=20_000).fit(Xs, z)
    codes = np.searchsorted(model.classes_, z)
    own = -model.predict_log_proba(Xs)[np.arange(len(z)), codes]
    share = np.bincount(codes) / len(z)
    trivial = -np.log(share)[codes]
    return float(own.mean()), float(trivial.mean()), float((trivial - own).std() / np.sqrt(len(z)))


def mean_squared_edit(before: Any, after: Any, M: Any = None) -> float:
    edit = np.asarray(after, float) - np.asarray(before, float)
    return float(((edit @ M if M is not None else edit) * edit).sum(1).mean())
