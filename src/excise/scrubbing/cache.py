"""The hidden states between two blocks, batch by batch: on the device, in memory, on disk, or nowhere.

With a cache each block is run a few times; without one every pass starts at the embeddings, which for l blocks costs
of the order of l^2. States keep the dtype of the model.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from excise.errors import ExciseError

__all__ = ["MODES", "Cache", "choose"]

MODES = ("auto", "gpu", "ram", "disk", "none")
SHARE = 0.8  # of what is free


def choose(mode: str, size: int, device: torch.device, folder: str | os.PathLike[str] | None, chained: bool) -> str:
    """The mode that "auto" stands for; any other is checked.

    Raises:
        ExciseError: an unknown mode, or one in which `size` bytes do not fit; the message says what would.
    """
    if mode not in MODES:
        raise ExciseError(f"cache must be one of {', '.join(MODES)}, got {mode!r}")
    if not chained and mode not in ("auto", "none"):
        raise ExciseError(
            f"cache={mode!r}: between the blocks of this model something else happens to the hidden states, so every pass has "
            f"to start at the embeddings: pass cache='none'"
        )
    if mode == "none" or not chained:
        return "none"
    free = {
        "gpu": torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0,
        "ram": _free_memory(),
        "disk": shutil.disk_usage(folder if folder and Path(folder).is_dir() else tempfile.gettempdir()).free,
    }
    if mode == "gpu" and device.type == "cpu":
        raise ExciseError("cache='gpu': the model is on the CPU; pass cache='ram'")
    fitting = [name for name in ("gpu", "ram", "disk") if size <= SHARE * free[name]]
    if mode == "auto" and fitting:
        return fitting[0]
    if mode in fitting:
        return mode
    raise ExciseError(
        f"the cache of hidden states needs {size / 1e9:.2f} GB, and there is no room for it with cache={mode!r} (free: "
        + ", ".join(f"{name} {amount / 1e9:.2f} GB" for name, amount in free.items())
        + f"): pass {f'cache={fitting[0]!r}, ' if fitting else ''}cache='none' (slower), or fewer tokens"
    )


def _free_memory() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, OSError, ValueError):
        return 2**62  # unknown: let the system refuse


class Cache:
    """One tensor per batch. Used in a `with` statement, which removes the file of the disk mode."""

    def __init__(self, mode: str, sizes: list[int], dtype: torch.dtype, folder: str | os.PathLike[str] | None) -> None:
        self.mode = mode
        self._dtype = dtype
        self._kept: dict[int, torch.Tensor] = {}
        self._map: Any = None
        if mode == "disk":
            self._folder = tempfile.mkdtemp(prefix="excise-cache-", dir=folder)
            self._ends = np.cumsum([0, *sizes]).tolist()
            self._map = np.memmap(Path(self._folder) / "hidden", np.uint8, "w+", shape=(self._ends[-1],))

    def write(self, number: int, x: torch.Tensor) -> None:
        if self._map is None:
            self._kept[number] = x.detach().to("cpu" if self.mode == "ram" else x.device)
            return
        if x.dtype != self._dtype:
            raise ExciseError(f"cache='disk': hidden states change from {self._dtype} to {x.dtype}; pass cache='ram'")
        self._kept[number] = x.new_empty((0, *x.shape[1:]))  # remembers nothing but the shape
        flat = x.detach().cpu().contiguous().view(torch.uint8).reshape(-1).numpy()
        self._map[self._ends[number] : self._ends[number] + len(flat)] = flat

    def read(self, number: int, device: torch.device) -> torch.Tensor:
        if self._map is None:
            return self._kept[number].to(device, copy=True)  # a block may write into its input
        rows = torch.from_numpy(np.array(self._map[self._ends[number] : self._ends[number + 1]])).view(self._dtype)
        return rows.reshape(-1, *self._kept[number].shape[1:]).to(device)

    def __enter__(self) -> Cache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._kept.clear()
        if self._map is not None:
            self._map = None
            shutil.rmtree(self._folder, ignore_errors=True)
