"""A report, or a comparison, as one self-contained page: no script, no network, every label escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from excise.auditing.comparison import Comparison
from excise.auditing.report import Report
from excise.errors import ExciseError
from excise.reporting.badges import badges
from excise.reporting.comparison import drawn_comparison
from excise.reporting.figures import figures

__all__ = ["comparison_page", "report_page"]


def report_page(report: Report) -> str:
    return _render("report.html", report=report, badges=badges(report), figures=figures(report), lists=_lists)


def comparison_page(comparison: Comparison) -> str:
    columns = ("linear_loss", "nonlinear_loss", "edit", "task_accuracy", "tpr_gap")
    return _render(
        "comparison.html",
        comparison=comparison,
        best={column: comparison.best(column) for column in columns},
        figure=drawn_comparison(comparison),
        about=comparison.to_dict(),
    )


def _lists(value: Any, most: int = 12) -> str:
    """[[name, count], ...] as "name (count), ..."."""
    shown = ", ".join(f"{name} ({count:,})" for name, count in value[:most])
    return shown + (f", and {len(value) - most} more" if len(value) > most else "")


def _number(value: Any, digits: int = 3) -> str:
    """A number for people: three digits, powers of ten only where they help; a dash where there is none."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    if abs(value) < 10.0**-digits:
        return f"{value:.1e}"
    return f"{value:.{digits}f}" if abs(value) < 100 else f"{value:,.0f}"


def _render(template: str, **values: Any) -> str:
    try:
        import jinja2
    except ModuleNotFoundError:
        raise ExciseError("pages need jinja2 and matplotlib: pip install 'excise[report]'") from None

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = _number
    return environment.get_template(template).render(**values)
