"""How much memory there is, for those who ask before they take it."""

from __future__ import annotations

import os
from pathlib import Path

from excise.errors import ExciseError

__all__ = ["free_memory", "require_memory"]


def free_memory() -> int:
    """Bytes that a process could take without swapping; a guess where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, OSError, ValueError):
        return 2**62  # unknown: let the system refuse


def require_memory(size: int, what: str, instead: str) -> None:
    """
    Raises:
        ExciseError: `size` bytes are more than there are.
    """
    free = free_memory()
    if size > free:
        raise ExciseError(
            f"{what} needs about {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free: {instead}", code="memory"
        )
