"""The paper's four points, and the three steps of LEACE: whiten, project, unwhiten."""

from __future__ import annotations

from typing import Any

import numpy as np

from excise.errors import ExciseWarning
from excise.experiments.running import Finding, Outcome, Run
from excise.methods.leace import leace
from excise.methods.sal import sal
from excise.moments.moments import Moments
from excise.reporting.svg import COLOURS

__all__ = ["PAPER", "experiment"]

PAPER = "Appendix: P_ortho = [[1, 0], [0, 0]] with mean squared edit 2, P_oblique = [[1, 0], [1, 0]] with 1."
POINTS = np.array([[1.0, 2.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, -2.0]])
LABELS = np.array([1, -1, 1, -1])


def experiment(run: Run, options: Any) -> Outcome:
    """Needs no data."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExciseWarning)  # four rows are few
        m = Moments().update(POINTS, LABELS)
        maps = {"sal": np.asarray(sal(m).P), "leace": np.asarray(leace(m, shrinkage="none").P)}
    edits = {name: float(((POINTS @ P.T - POINTS) ** 2).sum(axis=1).mean()) for name, P in maps.items()}
    gaps = {
        name: float(np.abs((POINTS @ P.T)[LABELS == 1].mean(0) - (POINTS @ P.T)[LABELS == -1].mean(0)).max())
        for name, P in maps.items()
    }
    rows = [
        ["orthogonal (SAL)", _matrix(maps["sal"]), edits["sal"], 2.0, gaps["sal"]],
        ["oblique (LEACE)", _matrix(maps["leace"]), edits["leace"], 1.0, gaps["leace"]],
    ]
    findings = [
        Finding("the orthogonal projection has mean squared edit 2", abs(edits["sal"] - 2) < 1e-12, theorem=True),
        Finding("the oblique projection has mean squared edit 1", abs(edits["leace"] - 1) < 1e-12, theorem=True),
        Finding("both guard: the class means coincide", max(gaps.values()) < 1e-12, theorem=True),
        Finding("P is [[1, 0], [1, 0]]", bool(np.abs(maps["leace"] - [[1, 0], [1, 0]]).max() < 1e-12), theorem=True),
    ]
    return Outcome(
        ["projection", "P", "mean squared edit", "paper", "class-mean gap"],
        rows,
        findings,
        _draw(run.seed),
        (10.5, 3.8),
    )


def _matrix(P: Any) -> str:
    return str([[round(float(v), 6) + 0.0 for v in row] for row in P])


def _draw(seed: int) -> Any:
    """A cloud with the covariance of the example, in three steps."""
    rng = np.random.default_rng(seed)
    z = rng.choice([-1.0, 1.0], 240)
    x1 = rng.standard_normal(240)
    X = np.stack([x1, x1 + z + 0.25 * rng.standard_normal(240)], axis=1)
    X = X - X.mean(axis=0)
    S = X.T @ X / len(X)
    values, vectors = np.linalg.eigh(S)
    W, back = vectors / np.sqrt(values) @ vectors.T, vectors * np.sqrt(values) @ vectors.T
    u = W @ (X.T @ (z - z.mean()) / len(X))
    u /= np.linalg.norm(u)
    white = X @ W.T
    flat = white - np.outer(white @ u, u)

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, 3)
        steps = [
            ("1. whitened", X, white),
            ("2. projected off the concept", white, flat),
            ("3. unwhitened: LEACE", flat, flat @ back.T),
        ]
        for axis, (title, before, points) in zip(axes, steps, strict=True):
            axis.scatter(*before.T, s=5, color="0.8")
            for value, colour, marker in ((-1, COLOURS[0], "o"), (1, COLOURS[1], "^")):
                group = points[z == value]
                axis.scatter(
                    *group.T, s=12, color=colour, marker=marker, alpha=0.7, linewidth=0, label=f"z = {value:+d}"
                )
                axis.scatter(*group.mean(axis=0), s=110, color=colour, marker=marker, edgecolor="black", zorder=3)
            axis.plot(*_ellipse(points), color="black", linewidth=1)
            axis.set(title=title, aspect="equal", xlim=(-4, 4), ylim=(-4, 4))
        gap = X[z == 1].mean(axis=0) - X[z == -1].mean(axis=0)
        line = np.array([-gap[1], gap[0]]) / np.linalg.norm(gap) * 4
        axes[2].plot([-line[0], line[0]], [-line[1], line[1]], "--", color="0.4", label="orthogonal projection")
        axes[0].legend(frameon=False, loc="upper left", fontsize=8)
        axes[2].legend(frameon=False, loc="upper left", fontsize=8)

    return draw


def _ellipse(points: Any) -> Any:
    angle = np.linspace(0, 2 * np.pi, 200)
    values, vectors = np.linalg.eigh(np.cov(points.T))
    root = vectors * np.sqrt(np.maximum(values, 0))
    return points.mean(axis=0)[:, None] + root @ np.stack([np.cos(angle), np.sin(angle)])
