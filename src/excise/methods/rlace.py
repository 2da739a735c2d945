"""RLACE (Ravfogel et al. 2022): a game between a classifier and a projection of rank q.

min over classifiers, max over P in the Fantope {0 <= P <= I, tr P = q} of the logistic loss on (I - P) x; solved by
alternating stochastic gradient steps, then rounded to the top q eigenvectors of P.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.erasers.affine import AffineEraser
from excise.errors import ExciseError, InputError, warn
from excise.files import versions
from excise.methods.checks import check_number, check_strength, check_whole, json_names, warn_left
from excise.methods.fantope import Fantope
from excise.methods.training_rows import TrainingRows, read_training_rows
from excise.numerics.arrays import Array, convert, host, namespace
from excise.numerics.chunks import small_products
from excise.numerics.linalg import canonical_correlation
from excise.numerics.logistic import fit_logistic
from excise.numerics.precision import CONSTANT

__all__ = ["rlace"]

AVERAGE_EVERY = 10


def rlace(
    X: Any,
    z: Any,
    rank: int = 1,
    steps: int = 10_000,
    batch: int = 256,
    learning_rate: float = 0.1,
    weight_decay: float = 1e-5,
    momentum: float = 0.9,
    check_every: int = 500,
    tolerance: float = 0.002,
    select_on: str = "training",
    kind: Any = None,
    strength: float = 1.0,
    seed: int = 0,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> AffineEraser:
    """r(x) = (I - P) x with P an orthogonal projector of the given rank, found by the game.

    Args:
        X: features (..., d); an array on any device, or a data frame.
        z: classes, one per row.
        rank: of the subspace that is removed.
        steps: the largest number of gradient steps; every `check_every` of them P is rounded, probed by a converged
            logistic regression, and kept if that is the closest to chance so far.
        batch, learning_rate, weight_decay, momentum: of the gradient steps, for features of unit mean variance, to which X
            is scaled for the game.
        tolerance: stop when the probe's accuracy is within this of the majority's share.
        select_on: the rows that the probe is measured on: "training" (all rows, as the original does), or "held out" (a
            fifth of the rows, which the game does not see: unbiased, but with few rows it stops within their noise).
        kind: "categorical" if it cannot be inferred from the labels.
        strength: 1 erases, 0 changes nothing.
        seed: of the split, the batches and the start.
        progress: called with the figures of each check.

    Raises:
        InputError, ConceptError: as leace; also a concept that is not one column of classes.
    """
    if select_on not in ("held out", "training"):
        raise ExciseError(f"select_on must be 'held out' or 'training', got {select_on!r}")
    for name, value in (("rank", rank), ("steps", steps), ("batch", batch), ("check_every", check_every)):
        check_whole(name, value, 1)
    check_whole("seed", seed, 0)
    check_strength(strength)
    check_number("learning_rate", learning_rate, positive=True)
    rows = read_training_rows(X, z, kind)
    n, d = rows.n, rows.d
    if rank >= d:
        raise ExciseError(f"rank must be between 1 and {d - 1}, got {rank}")
    rng = np.random.default_rng(seed)
    train, held = _split(rows, select_on, rng)
    settings = _Settings(rank, steps, batch, learning_rate, weight_decay, momentum, check_every, tolerance)
    start = time.perf_counter()
    with small_products(d):
        best, chosen, history = _Game(rows, train, held, settings, rng).play(progress)
    # A feature that does not vary must not receive a trace, not even a rounding error, of what is removed.
    game = rows.X
    xp = namespace(game)
    varies = xp.astype(xp.std(game, axis=0) > CONSTANT, game.dtype)
    best = xp.linalg.qr(best * varies[:, None])[0]
    before = canonical_correlation(host(game), rows.codes)
    after = canonical_correlation(host(game - game @ best @ best.T), rows.codes)
    if chosen["at_chance"]:
        warn_left(before, after, float(np.sqrt(d / n)), "RLACE")
    else:
        warn(
            f"RLACE has not reached chance: after {history[-1]['step']} steps the best probe has accuracy "
            f"{chosen['accuracy']:.3f} (majority {chosen['majority']:.3f}) on {select_on} rows; raise steps or rank, or use "
            f"leace",
            code="not-at-chance",
        )
    info = {
        "method": "rlace",
        "n": float(n),
        "rows": n,
        "d": d,
        "classes": json_names(rows.classes),
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
    center = convert(np.zeros(d), rows.like)
    return AffineEraser(best, strength * best, center, info, None, rows.concept, rows.feature_names)


def _split(rows: TrainingRows, select_on: str, rng: np.random.Generator) -> tuple[Any, Any]:
    order = rng.permutation(rows.n)
    if select_on == "training":
        return order, order
    held, train = order[: rows.n // 5], order[rows.n // 5 :]
    if any(len(np.unique(rows.codes[part])) < len(rows.classes) for part in (held, train)):
        raise InputError(
            f"{rows.n} rows are too few to hold out a fifth with every class in it: pass select_on='training'"
        )
    return train, held


@dataclass(frozen=True)
class _Settings:
    rank: int
    steps: int
    batch: int
    rate: float
    decay: float
    momentum: float
    check_every: int
    tolerance: float


class _Game:
    """The two players and where they stand."""

    def __init__(
        self, rows: TrainingRows, train: Any, held: Any, settings: _Settings, rng: np.random.Generator
    ) -> None:
        self.X, self.codes, self.train, self.held, self.settings, self.rng = (
            rows.X,
            rows.codes,
            train,
            held,
            settings,
            rng,
        )
        d, k = rows.d, len(rows.classes)
        self.one_hot = np.eye(k)
        self.P = Fantope(convert(np.zeros((d, 0)), self.X), np.zeros(0), settings.rank / d)  # the middle
        # The classifier starts at zero and not at random: weights on a feature that hardly varies would never be unlearnt,
        # and the projection would write a copy of what it removes into that feature.
        self.W, self.b = convert(np.zeros((d, k)), self.X), convert(np.zeros(k), self.X)
        self.speed_W, self.speed_b = self.W * 0.0, self.b * 0.0
        self.average = self.P.dense()  # the players circle around the solution; their average goes there

    def play(
        self, progress: Callable[[dict[str, Any]], None] | None
    ) -> tuple[Array, dict[str, Any], list[dict[str, Any]]]:
        """The best projector (d, rank) found, its figures, and those of all checks."""
        s = self.settings
        history: list[dict[str, Any]] = []
        best: Array = None
        chosen: dict[str, Any] = {}
        best_gap = float("inf")
        for step in range(1, s.steps + 1):
            pace = s.rate / (
                1.0 + 9.0 * step / s.steps
            )  # ten times slower at the end, or the game would circle for ever
            self._move_classifier(pace)
            self._move_projection(pace)
            if step % AVERAGE_EVERY == 0:
                count = step // AVERAGE_EVERY
                self.average = self.average + (self.P.dense() - self.average) * (2.0 / (count + 1.0))
            if step % s.check_every and step != s.steps:
                continue
            U, figures = self._check(step)
            history.append(figures)
            if progress is not None:
                progress(figures)
            gap = max(0.0, figures["accuracy"] - figures["majority"])
            if gap < best_gap or figures["at_chance"]:
                best, chosen, best_gap = U, figures, gap
            if figures["at_chance"]:
                break
        return best, chosen, history

    def _draw(self) -> tuple[Array, Array, Array]:
        """A batch: x, what the projection leaves of it, and the gradient of the loss by the scores."""
        some = self.train[self.rng.integers(0, len(self.train), self.settings.batch)]
        x, y = self.X[convert(some, self.X)], convert(self.one_hot[self.codes[some]], self.X)
        kept = x - self.P.times(x)
        return x, kept, (_softmax(kept @ self.W + self.b) - y) / self.settings.batch

    def _move_classifier(self, pace: float) -> None:
        _, kept, error = self._draw()
        s = self.settings
        self.speed_W = s.momentum * self.speed_W + kept.T @ error + s.decay * self.W
        self.speed_b = s.momentum * self.speed_b + namespace(error).sum(error, axis=0)
        self.W, self.b = self.W - pace * self.speed_W, self.b - pace * self.speed_b

    def _move_projection(self, pace: float) -> None:
        x, _, error = self._draw()
        # The loss depends on P by (x - x P) W, so its gradient is -(x^T error) W^T; the projection ascends.
        self.P = self.P.step(-pace * (x.T @ error), self.W, self.settings.rank)

    def _check(self, step: int) -> tuple[Array, dict[str, Any]]:
        """Round the average to a projector and see what a logistic regression finds after it."""
        U = namespace(self.X).linalg.eigh((self.average + self.average.T) / 2)[1][:, -self.settings.rank :]
        X, codes = host(self.X - self.X @ U @ U.T), self.codes
        probe = fit_logistic(X[self.train], codes[self.train], penalty=1.0 / len(self.train))
        accuracy = float(probe.right(X[self.held], codes[self.held]).mean())
        majority = float(np.bincount(codes[self.held]).max() / len(self.held))
        at_chance = accuracy - majority <= self.settings.tolerance
        return U, {"accuracy": accuracy, "majority": majority, "step": step, "at_chance": at_chance}


def _softmax(scores: Array) -> Array:
    xp = namespace(scores)
    e = xp.exp(scores - xp.max(scores, axis=1, keepdims=True))
    return e / xp.sum(e, axis=1, keepdims=True)
