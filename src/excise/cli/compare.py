"""`excise compare`: every method on the same split of one data set."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from excise.cli._shared import (
    ConceptOption,
    FeaturesOption,
    GroupsOption,
    LabelsArgument,
    LabelsOption,
    XArgument,
    one_of,
    read_all,
)

__all__ = ["compare"]


def compare(
    x: XArgument,
    z: LabelsArgument = None,
    labels: LabelsOption = None,
    features: FeaturesOption = None,
    concept: ConceptOption = None,
    y: Annotated[
        Path | None, typer.Option("--y", help="The task, one class per row: adds its accuracy and TPR gap.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option("--method", "-m", help="Only these methods; all unless given.")
    ] = None,
    groups: GroupsOption = None,
    seed: Annotated[int, typer.Option(help="Of the split and of the methods that draw at random.")] = 0,
    json: Annotated[Path | None, typer.Option(help="Also write the table as JSON.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Also write the table as CSV.")] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page with the table and the picture.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Also draw concept loss against edit size (PNG or SVG).")] = None,
) -> None:
    """Compare erasure methods: fitted on half of the rows, measured by probes on the rest.

    Examples:

      excise compare embeddings.npy gender.npy --html compare.html

      excise compare people.parquet -f embedding -c sex -m leace -m sal -m inlp --json compare.json
    """
    from excise.errors import need

    if html is not None or figure is not None:
        need("report", "a page", "matplotlib", "jinja2")
    from excise.auditing.comparison import compare as run
    from excise.errors import ConceptError, ExciseError

    if figure is not None and figure.suffix not in (".png", ".svg", ".pdf"):
        raise ExciseError(f"cannot draw {figure}: expected a file that ends in .png, .svg or .pdf")
    for target in (json, csv, html, figure):
        if target is not None and not target.parent.is_dir():
            raise ExciseError(f"cannot write {target}: the folder {target.parent} does not exist")
    X, truth = read_all(x, one_of(z, labels), features, concept, sure=labels is not None)
    if truth is None:
        raise ConceptError("no labels: pass a second file, or name the column of X with --concept")
    task, together = (None if file is None else read_all(x, file, features, None)[1] for file in (y, groups))

    def started(name: str) -> None:
        if sys.stderr.isatty():
            typer.echo(f"{name} ...", err=True)

    result = run(X, truth, methods=method, y=task, groups=together, seed=seed, progress=started)
    typer.echo(str(result))
    if json is not None:
        result.to_json(json)
    if csv is not None:
        result.to_csv(csv)
    if html is not None:
        result.to_html(html)
    if figure is not None:
        from excise.reporting.comparison import picture

        picture(result, figure)
