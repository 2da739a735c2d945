"""Sums over many parts: a tree of additions, on a Dask cluster or on whatever scheduler Dask is set to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from excise.distributed.scheduler import require_dask

__all__ = ["reduce_parts"]

FAN_IN = 8  # results that one task adds up


def add_up(*parts: Any) -> Any:
    """The sum, from left to right."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def reduce_parts(
    work: Callable[..., Any],
    jobs: Sequence[tuple[Any, ...]],
    client: Any = None,
    done: Callable[[int], None] | None = None,
) -> Any:
    """add_up(work(*job) for job in jobs), as a tree.

    Args:
        work: a function of the library.
        jobs: what it is called with; arguments may be Dask's delayed values.
        client: a `distributed.Client`; without one, whatever scheduler Dask is set to (threads, processes, a client).
        done: called with the number of each job that is finished, as they come (with a client and plain arguments).
    """
    require_dask()
    import dask

    lazy = any(dask.is_dask_collection(argument) for job in jobs for argument in job)
    if client is None or lazy:
        level: list[Any] = [dask.delayed(work)(*map(_delayed, job)) for job in jobs]
        while len(level) > 1:
            level = [dask.delayed(add_up)(*level[i : i + FAN_IN]) for i in range(0, len(level), FAN_IN)]
        return dask.compute(level[0])[0] if client is None else client.compute(level[0]).result()
    from distributed import as_completed

    leaves = [client.submit(work, *job, pure=False) for job in jobs]
    level = leaves
    while len(level) > 1:
        level = [client.submit(add_up, *level[i : i + FAN_IN], pure=False) for i in range(0, len(level), FAN_IN)]
    total = level[0]
    numbers = {leaf.key: i for i, leaf in enumerate(leaves)}
    del level
    waiting = as_completed(leaves)
    leaves.clear()  # what was added up need not be kept
    for leaf in waiting:
        if leaf.status == "error":
            break
        if done is not None:
            done(numbers[leaf.key])
        del leaf
    return total.result()


def _delayed(argument: Any) -> Any:
    """An argument of a task; what is no collection is passed on as it is, not searched for collections."""
    import dask

    return argument if dask.is_dask_collection(argument) else dask.delayed(argument, traverse=False)
