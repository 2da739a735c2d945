"""`excise merge`: moments of several parts of the data -> moments of all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from excise.cli._shared import JsonFlag, OverwriteOption, check_new, show_json

__all__ = ["merge"]


def merge(
    parts: Annotated[
        list[Path], typer.Argument(help="Files that `excise fit --save-moments` wrote.", metavar="MOMENTS...")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the moments of all parts.")],
    overwrite: OverwriteOption = False,
    as_json: JsonFlag = False,
) -> None:
    """Add up moments that were gathered on several machines. The order does not matter, and no row is needed any more.

    Exit status: 0 if the result was written, 2 for misuse or failure.

    Examples:

      excise merge 0.moments 1.moments 2.moments -o all.moments

      excise fit --moments all.moments -o eraser.safetensors
    """
    from excise.errors import ExciseError, InputError
    from excise.loading import load
    from excise.moments.class_moments import ClassMoments
    from excise.moments.moments import Moments

    check_new(overwrite, output)
    if len({path.resolve() for path in parts}) != len(parts):
        raise ExciseError("the same file is named twice: its rows would count twice", code="named-twice")
    total: Any = None
    for path in parts:
        m: Any = load(path)
        if not isinstance(m, (Moments, ClassMoments)):
            raise InputError(f"{path} holds {type(m).__name__}, expected moments")
        if total is not None and type(m) is not type(total):
            raise InputError(
                f"{path} holds {type(m).__name__}, {parts[0]} {type(total).__name__}: they cannot be added up"
            )
        try:
            total = m if total is None else _sum(total, m)
        except ExciseError as error:
            raise type(error)(f"{path}: {error}") from None
    total.save(output)
    rows = int(total.rows if isinstance(total, Moments) else total.rows.sum())
    if as_json:
        show_json({"rows": rows, "d": total.d, "parts": len(parts), "output": str(output)})
    else:
        typer.echo(f"{rows:,} rows of {len(parts)} parts, {total.d} features: {output}")


def _sum(a: Any, b: Any) -> Any:
    return a + b
