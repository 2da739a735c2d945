"""Figures as SVG that takes the colours of the page around it, so that one page serves light, dark and print."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from excise.errors import ExciseError

__all__ = ["COLOURS", "INK", "LINES", "MARKERS", "drawing", "label"]

# Okabe and Ito's colours, distinct for colour-blind people; each class also has a marker and a line of its own.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "o^sDvP"
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
INK = "#010203"  # stands for the colour of the text, which the page chooses


def label(name: Any, most: int = 28) -> str:
    """A class's name as it is drawn: short, on one line."""
    text = " ".join(str(name).split())
    return text if len(text) <= most else text[: most - 1] + "…"


@contextmanager
def drawing(title: str, columns: int = 1, rows: int = 1, size: tuple[float, float] = (7.0, 3.4)) -> Iterator[Any]:
    """Axes to draw on; afterwards `.svg` of the yielded object is the picture.

    Raises:
        ExciseError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise ExciseError("pictures need matplotlib: pip install 'excise[report]'") from None
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and restyled
        "svg.hashsalt": title,
        "text.parse_math": False,  # a label with a dollar sign is a label
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        figure.patch.set_alpha(0.0)
        drawn = _Drawn(figure, figure.subplots(rows, columns, squeeze=False))
        for axis in drawn.axes:
            axis.patch.set_alpha(0.0)
        yield drawn
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    drawn.svg = _embedded(out.getvalue(), title)


class _Drawn:
    def __init__(self, figure: Any, axes: Any) -> None:
        self.figure = figure
        self.axes = list(axes.ravel())
        self.svg = ""

    def legend(self, **options: Any) -> None:
        """Below all axes, where it covers nothing."""
        handles, names = self.axes[0].get_legend_handles_labels()
        self.figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 4), fontsize=9, **options)


def _embedded(svg: str, title: str) -> str:
    """Without the XML head, with a title for those who cannot see it, and ids that no other figure has."""
    from html import escape

    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    prefix = re.sub(r"\W+", "-", title.lower()).strip("-")
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    svg = svg.replace(INK, "currentColor")
    svg = re.sub(r"font: ([\d.]+)px [^;\"]+", r"font-size: \1px", svg)  # the page's own typeface
    head, rest = svg.split(">", 1)
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    return f'{head} role="img" aria-label="{escape(title, quote=True)}"><title>{escape(title)}</title>{rest}'
