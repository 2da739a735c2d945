"""Progress on the error stream: one bar for all long work, silent if that stream is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

__all__ = ["Progress"]

Item = TypeVar("Item")


class Progress:
    """A bar with rate and time left, used in a `with` statement. It shows nothing if `show` is False, if the error
    stream is not a terminal, or if tqdm is not installed.

    >>> with Progress(100, "fitting", unit="rows") as bar:
    ...     bar.advance(60)
    ...     bar.describe("solving")
    """

    def __init__(self, total: int | None, what: str, unit: str = "rows", show: bool = True) -> None:
        self._bar: Any = None
        if show and sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ModuleNotFoundError:
                return
            self._bar = tqdm(total=total, desc=what, unit=f" {unit}", unit_scale=True)

    def advance(self, amount: int = 1) -> None:
        if self._bar is not None:
            self._bar.update(amount)

    def describe(self, what: str) -> None:
        """Change the text before the bar."""
        if self._bar is not None:
            self._bar.set_description(what)

    def step(self, what: str) -> None:
        """One more step of a bar that counts steps; `what` comes next."""
        self.describe(what)
        self.advance()

    def say(self, text: str) -> None:
        """A line above the bar."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items one by one, each a step of the bar; it is closed at the end."""
        with self:
            for item in items:
                yield item
                self.advance()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
