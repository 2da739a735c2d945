"""`excise demo`: what erasure is and that it worked, in a minute, on data that ships with scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["demo"]


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the picture.")] = Path("demo"),
) -> None:
    """Erase sex from the diabetes data of scikit-learn, and show what is left.

    The `sex` column is dropped first: the other nine features still give it away. Then it is erased from them by four
    methods, and each is measured: can a logistic regression still find sex, how far were the data moved, and how well
    do they still predict the disease?

    Examples:

      excise demo

      excise demo -o pictures
    """
    from rich.console import Console
    from rich.table import Table

    from excise.errors import need

    need("report", "the picture of the demo", "matplotlib")
    from excise.reporting.demo import load_people, measure, picture

    X, sex, disease, names = load_people()
    rows, constant, majority = measure(X, sex, disease)
    console = Console()
    console.print(
        f"\n[bold]442 people, {X.shape[1]} features[/bold] ({', '.join(names)}); the sex column itself was dropped.\n"
        f"A model that sees nothing and says the same for everyone has a logistic loss of [bold]{constant:.4f}[/bold] "
        f"(accuracy {majority:.3f}).\n"
    )
    table = Table(title="Can a linear model find sex in the features?")
    for heading in ("", "loss", "accuracy", "mean gap", "edit", "disease R²", "sex is"):
        table.add_column(heading, justify="left" if heading in ("", "sex is") else "right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row, constant))
    console.print(table)
    console.print(
        "loss: of the best logistic regression for sex. mean gap: largest distance of the class means, in SD.\n"
        "edit: mean squared edit, in % of the variance. disease R²: what the features still say of the disease.",
        style="dim",
        highlight=False,
    )
    output.mkdir(parents=True, exist_ok=True)
    path = output / "demo.png"
    picture(X, sex, rows, constant, path)
    console.print(
        "\nAfter erasure the best linear model is no better than the constant.\n"
        "LEACE moves the data least of all affine maps that erase; the oracle moves them less, because it is told the "
        "sex of everyone.\nA random projection of the same rank leaves sex where it was.\n"
        f"\nPicture: {path}\n",
        highlight=False,
    )


def _cells(row: Any, constant: float) -> list[str]:
    found = constant - row.loss > 1e-6
    return [
        row.name,
        f"{row.loss:.4f}",
        f"{row.accuracy:.3f}",
        f"{row.gap:.1e}" if row.gap < 1e-3 else f"{row.gap:.2f}",
        f"{100 * row.edit:.2f}",
        f"{row.r2:.3f}",
        "[red]found[/red]" if found else "[green]gone[/green]",
    ]
