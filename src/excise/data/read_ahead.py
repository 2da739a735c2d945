"""Reading in a thread of its own, so that the next batch is read while this one is worked on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Empty, Full, Queue
from typing import Any, TypeVar

__all__ = ["read_ahead"]

Item = TypeVar("Item")
WAIT = 0.1  # seconds between looks at whether the reader is still wanted
END = object()


def read_ahead(items: Iterator[Item], depth: int = 1) -> Iterator[Item]:
    """The same items, with `depth` of them made in advance by another thread. Its errors are raised here.

    >>> list(read_ahead(iter([1, 2, 3])))
    [1, 2, 3]
    """
    ready: Queue[Any] = Queue(maxsize=depth)
    stopped = threading.Event()
    failed: list[BaseException] = []

    def put(item: Any) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=WAIT)
                return True
            except Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put(item):
                    return
        except BaseException as error:
            failed.append(error)
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()
            put(END)

    thread = threading.Thread(target=work, name="excise-reading", daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            if item is END:
                break
            yield item
            del item
        if failed:
            raise failed[0]
    finally:
        stopped.set()
        while thread.is_alive():
            try:
                ready.get_nowait()
            except Empty:
                thread.join(WAIT)
