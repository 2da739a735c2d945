"""RLACE (Ravfogel et al. 2022): a game between a classifier and a projection of rank q.

min over classifiers, max over P in the Fantope {0 <= P <= I, tr P = q} of the logistic loss on (I - P) x; solved by
alternating stochastic gradient steps, then rounded to the top q eigenvectors of P.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise._array import Array, as_rows, check_features, computable, convert, host, namespace
from excise._chunks import small_products
from excise._files import versions
from excise._linalg import DEAD, SAME_LEVEL, canonical_correlation
from excise.eraser import AffineEraser
from excise.errors import ExciseError, ExciseWarning, InputError
from excise.methods._common import check_strength, check_whole, class_codes, warn_left

AVERAGE_EVERY = 10

__all__ = ["Fantope", "fantope_projection", "rlace"]


def rlace(
    X: Array,
    z: Any,
    rank: int = 1,
    steps: int = 10_000,
    batch: int = 256,
    learning_rate: float = 0.1,
    weight_decay: float = 1e-5,
    momentum: float = 0.9,
    check_every: int = 500,
    tolerance: float = 0.002,
    select_on: str = "held out",
    kind: Any = None,
    strength: float = 1.0,
    seed: int = 0,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> AffineEraser:
    """r(x) = (I - P) x with P an orthogonal projector of the given rank, found by the game.

    Args:
        X: features (..., d); NumPy or PyTorch, on any device.
        z: classes, one per row.
        rank: of the subspace that is removed.
        steps: gradient steps at most; every `check_every` of them P is rounded, probed by a converged logistic
            regression, and kept if that is the closest to chance so far.
        learning_rate: for features of unit mean variance, to which X is scaled for the game.
        tolerance: stop when the probe's accuracy is within this of the majority's share.
        select_on: "held out" (a fifth of the rows, which the game does not see) or "training", as the original does.
        kind: "categorical" where the labels do not say it themselves.
        seed: of the split, the batches and the start.
        progress: called with the figures of each check.

    Raises:
        InputError, ConceptError: as leace; also a concept that is not one column of classes.
    """
    X = check_features(X)
    if X.ndim < 2:
        raise InputError(f"X has shape {tuple(X.shape)}: expected (..., d), at least two dimensions")
    if select_on not in ("held out", "training"):
        raise ExciseError(f"select_on must be 'held out' or 'training', got {select_on!r}")
    for name, value in (("rank", rank), ("steps", steps), ("batch", batch), ("check_every", check_every)):
        check_whole(name, value, 1)
    check_whole("seed", seed, 0)
    check_strength(strength)
    if not np.isfinite(learning_rate) or learning_rate <= 0:
        raise ExciseError(f"learning_rate must be a positive number, got {learning_rate}")
    rows = as_rows(computable(X))
    n, d = rows.shape
    if rank >= d:
        raise ExciseError(f"rank must be between 1 and {d - 1}, got {rank}")
    xp = namespace(rows)
    data = xp.astype(rows, xp.float64)
    if not bool(xp.all(xp.isfinite(data))):
        raise InputError(
            f"X has {int((~np.isfinite(host(data))).sum())} values that are NaN or infinite: remove or impute them"
        )
    codes, names = class_codes(z, tuple(X.shape[:-1]), n, kind)
    rng = np.random.default_rng(seed)
    order = rng.permutation(n)
    held = order[: n // 5] if select_on == "held out" else order
    train = order[n // 5 :] if select_on == "held out" else order
    if len(np.unique(codes[held])) < len(names) or len(np.unique(codes[train])) < len(names):
        raise InputError(f"{n} rows are too few to hold out a fifth with every class in it: pass select_on='training'")

    # One number for all features: an orthogonal projection of the scaled data is one of the data.
    mean = xp.mean(data[convert(train, rows)], axis=0)
    with np.errstate(over="ignore"):
        unit = float(xp.sqrt(xp.mean((data - mean) ** 2)))
    if unit == 0.0 or not np.isfinite(unit):
        raise InputError("X is constant, or its squares overflow: there is nothing to project")
    game = (data - mean) / unit
    start = time.perf_counter()
    with small_products(d):
        best, chosen, history = _play(
            game,
            codes,
            train,
            held,
            rank,
            steps,
            batch,
            learning_rate,
            weight_decay,
            momentum,
            check_every,
            tolerance,
            rng,
            progress,
        )
    # A feature that does not vary must not receive a trace, not even a rounding error, of what is removed.
    varies = xp.astype(xp.std(game, axis=0) > DEAD, game.dtype)
    best = xp.linalg.qr(best * varies[:, None])[0]
    before = canonical_correlation(host(game), codes)
    after = canonical_correlation(host(game - game @ best @ best.T), codes)
    if chosen["at_chance"]:
        warn_left(before, after, float(np.sqrt(d / n)), "RLACE")
    else:
        warnings.warn(
            f"RLACE has not reached chance: after {history[-1]['step']} steps the best probe has accuracy "
            f"{chosen['accuracy']:.3f} (majority {chosen['majority']:.3f}) on {select_on} rows; raise "
            f"steps or rank, or use leace",
            ExciseWarning,
            stacklevel=2,
        )
    info = {
        "method": "rlace",
        "n": float(n),
        "rows": n,
        "d": d,
        "classes": [list(name) if isinstance(name, tuple) else name for name in names],
        "checks": history,
        "chosen_step": chosen["step"],
        "at_chance": chosen["at_chance"],
        "canonical_before": before,
        "canonical_left": after,
        "select_on": select_on,
        "seconds": time.perf_counter() - start,
        "strength": strength,
        "seed": seed,
        "versions": versions(),
    }
    return AffineEraser(best, strength * best, convert(np.zeros(d), rows), info)


def _play(
    X: Array,
    codes: Any,
    train: Any,
    held: Any,
    rank: int,
    steps: int,
    batch: int,
    rate: float,
    decay: float,
    momentum: float,
    check_every: int,
    tolerance: float,
    rng: np.random.Generator,
    progress: Callable[[dict[str, Any]], None] | None,
) -> tuple[Array, dict[str, Any], list[dict[str, Any]]]:
    xp = namespace(X)
    d, k = X.shape[1], int(codes.max()) + 1
    P = Fantope(convert(np.zeros((d, 0)), X), np.zeros(0), rank / d)  # the middle
    # The classifier starts at zero and not at random: weights on a feature that hardly varies would never be unlearnt, and
    # the projection would write a copy of what it removes into that feature.
    W, b = convert(np.zeros((d, k)), X), convert(np.zeros(k), X)
    speed_w, speed_b = xp.zeros_like(W), xp.zeros_like(b)
    one_hot = np.eye(k)
    history: list[dict[str, Any]] = []
    best: Array = None
    chosen: dict[str, Any] = {}
    best_gap = float("inf")
    average = P.dense()  # the players circle around the solution; their average goes there
    for step in range(1, steps + 1):
        pace = rate / (1.0 + 9.0 * step / steps)  # ten times slower at the end, or the game would circle for ever
        for player in ("classifier", "projection"):
            some = train[rng.integers(0, len(train), batch)]
            x, y = X[convert(some, X)], convert(one_hot[codes[some]], X)
            kept = x - P.times(x)
            error = (_softmax(kept @ W + b) - y) / batch  # gradient of the loss by the scores, (batch, k)
            if player == "classifier":
                speed_w = momentum * speed_w + kept.T @ error + decay * W
                speed_b = momentum * speed_b + xp.sum(error, axis=0)
                W, b = W - pace * speed_w, b - pace * speed_b
            else:
                # The loss depends on P by (x - x P) W, so its gradient is -(x^T error) W^T; the projection ascends.
                P = P.step(-pace * (x.T @ error), W, rank)
        if step % AVERAGE_EVERY == 0:
            count = step // AVERAGE_EVERY
            average = average + (P.dense() - average) * (2.0 / (count + 1.0))
        if step % check_every == 0 or step == steps:
            U = xp.linalg.eigh((average + average.T) / 2)[1][:, -rank:]
            figures = _probe(host(X - X @ U @ U.T), codes, train, held)
            figures |= {"step": step, "at_chance": figures["accuracy"] - figures["majority"] <= tolerance}
            history.append(figures)
            if progress is not None:
                progress(figures)
            gap = max(0.0, figures["accuracy"] - figures["majority"])
            if gap < best_gap or figures["at_chance"]:
                best, chosen, best_gap = U, figures, gap
            if figures["at_chance"]:
                break
    return best, chosen, history


@dataclass(frozen=True)
class Fantope:
    """A point P = rest * I + V diag(levels - rest) V^T of the Fantope.

    Mostly few levels differ from the rest, and then a step costs O(d) instead of O(d^3).
    """

    V: Array  # (d, p) orthonormal
    levels: Any  # (p,) eigenvalues along V
    rest: float  # eigenvalue of all other directions

    def times(self, x: Array) -> Array:
        return self.rest * x + (x @ self.V) * convert(self.levels - self.rest, x) @ self.V.T

    def step(self, A: Array, B: Array, q: int) -> Fantope:
        """The projection of P + (A B^T + B A^T) / 2 onto the Fantope of trace q: exact."""
        xp = namespace(A)
        d = A.shape[0]
        Q, _ = xp.linalg.qr(xp.concat([self.V, A, B], axis=1))
        v, a, b = Q.T @ self.V, Q.T @ A, Q.T @ B
        small = (v * convert(self.levels - self.rest, A)) @ v.T + (a @ b.T + b @ a.T) / 2
        values, vectors = xp.linalg.eigh((small + small.T) / 2)
        levels, others = host(values) + self.rest, d - Q.shape[1]
        t = _shift(np.append(levels, self.rest), np.append(np.ones(len(levels)), others), q)
        levels, rest = np.clip(levels - t, 0.0, 1.0), float(np.clip(self.rest - t, 0.0, 1.0))
        if not others:
            rest = 0.0  # all directions have a level of their own; those at zero need not be kept
        keep = np.flatnonzero(np.abs(levels - rest) > SAME_LEVEL)
        return Fantope(Q @ vectors[:, convert(keep, A)], levels[keep], rest)

    def dense(self) -> Array:
        xp = namespace(self.V)
        return self.times(xp.eye(self.V.shape[0], dtype=self.V.dtype, device=self.V.device))


def fantope_projection(A: Array, q: int) -> Array:
    """The nearest matrix to the symmetric A with eigenvalues in [0, 1] that sum to q: exact."""
    xp = namespace(A)
    values, vectors = xp.linalg.eigh((A + A.T) / 2)
    levels = host(values)
    return (vectors * convert(np.clip(levels - _shift(levels, np.ones(len(levels)), q), 0.0, 1.0), A)) @ vectors.T


def _shift(levels: Any, counts: Any, q: int) -> float:
    """t with sum of counts * clip(levels - t, 0, 1) = q.

    The sum falls in t and is linear between the points l and l - 1, so the line in between is solved.
    """
    points = np.unique(np.concatenate([levels, levels - 1.0]))
    sums = np.clip(levels[None, :] - points[:, None], 0.0, 1.0) @ counts
    i = int(np.searchsorted(-sums, -q))  # sums[i - 1] > q >= sums[i]
    if i == 0 or sums[i] == q:
        return float(points[i])
    return float(points[i - 1] + (sums[i - 1] - q) / (sums[i - 1] - sums[i]) * (points[i] - points[i - 1]))


def _softmax(scores: Array) -> Array:
    xp = namespace(scores)
    e = xp.exp(scores - xp.max(scores, axis=1, keepdims=True))
    return e / xp.sum(e, axis=1, keepdims=True)


def _probe(X: Any, codes: Any, train: Any, held: Any) -> dict[str, Any]:
    """A logistic regression on the training rows, measured on the held-out ones."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=2000).fit(X[train], codes[train])
    majority = float(np.bincount(codes[held]).max() / len(held))
    return {"accuracy": float(model.score(X[held], codes[held])), "majority": majority}
