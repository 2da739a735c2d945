"""`excise audit`: the evidence about a concept in files of features and labels."""

from __future__ import annotations

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
    plain_warnings,
    read_all,
)

__all__ = ["audit"]


def audit(
    x: XArgument,
    z: LabelsArgument = None,
    labels: LabelsOption = None,
    eraser: Annotated[
        Path | None, typer.Option("--eraser", "-e", help="The eraser to audit, as `excise fit` wrote it.")
    ] = None,
    erased: Annotated[
        Path | None, typer.Option(help="Or its result: the same rows, erased, as `excise apply` wrote them.")
    ] = None,
    y: Annotated[
        Path | None, typer.Option("--y", help="The main task, one class per row: adds the figures on fairness.")
    ] = None,
    refit: Annotated[
        str | None,
        typer.Option(help="The method to fit again on parts of the rows (e.g. leace): adds figures on unseen rows."),
    ] = None,
    test: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="X Z",
            help="Features and labels that the eraser has not seen: adds figures of this very eraser on them.",
        ),
    ] = None,
    condition_on: Annotated[
        Path | None,
        typer.Option(help="A task, one class per row: judge the concept within every class of it."),
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Judge rows of unit length: what a cosine index sees.")
    ] = False,
    groups: GroupsOption = None,
    features: FeaturesOption = None,
    concept: ConceptOption = None,
    kind: Annotated[
        str | None, typer.Option(help="categorical or continuous, where the labels do not say it themselves.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer rows for the probes; minutes for a million rows.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of all splits, samples and probes.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Also write the report as one self-contained page.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write everything as JSON.")] = None,
) -> None:
    """Is the concept gone, what did it cost, and what can still be found?

    The conditions of the theorem are checked on all rows. Figures on rows that the eraser has not seen need --test or
    --refit. Exits with status 0 if the concept is guarded, 1 if it is not, 2 on misuse or failure.

    Examples:

      excise audit embeddings.npy gender.npy --html before.html

      excise audit embeddings.npy gender.npy -e eraser.safetensors --refit leace --html after.html

      excise audit embeddings.npy gender.npy -e eraser.safetensors --test new.npy new-gender.npy

      excise audit people.parquet -f embedding -c sex -e eraser.safetensors --y job.npy --json audit.json
    """
    from excise.errors import need

    if html is not None:
        need("report", "a page", "matplotlib", "jinja2")
    from excise.auditing.audit import audit as run
    from excise.errors import ConceptError, ExciseError
    from excise.loading import load

    for target in (html, json):
        if target is not None and not target.parent.is_dir():
            raise ExciseError(f"cannot write {target}: the folder {target.parent} does not exist")
    X, truth = read_all(x, one_of(z, labels), features, concept, sure=labels is not None)
    if truth is None:
        raise ConceptError("no labels: pass a second file, or name the column(s) of X with --concept")
    with plain_warnings():
        report = run(
            X,
            truth,
            eraser=None if eraser is None else load(eraser),
            X_erased=None if erased is None else read_all(erased, None, features, None)[0],
            y=None if y is None else read_all(x, y, features, None)[1],
            refit=refit,
            seed=seed,
            test=None if test is None else read_all(test[0], test[1], features, None),
            condition_on=None if condition_on is None else read_all(x, condition_on, features, None)[1],
            normalize=normalize,
            groups=None if groups is None else read_all(x, groups, features, None)[1],
            kind=kind,
            quick=quick,
            progress=True,
        )
    typer.echo(str(report))
    if html is not None:
        report.to_html(html)
        typer.echo(f"page: {html}")
    if json is not None:
        report.to_json(json)
        typer.echo(f"JSON: {json}")
    if not report.guarded:
        raise typer.Exit(1)
