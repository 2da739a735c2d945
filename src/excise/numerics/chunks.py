"""Rows in chunks that fit the processor's cache, on all of its cores.

NumPy's element-wise work runs on one core; its products run on all. Here the chunks are dealt to threads and each
product stays on its thread, so that everything runs on all cores: twice as fast as the other way round on two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar

__all__ = ["chunked", "quiet_pools", "small_products", "worker_count"]

State = TypeVar("State")
_workers: ContextVar[int | None] = ContextVar("_workers", default=None)


@cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


def small_products(d: int) -> AbstractContextManager[Any]:
    """One thread for d x d algebra that takes milliseconds.

    NumPy and SciPy each carry a pool of BLAS threads, which spin for a while after a call: two pools on the same
    cores wait for each other's time slices, and made small solves three times slower.
    """
    return _controller().limit(limits=1) if 64 < d <= 1024 else nullcontext()  # smaller ones run on one thread anyway


@contextmanager
def quiet_pools() -> Iterator[None]:
    """One BLAS thread per worker for a whole stretch of work that takes turns with another library's threads.

    A BLAS pool that is given its threads back after every call wakes them, and they spin for a while: a model that ran in
    between, on PyTorch's threads, became twice as slow.
    """
    token = _workers.set(worker_count())
    try:
        with _controller().limit(limits=1):
            yield
    finally:
        _workers.reset(token)


def worker_count(limit: int | None = None) -> int:
    """Threads that the BLAS of this process would use (so OMP_NUM_THREADS and the like are respected)."""
    threads = _workers.get() or max((pool["num_threads"] for pool in _controller().info()), default=1)
    return max(1, threads if limit is None else min(threads, limit))


def chunked(
    n: int, rows: int, start: Callable[[], State], work: Callable[[State, int, int], None], workers: int
) -> list[State]:
    """Call `work(state, begin, end)` for every chunk of `rows` rows; one `state = start()` per worker.

    Worker w takes the w-th contiguous run of chunks, so the same number of workers gives the same bits.
    """
    chunks = -(-n // rows)
    workers = max(1, min(workers, chunks))

    def run(worker: int) -> State:
        state = start()
        for chunk in range(chunks * worker // workers, chunks * (worker + 1) // workers):
            work(state, chunk * rows, min(n, (chunk + 1) * rows))
        return state

    if workers == 1:
        return [run(0)]
    with _controller().limit(limits=1), ThreadPoolExecutor(workers) as pool:
        return list(pool.map(run, range(workers)))
