"""The numbers and the picture of `excise demo`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from excise.fitting import erase

__all__ = ["Row", "load_people", "measure", "picture"]

Floats: TypeAlias = np.ndarray[Any, Any]
METHODS = {"LEACE": "leace", "SAL": "sal", "random": "random", "oracle": "oracle"}
COLOURS = ("#0072B2", "#D55E00")  # blue and vermilion: distinct for colour-blind people


@dataclass(frozen=True)
class Row:
    """One line of the table: the data before, or after one method."""

    name: str
    X: Floats
    loss: float  # logistic, nats
    accuracy: float
    gap: float  # largest difference of the class means, in standard deviations of the original feature
    edit: float  # mean squared edit over total variance
    r2: float  # of the disease


def load_people() -> tuple[Floats, Floats, Floats, list[str]]:
    """Nine standardised features, sex, disease progression, names of the features."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    keep = [i for i, name in enumerate(data.feature_names) if name != "sex"]
    X = data.data[:, keep]
    sex = np.where(data.data[:, data.feature_names.index("sex")] == 1, "sex 1", "sex 2")  # the source names them so
    return (X - X.mean(0)) / X.std(0), sex, data.target, [data.feature_names[i] for i in keep]


def measure(X: Floats, sex: Floats, disease: Floats) -> tuple[list[Row], float, float]:
    """A row before and one per method; the constant's loss and accuracy."""
    share = np.mean(sex == sex[0])
    constant = float(-(share * np.log(share) + (1 - share) * np.log(1 - share)))
    after = {name: erase(X, sex, method=method) for name, method in METHODS.items()}
    rows = [_row("before", X, X, sex, disease)]
    rows += [_row(f"after {name}", erased, X, sex, disease) for name, erased in after.items()]
    return rows, constant, float(max(share, 1 - share))


def _row(name: str, X: Floats, original: Floats, sex: Floats, disease: Floats) -> Row:
    from sklearn.linear_model import LinearRegression
    from sklearn.metrics import log_loss

    probe = _probe(X, sex)
    gap = np.abs(X[sex == "sex 1"].mean(0) - X[sex == "sex 2"].mean(0)) / original.std(0)
    return Row(
        name=name,
        X=X,
        loss=float(log_loss(sex, probe.predict_proba(X))),
        accuracy=float(probe.score(X, sex)),
        gap=float(gap.max()),
        edit=float(((X - original) ** 2).sum() / ((original - original.mean(0)) ** 2).sum()),
        r2=float(LinearRegression().fit(X, disease).score(X, disease)),
    )


def _probe(X: Floats, sex: Floats) -> Any:
    """Logistic regression without penalty, to convergence."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Setting penalty=None will ignore the C")  # scikit-learn 1.8, for C=inf
        return make_pipeline(StandardScaler(), LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000)).fit(X, sex)


def picture(X: Floats, sex: Floats, rows: list[Row], constant: float, path: Path) -> None:
    """People before and after, seen along the line through the two class means; and loss against edit size."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, 3, figsize=(13, 4.4), layout="constrained")
    plane = _plane(X, sex)  # (d, 2)
    reach = 1.05 * np.abs(X @ plane).max(axis=0)
    for axis, row, title in ((axes[0], rows[0], "Before"), (axes[1], rows[1], "After LEACE")):
        points = row.X @ plane
        for name, colour, marker in zip(("sex 1", "sex 2"), COLOURS, ("o", "^"), strict=True):
            group = points[sex == name]
            axis.scatter(*group.T, color=colour, marker=marker, s=14, alpha=0.45, linewidth=0, label=name)
            axis.plot(*_ellipse(group), color=colour, linewidth=1.8)
            axis.scatter(*group.mean(0), color=colour, marker=marker, s=150, edgecolor="black", zorder=3)
        axis.set(xlim=(-reach[0], reach[0]), ylim=(-reach[1], reach[1]), ylabel="direction of largest variance")
        axis.set_title(f"{title}: loss {row.loss:.4f}, constant {constant:.4f}")
        axis.set_xlabel("direction from one class mean to the other")
        axis.legend(frameon=False, loc="upper left")
    for row, marker in zip(rows, ("o", "D", "s", "^", "v"), strict=True):
        axes[2].scatter(100 * row.edit, row.loss, marker=marker, s=70, label=row.name, zorder=3)
    axes[2].axhline(constant, color="black", linestyle=":", label="knows nothing")
    axes[2].set(title="Concept gone (up), data unmoved (left)", xlabel="mean squared edit (% of variance)")
    axes[2].set_ylabel("best logistic loss for sex (nats)")
    axes[2].legend(frameon=False, loc="center right")
    fig.suptitle("Erasing sex from nine clinical features of 442 people (large: class means; ellipses: one spread)")
    fig.savefig(path, dpi=130)
    plt.close(fig)


def _plane(X: Floats, sex: Floats) -> Floats:
    """Two orthonormal directions: between the class means, and the largest variance beside it."""
    gap = X[sex == "sex 2"].mean(0) - X[sex == "sex 1"].mean(0)
    gap = gap / np.linalg.norm(gap)
    rest = X - np.outer(X @ gap, gap)
    second = np.linalg.svd(rest - rest.mean(0), full_matrices=False)[2][0]
    return np.stack([gap, second * np.sign(second[np.argmax(np.abs(second))])], axis=1)


def _ellipse(points: Floats) -> Floats:
    angle = np.linspace(0, 2 * np.pi, 200)
    root = np.linalg.cholesky(np.cov(points.T))
    return np.asarray(points.mean(0)[:, None] + root @ np.stack([np.cos(angle), np.sin(angle)]))
