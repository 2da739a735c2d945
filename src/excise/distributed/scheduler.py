"""A Dask cluster to work on: one that is named by its address, or one of processes on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from excise.errors import ExciseError, missing_extra

__all__ = ["connected", "require_dask"]

PATIENCE = 15  # seconds until a scheduler that does not answer counts as unreachable


def require_dask() -> None:
    """
    Raises:
        ExciseError: Dask is not installed.
    """
    try:
        import dask  # noqa: F401
    except ModuleNotFoundError:
        raise missing_extra("working on a cluster needs Dask", "dask") from None


@contextmanager
def connected(address: str | None = None, workers: int | None = None, patience: float = PATIENCE) -> Iterator[Any]:
    """A `distributed.Client`, closed at the end.

    Args:
        address: of a scheduler, e.g. "tcp://10.0.0.1:8786". If left out, a cluster is started on this machine.
        workers: processes of that cluster, each with one BLAS thread; as many as there are cores unless given.
        patience: seconds to wait for the scheduler.

    Raises:
        ExciseError: the scheduler cannot be reached, or Dask is not installed.
    """
    require_dask()
    try:
        from distributed import Client, LocalCluster
    except ModuleNotFoundError:
        raise missing_extra("working on a cluster needs Dask", "dask") from None
    if address is not None:
        try:
            client = Client(address, timeout=patience)
        except (OSError, TimeoutError, ValueError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ExciseError(f"the scheduler at {address} cannot be reached: {first}", code="no-scheduler") from None
        with client:
            yield client
        return
    count = workers or len(os.sched_getaffinity(0))
    if count < 1:
        raise ExciseError(f"a cluster needs at least one worker, got {workers}")
    with (
        LocalCluster(
            n_workers=count, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", memory_limit=0
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client
