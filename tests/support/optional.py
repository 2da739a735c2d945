"""Packages of an extra in tests of the core: where one is absent, the tests that call it are skipped, the others run."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

__all__ = ["optional"]


class Absent:
    """Stands for a package that is not installed, and for everything in it. A call skips the running test."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__") or "name" not in self.__dict__:
            raise AttributeError(name)
        return Absent(f"{self.name}.{name}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        pytest.skip(f"{self.name.split('.')[0]} is not installed")


def optional(name: str) -> Any:
    """The package of that name, or a stand-in for it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return Absent(name)
