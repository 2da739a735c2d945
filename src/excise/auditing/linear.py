"""The best linear model for the concept, over all rows: in closed form, and by logistic regression to convergence.

Both work in whitened coordinates, so that units and collinear features do not decide how far an optimiser gets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.auditing.directions import Whitened

__all__ = ["BITS", "LeastSquares", "Logistic", "best_logistic", "constant_loss", "fits_in_memory", "least_squares"]

BITS = float(1.0 / np.log(2.0))
IN_MEMORY = 2**28  # bytes of whitened rows

Rows = Callable[[Any], Any]


def constant_loss(codes: Any) -> float:
    """Cross-entropy (nats) of always saying the shares of the classes: the entropy of the labels."""
    share = np.bincount(codes) / len(codes)
    share = share[share > 0]
    return float(-(share * np.log(share)).sum())


@dataclass(frozen=True)
class Logistic:
    loss: float  # nats per row
    converged: bool
    direction: Any  # (d, k) weights in the units of X
    rows: int  # that it was fitted on


def fits_in_memory(n: int, white: Whitened) -> bool:
    return bool(n * white.basis.shape[1] * 8 <= IN_MEMORY)


def best_logistic(rows: Rows, codes: Any, k: int, white: Whitened, seed: int = 0) -> Logistic:
    """min over W, b of the mean of -log softmax(W x + b)[z], by L-BFGS from the best constant, to convergence.

    Where the whitened rows do not fit into memory it is fitted on as many of them, drawn at random, as do.
    """
    from scipy.optimize import minimize

    n, r = len(codes), white.basis.shape[1]
    if r == 0:
        return Logistic(constant_loss(codes), True, np.zeros((len(white.mean), k)), n)
    index: Any = slice(0, n)
    if not fits_in_memory(n, white):
        index = np.sort(np.random.default_rng(seed).choice(n, max(IN_MEMORY // (8 * r), 1000), replace=False))
    z = codes[index]
    x = (rows(index) - white.mean) @ white.basis
    n = len(z)
    at = np.arange(n)
    share = np.maximum(np.bincount(z, minlength=k) / n, 1e-300)
    start = np.concatenate([np.zeros(r * k), np.log(share)])

    def loss(theta: Any) -> tuple[float, Any]:
        scores = x @ theta[: r * k].reshape(r, k) + theta[r * k :]
        scores -= scores.max(axis=1, keepdims=True)
        p = np.exp(scores)
        sums = p.sum(axis=1, keepdims=True)
        total = float((np.log(sums[:, 0]) - scores[at, z]).sum())
        p /= sums
        p[at, z] -= 1.0
        return total / n, np.concatenate([(x.T @ p).ravel(), p.sum(axis=0)]) / n

    options = {"maxiter": 2000, "maxfun": 2500, "ftol": 1e-15, "gtol": 1e-9}
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
    # Where the classes can be separated there is no best: the loss falls to zero for ever.
    converged = bool(np.abs(found.jac).max() < 1e-6) or float(found.fun) < 1e-5
    return Logistic(float(found.fun), converged, white.basis @ found.x[: r * k].reshape(r, k), n)


@dataclass(frozen=True)
class LeastSquares:
    """By QR of the rows, which shares nothing with Moments: no covariance is ever formed."""

    share: float  # of Z's variance that the directions explain, averaged over the columns of Z
    directions: int  # that vary by more than the floor


def least_squares(triangle: Any, n: int, d: int, floor: float) -> LeastSquares:
    """From the triangle of a QR of [X / scale, Z / spread], both centred; `floor` as in `Whitened`."""
    left, right = triangle[:d, :d], triangle[:d, d:]
    U, s, _ = np.linalg.svd(left, full_matrices=False)
    seen = s > float(np.sqrt(n * floor))
    total = (triangle[:, d:] ** 2).sum(axis=0)  # (q,)
    explained = (U[:, seen].T @ right) ** 2 / np.where(total > 0, total, 1.0)
    share = float(min(explained.sum(axis=0).mean(), 1.0)) if explained.shape[1] else 0.0
    return LeastSquares(share, int(seen.sum()))
