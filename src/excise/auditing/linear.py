"""The best linear model for the concept, over all rows: in closed form, and by logistic regression to convergence.

Both work in whitened coordinates, so that units and collinear features do not decide how far an optimiser gets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.moments.moments import Moments
from excise.numerics.linalg import scales
from excise.numerics.precision import EPS64, FAINT, counts, summation_floor

__all__ = [
    "BITS",
    "Logistic",
    "Whitened",
    "best_logistic",
    "constant_loss",
    "least_squares_r2",
    "unit_scale",
    "whitened",
]

BITS = float(1.0 / np.log(2.0))
IN_MEMORY = 2**28  # bytes of whitened rows
PASSES = 8  # over data that does not fit, before the logistic regression says that it has not converged

Rows = Callable[[slice], Any]


@dataclass(frozen=True)
class Whitened:
    """(x - mean) @ basis has unit covariance on its directions; `spread` is their standard deviation in units of `scale`.

    `correlations` (r, q): of each direction with the whitened concept; its singular values are the canonical
    correlations.
    """

    mean: Any  # (d,)
    basis: Any  # (d, r)
    spread: Any  # (r,)
    correlations: Any  # (r, q)

    @property
    def canonical(self) -> Any:
        if min(self.correlations.shape) == 0:
            return np.zeros(0)
        return np.minimum(np.linalg.svd(self.correlations, compute_uv=False), 1.0)

    @property
    def first(self) -> Any:
        """(d,) the direction of the greatest canonical correlation."""
        if min(self.correlations.shape) == 0:
            return np.eye(len(self.mean))[0]
        return self.basis @ np.linalg.svd(self.correlations, full_matrices=False)[0][:, 0]


def whitened(m: Moments, scale: Any, rounding: Any = 0.0) -> Whitened:
    """Directions of X, in units of `scale` (d,), that vary by more than float64 sums are off.

    `rounding` (d,) is what rounding can do to each feature, in the same units: faint directions that vary by no more than
    this hold rounding errors alone and are left out. (With n <= d such errors fill the one direction that an erasure
    empties, which is then z itself.) Others stay: where digits are few, what rounding left can be read by any probe.
    """
    R = np.asarray(m.cov_xx) / scale[:, None] / scale[None, :]
    values, vectors = np.linalg.eigh((R + R.T) / 2)
    cutoff = summation_floor(len(scale), max(EPS64, float(m.eps_xx)), float(max(values[-1], 0.0)))
    keep = counts(values, cutoff, _rounding_alone(vectors.T, rounding))
    spread = np.sqrt(values[keep])
    basis = vectors[:, keep] / spread / scale[:, None]
    correlations = basis.T @ np.asarray(m.whitened_cov_xz)
    return Whitened(np.asarray(m.mean_x), basis, spread, correlations)


def _rounding_alone(directions: Any, rounding: Any) -> Any:
    """(r,) the spread up to which each of the directions (r, d) holds nothing but rounding errors."""
    return np.minimum(np.linalg.norm(directions * rounding, axis=1), FAINT)


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


def best_logistic(rows: Rows, slices: list[slice], codes: Any, k: int, white: Whitened) -> Logistic:
    """min over W, b of the mean of -log softmax(W x + b)[z], by L-BFGS from the best constant.

    Where the whitened rows fit in memory it runs to convergence; else it makes at most PASSES passes over the data.
    """
    from scipy.optimize import minimize

    n, r = len(codes), white.basis.shape[1]
    share = np.maximum(np.bincount(codes, minlength=k) / n, 1e-300)
    start = np.concatenate([np.zeros(r * k), np.log(share)])
    held = None
    if n * r * 8 <= IN_MEMORY:
        held = np.concatenate([(rows(part) - white.mean) @ white.basis for part in slices])
    if r == 0:
        return Logistic(constant_loss(codes), True, np.zeros((len(white.mean), k)))

    def loss(theta: Any) -> tuple[float, Any]:
        W, b = theta[: r * k].reshape(r, k), theta[r * k :]
        total, grad_b = 0.0, np.zeros(k)
        grad = np.zeros((r, k)) if held is not None else np.zeros((len(white.mean), k))
        weights = W if held is not None else white.basis @ W  # in the units of X: no whitened copy is made
        for part in [slice(0, n)] if held is not None else slices:
            x = held if held is not None else rows(part) - white.mean
            z = codes[part]
            scores = x @ weights + b
            scores -= scores.max(axis=1, keepdims=True)
            p = np.exp(scores)
            sums = p.sum(axis=1, keepdims=True)
            at = np.arange(len(z))
            total += float((np.log(sums[:, 0]) - scores[at, z]).sum())
            p /= sums
            p[at, z] -= 1.0
            grad += x.T @ p
            grad_b += p.sum(axis=0)
        if held is None:
            grad = white.basis.T @ grad
        return total / n, np.concatenate([grad.ravel(), grad_b]) / n

    options = {"maxiter": 2000, "maxfun": 2500} if held is not None else {"maxiter": PASSES, "maxfun": PASSES}
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={**options, "ftol": 1e-15, "gtol": 1e-9})
    # Where the classes can be separated there is no best: the loss falls to zero for ever.
    converged = bool(np.abs(found.jac).max() < 1e-6) or float(found.fun) < 1e-5
    return Logistic(float(found.fun), converged, white.basis @ found.x[: r * k].reshape(r, k))


def least_squares_r2(
    rows: Rows, slices: list[slice], values: Any, scale: Any, rounding: Any = 0.0
) -> tuple[float, int]:
    """The share of Z's variance that the best linear model of X explains, by QR of the rows.

    One triangle is carried from batch to batch, so that no covariance is ever formed: this shares nothing with Moments.
    Averaged over the columns of Z, each in units of its own spread. Also the number of directions that it could use: more
    than a covariance shows. `rounding` as for `whitened`.
    """
    mean = sum(rows(part).sum(axis=0) for part in slices) / len(values)
    d = len(mean)
    spread_z = values.std(axis=0)
    Z = (values - values.mean(axis=0))[:, spread_z > 0] / spread_z[spread_z > 0]
    triangle: Any = np.zeros((0, d + Z.shape[1]))
    for part in slices:
        block = np.concatenate([(rows(part) - mean) / scale, Z[part]], axis=1)
        triangle = np.linalg.qr(np.concatenate([triangle, block]), mode="r")
    left, right = triangle[:d, :d], triangle[:d, d:]
    U, s, V = np.linalg.svd(left, full_matrices=False)
    errors = np.sqrt(len(values)) * _rounding_alone(V, rounding)
    U = U[:, s > np.maximum(errors, 1e-12 * max(float(s[0]), float(np.sqrt(len(values)))))]
    explained = ((U.T @ right) ** 2).sum()
    return float(min(explained / (Z**2).sum(), 1.0)), U.shape[1]


def unit_scale(m: Moments, other: Moments) -> Any:
    """(d,) spreads of the features before; of those that were constant, the spread after."""
    before, after = np.asarray(m.var_x), np.asarray(other.var_x)
    return np.asarray(scales(np.where(before > 0, before, after)))
