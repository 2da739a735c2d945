"""`--dry-run`: rows, memory and time, from the first batch of the data."""

from __future__ import annotations

import time
from typing import Any

import typer

from excise.cli._shared import show_json

__all__ = ["estimate", "show_plan"]


def estimate(table: Any, needs: str, kind: Any = None, sample: int = 0) -> dict[str, Any]:
    """Figures for one pass: one batch is read and added up, and its time is multiplied.

    For methods that train on rows (`needs` is "rows") it is the pass that draws the sample, and the memory of the
    sample; the time of the training itself is not known.

    Raises:
        ExciseError: what reading that batch raises.
    """
    from excise.data import learn_recipe

    recipe = learn_recipe(table, "class moments" if needs == "class moments" else "moments", kind)
    n, d, k = table.n, table.d, recipe.concept.k
    state = recipe.start()
    began = time.perf_counter()
    stream = table.stream()
    batch = next(stream)
    read = time.perf_counter() - began
    began = time.perf_counter()
    if needs != "rows":
        state.add_batch(batch)
    added = time.perf_counter() - began
    share = n / max(1, batch.count)
    stream.close()
    matrices = 6 * 8 * d * d if needs != "class moments" else 8 * d * d * (k + 6)
    held = 4 * min(n, sample) * table.row_bytes if needs == "rows" else 0
    batches = 4 * table.batch_rows * max(1, table.row_bytes)
    return {
        "rows": n,
        "d": d,
        "concept": [str(name) for name in recipe.concept.names][:20],
        "files": len(table.sources),
        "bytes": sum(source.location.size for source in table.sources),
        "memory": int(150e6 + matrices + batches + held),
        "sample": min(n, sample) if needs == "rows" else None,
        "seconds": round(max(read, added) * share + 1e-10 * d**3, 1),
    }


def show_plan(table: Any, method: str, needs: str, as_json: bool, kind: Any = None, sample: int = 0) -> None:
    """Print the figures."""
    plan = estimate(table, needs, kind, sample)
    if as_json:
        show_json({"method": method, **plan})
        return
    typer.echo(
        f"{plan['rows']:,} rows, {plan['d']} features, {plan['files']} file(s), {plan['bytes'] / 1e9:.2f} GB; "
        f"concept: {', '.join(plan['concept'])}"
    )
    typer.echo(f"about {plan['memory'] / 1e9:.1f} GB of memory and {_time(plan['seconds'])}, by the first batch")
    if plan["sample"] is not None:
        typer.echo(f"and the time of {method} itself, which trains on a sample of {plan['sample']:,} rows")


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
