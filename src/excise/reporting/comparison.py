"""The picture of a comparison: concept loss against edit size, as in the paper's intrinsic figure."""

from __future__ import annotations

import os
from typing import Any

from excise.auditing.comparison import Comparison
from excise.reporting.svg import COLOURS, INK, drawing

__all__ = ["drawn_comparison", "picture"]

MARKERS = "oDs^vP*Xhd<>"


def picture(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Held-out loss of a linear probe for the concept (up: gone) against the mean squared edit (left: unmoved)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axis = plt.subplots(figsize=(7.5, 5), layout="constrained")
    _draw(axis, comparison, "black")
    fig.savefig(path, dpi=130)
    plt.close(fig)


def drawn_comparison(comparison: Comparison) -> str:
    """The same as SVG, for a page."""
    with drawing("Concept loss against edit size", size=(7.5, 4.6)) as drawn:
        _draw(drawn.axes[0], comparison, INK)
    return str(drawn.svg)


def _draw(axis: Any, comparison: Comparison, ink: str) -> None:
    shown = [o for o in comparison.outcomes if o.linear_loss is not None and o.edit is not None]
    for i, o in enumerate(shown):
        axis.scatter(
            100 * (o.edit or 0.0),
            o.linear_loss or 0.0,
            marker=MARKERS[i % len(MARKERS)],
            color=COLOURS[i % len(COLOURS)],
            s=70,
            label=o.method + (" (needs labels)" if o.needs_labels else ""),
            zorder=3,
        )
    axis.axhline(comparison.constant_loss, color=ink, linestyle=":", label="constant")
    axis.set_xlabel("mean squared edit (% of variance)")
    axis.set_ylabel("loss of a linear probe for the concept (bits per row)")
    axis.set_title(f"Held out: {comparison.n_held_out} rows, {comparison.d} features")
    axis.legend(frameon=False, fontsize=9)
