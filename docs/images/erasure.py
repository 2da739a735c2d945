"""The picture of the README: python docs/images/erasure.py

Breast cancer data of scikit-learn: the best linear score for the diagnosis and another direction, before and after erasing the diagnosis, and the accuracy
of a linear classifier on rows that the eraser has not seen.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from sklearn.datasets import load_breast_cancer
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression

import excise

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from gallery_style import STYLE  # noqa: E402

COLORS = ("#0072B2", "#D55E00")


def main() -> None:
    matplotlib.rcParams.update(STYLE)
    warnings.simplefilter("ignore", excise.ExciseWarning)
    X, z = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    eraser = excise.fit(X, z)
    erased = eraser(X)
    best = LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.1).fit(X, z).coef_[0]
    best /= np.linalg.norm(best)
    rest = X - np.outer(X @ best, best)
    other = np.linalg.svd(rest - rest.mean(0), full_matrices=False)[2][0]

    fig, axes = plt.subplots(1, 3, figsize=(13, 3.9), width_ratios=[1, 1, 0.85])
    for ax, rows, title in ((axes[0], X, "Before"), (axes[1], erased, "After excise")):
        for value, name in ((0, "malignant"), (1, "benign")):
            points = rows[z == value] @ np.column_stack([best, other])
            ax.scatter(*points.T, s=9, alpha=0.45, color=COLORS[value], label=name)
            ax.plot(*points.mean(0), "X", ms=14, color=COLORS[value], mec="white", mew=1.6)
        ax.set(xlabel="best linear score for the concept", title=title, xlim=(-5, 5), ylim=(-13.5, 6.5))
    axes[0].set_ylabel("another direction")
    axes[0].legend(markerscale=2, loc="lower right")
    order = np.random.default_rng(0).permutation(len(X))
    fit, train, test = np.array_split(order, [285, 427])
    fitted = excise.fit(X[fit], z[fit])
    accuracy = []
    for edit in (lambda X: X, fitted):
        model = LogisticRegression(max_iter=2000, C=0.1).fit(edit(X[train]), z[train])
        accuracy.append(model.score(edit(X[test]), z[test]))
    bars = axes[2].bar(["before", "after"], accuracy, color=["#999999", "#009E73"], width=0.55)
    axes[2].bar_label(bars, fmt="%.2f", padding=3)
    majority = max(z[test].mean(), 1 - z[test].mean())
    axes[2].axhline(majority, color="black", ls="--", lw=1)
    axes[2].text(0.5, majority + 0.015, "majority", fontsize=10, ha="center")
    axes[2].set(ylim=(0, 1.15), ylabel="accuracy", title="Linear classifier, new rows")
    fig.savefig(HERE / "erasure.png", dpi=100)
    print(f"accuracy {accuracy[0]:.3f} before, {accuracy[1]:.3f} after, majority {majority:.3f}")


if __name__ == "__main__":
    main()
