"""Tables of files on a Dask cluster: every worker opens the files itself, and only moments travel."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from excise.data.erasing import erase_file
from excise.data.gathering import Gathered, Recipe, gather_part
from excise.data.opening import open_table
from excise.data.table import Part, Table
from excise.distributed.reducing import reduce_parts
from excise.errors import ExciseError

__all__ = ["apply_on", "gather_on"]


@lru_cache(maxsize=4)
def _opened(how: str) -> Table:
    return open_table(**json.loads(how))


def _open(how: str, rows: list[int | None]) -> Table:
    """The table, as this machine sees it.

    Raises:
        ExciseError: it is not what the client saw.
    """
    table = _opened(how)
    if _rows(table) != rows:
        raise ExciseError(
            f"{json.loads(how)['x']} has other rows on this worker than on the client: all machines must see the same files",
            code="input-changed",
        )
    return table


def _rows(table: Table) -> list[int | None]:
    return [source.rows if source.counted else None for source in table.sources]


def gather_from(how: str, rows: list[int | None], part: Part, recipe: Recipe) -> Gathered:
    """What a worker does: open, read one part, add up."""
    out = gather_part(_open(how, rows), [part], recipe)
    return out


def gather_on(client: Any = None) -> Callable[..., Gathered]:
    """One pass over a table on a cluster; to be passed to `fit_table` as `run`.

    Args:
        client: a `distributed.Client`; without one, whatever scheduler Dask is set to.
    """

    def run(table: Table, recipe: Recipe, progress: Callable[[int], None] | None = None) -> Gathered:
        parts = table.parts()
        how, rows = json.dumps(table.info), _rows(table)

        def done(number: int) -> None:
            part = parts[number]
            if progress is not None and part.end is not None:
                progress(part.end - part.begin)

        jobs = [(how, rows, part, recipe) for part in parts]
        total: Gathered = reduce_parts(gather_from, jobs, client, done)
        return total

    return run


def erase_from(how: str, rows: list[int | None], eraser: Any, job: tuple[int, str], rounding: str, seed: int) -> Any:
    """What a worker does: open, erase one file, write it. `job` is the number of the file and its target."""
    return erase_file(eraser, _open(how, rows), job[0], job[1], rounding, seed)


def apply_on(
    client: Any, eraser: Any, table: Table, rounding: str = "nearest", seed: int = 0
) -> Callable[..., Iterator[Any]]:
    """Files of a folder erased by a cluster, one task each; to be passed to `apply_eraser` as `run`."""
    how, rows = json.dumps(table.info), _rows(table)

    def run(_: Any, jobs: Sequence[tuple[int, str]]) -> Iterator[Any]:
        futures = [client.submit(erase_from, how, rows, eraser, job, rounding, seed, pure=False) for job in jobs]
        for future in futures:
            yield future.result()

    return run
