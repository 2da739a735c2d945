"""How the pictures of the gallery look: large enough for a slide, no frame on the right and top."""

from __future__ import annotations

from typing import Any

STYLE = {
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


def reset(_gallery_conf: Any, _fname: str) -> None:
    """Called by sphinx-gallery before each example."""
    import matplotlib

    matplotlib.rcParams.update(STYLE)
