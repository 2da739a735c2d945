"""What the report draws, as plain numbers: the data seen along the directions where the concept showed most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.auditing.audit_data import AuditData

__all__ = ["Views", "views_of"]

MOST_CLASSES = 6
POINTS = 250  # per class
SAMPLE = 20_000
BINS = 60


@dataclass(frozen=True)
class Views:
    """Densities along the first canonical direction, and points in the plane of the class means; before and after."""

    classes: list[Any]
    edges: list[float]
    density_before: list[list[float]]  # [class][bin]
    density: list[list[float]]
    points_before: list[list[list[float]]]  # [class][point] = (x, y)
    points: list[list[list[float]]]


def views_of(data: AuditData, direction: Any, scale: Any, seed: int) -> Views:
    """Scores of a sample of the rows; units are standard deviations of the score before."""
    rng = np.random.default_rng(seed)
    index = np.sort(rng.choice(data.n, SAMPLE, replace=False)) if data.n > SAMPLE else np.arange(data.n)
    before, after = data.before(index), data.after(index)
    center = before.mean(axis=0)
    groups, names = _groups(data, index)
    axes = np.concatenate([direction[:, None], _plane(before - center, groups, len(names), scale)], axis=1)  # (d, 3)
    spread = ((before - center) @ axes).std(axis=0)
    axes = axes / np.where(spread > 0, spread, 1.0)
    seen = {"before": (before - center) @ axes, "after": (after - center) @ axes}
    low, high = np.quantile(np.concatenate([s[:, 0] for s in seen.values()]), [0.001, 0.999])
    edges = np.linspace(low, high if high > low else low + 1.0, BINS + 1)
    densities, points = {}, {}
    for when, scores in seen.items():
        own = [scores[groups == g] for g in range(len(names))]
        densities[when] = [_density(s[:, 0], edges) for s in own]
        points[when] = [s[_some(len(s), rng)][:, 1:].round(4).tolist() for s in own]
    return Views(names, edges.tolist(), densities["before"], densities["after"], points["before"], points["after"])


def _groups(data: AuditData, index: Any) -> tuple[Any, list[Any]]:
    """Classes to draw: the most frequent ones; for numbers, their lower, middle and upper third."""
    if data.target.codes is None:
        first = data.target.values[index][:, 0]
        low, high = np.quantile(first, [1 / 3, 2 / 3])
        return (first > low).astype(int) + (first > high), ["lower third", "middle third", "upper third"]
    codes = data.target.codes[index]
    counts = np.bincount(codes, minlength=data.target.k)
    kept = np.sort(np.argsort(-counts, kind="stable")[: min(MOST_CLASSES, int((counts > 0).sum()))])
    place = np.full(data.target.k, -1)
    place[kept] = np.arange(len(kept))
    return place[codes], [data.target.names[c] for c in kept]


def _plane(X: Any, groups: Any, count: int, scale: Any) -> Any:
    """(d, 2): the direction in which the class means differ most, and that of largest variance beside it."""
    Xs = X / scale
    means = np.stack([Xs[groups == g].mean(axis=0) for g in range(count) if (groups == g).any()])
    first = np.linalg.svd(means - means.mean(axis=0), full_matrices=False)[2][0]
    rest = Xs - np.outer(Xs @ first, first)
    second = np.linalg.svd(rest[:2000], full_matrices=False)[2][0]
    return np.stack([first, second], axis=1) / scale[:, None]


def _density(values: Any, edges: Any) -> list[float]:
    counts = np.histogram(np.clip(values, edges[0], edges[-1]), bins=edges)[0]
    return (counts / max(counts.sum(), 1) / (edges[1] - edges[0])).round(6).tolist()  # type: ignore[no-any-return]


def _some(n: int, rng: Any) -> Any:
    return rng.choice(n, POINTS, replace=False) if n > POINTS else np.arange(n)
