"""Progress of scrubbing, on stderr."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

from excise.scrubbing.sites import Layout

__all__ = ["Bar"]


class Bar:
    """Progress on stderr: "(3/12) blocks", tokens per second, time left. Quiet when there is no terminal."""

    def __init__(self, layout: Layout, tokens: int, progress: bool) -> None:
        self.blocks = len(layout.groups)
        self.quiet = not progress or not sys.stderr.isatty()
        self.bar: Any = nullcontext()
        if not self.quiet:
            try:
                from tqdm import tqdm
            except ModuleNotFoundError:
                self.quiet = True
                return
            passes = sum(len(group.levels) + (group.tail is None) for group in layout.groups) - 1
            self.bar = tqdm(
                total=tokens * max(1, passes), unit=" tokens", unit_scale=True, desc=f"(0/{self.blocks}) blocks"
            )

    def say(self, text: str) -> None:
        if not self.quiet:
            self.bar.write(text, file=sys.stderr)

    def block(self, number: int) -> None:
        if not self.quiet:
            self.bar.set_description(f"({number}/{self.blocks}) blocks")

    def tick(self, tokens: int) -> None:
        if not self.quiet:
            self.bar.update(tokens)

    def __enter__(self) -> Bar:
        self.bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.bar.__exit__(*error)
