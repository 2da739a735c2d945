"""The picture of docs/unit-vectors.md: the best linear score of the concept, before and after. `python docs/figures/unit_vectors.py`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import excise


def unit(X: Any) -> Any:
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def score(X: Any, z: Any) -> tuple[Any, float]:
    """Least-squares prediction of z, and its R^2."""
    H = np.c_[X, np.ones(len(X))]
    said = H @ np.linalg.lstsq(H, z, rcond=1e-10)[0]
    return said, float(1 - ((z - said) ** 2).mean() / z.var())


def main() -> None:
    rng = np.random.default_rng(0)
    z = rng.integers(0, 2, 3000)
    X = (
        rng.standard_normal((3000, 40)) * np.where(z[:, None] == 1, 0.5, 1.5)
        + 0.8 * z[:, None]
        + rng.standard_normal(40)
    )
    panels = {
        "unit vectors before": unit(X),
        "LEACE, then normalised": unit(excise.erase(X, z)),
        "normalize=True": excise.erase(X, z, normalize=True),
    }
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.6), sharex=True)
    for axis, (title, rows) in zip(axes, panels.items(), strict=True):
        said, r2 = score(rows, z)
        for label, colour in ((0, "#4477aa"), (1, "#ee6677")):
            axis.hist(
                said[z == label], bins=np.linspace(-0.4, 1.4, 60), color=colour, alpha=0.6, label=f"class {label}"
            )
        axis.set_title(f"{title}\nR² = {max(r2, 0.0):.3f}", fontsize=10)
        axis.set_yticks([])
        axis.set_xlabel("best linear prediction of the class", fontsize=8)
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(Path(__file__).with_name("unit-vectors.svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
