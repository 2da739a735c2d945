"""What a pass keeps for the next one, batch by batch: on the device, in memory, on disk, or nowhere.

With a cache each block is run once or twice; without one every pass starts at the embeddings, which for l blocks costs
of the order of l^2. Tensors keep the dtype of the model.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Hashable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from excise.errors import ExciseError
from excise.scrubbing.capture import first_tensor

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
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, OSError, ValueError):
        return 2**62  # unknown: let the system refuse


class Cache:
    """Outputs of modules, by a key. Used in a `with` statement, which removes the files of the disk mode.

    `whole`: keep all tensors of an output, not only the hidden states; the others are None then.
    """

    def __init__(self, mode: str, folder: str | os.PathLike[str] | None = None, whole: bool = False) -> None:
        self.mode, self.whole = mode, whole
        self._kept: dict[Hashable, tuple[list[Any], Any]] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="excise-cache-", dir=folder)) if mode == "disk" else None
        self._files: dict[tuple[Hashable, int], Path] = {}

    def write(self, key: Hashable, output: Any) -> None:
        """Keep what a module gave out."""
        hidden = first_tensor(output)
        leaves, shape = tree_flatten(output)
        kept: list[Any] = []
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                kept.append(self._put(key, number, leaf) if self.whole or leaf is hidden else None)
            else:
                kept.append(leaf if isinstance(leaf, (bool, int, float, str)) else None)
        self._kept[key] = kept, shape

    def read(self, key: Hashable, device: torch.device) -> Any:
        """The output again, on a device. A copy: a block may write into its input."""
        kept, shape = self._kept[key]
        leaves = [self._get(leaf, device) if isinstance(leaf, (torch.Tensor, _OnDisk)) else leaf for leaf in kept]
        return tree_unflatten(leaves, shape)

    def drop(self, key: Hashable) -> None:
        """Forget an output."""
        for leaf in self._kept.pop(key, ([], None))[0]:
            if isinstance(leaf, _OnDisk):
                leaf.path.unlink(missing_ok=True)

    def _put(self, key: Hashable, number: int, x: torch.Tensor) -> Any:
        x = x.detach()
        if self._folder is None:
            return x.to("cpu") if self.mode == "ram" else x
        path = self._files.setdefault((key, number), self._folder / f"{len(self._files)}")
        x.cpu().contiguous().view(torch.uint8).reshape(-1).numpy().tofile(path)
        return _OnDisk(path, x.shape, x.dtype)

    @staticmethod
    def _get(kept: Any, device: torch.device) -> torch.Tensor:
        if isinstance(kept, torch.Tensor):
            return kept.to(device, copy=True)
        return torch.from_numpy(np.fromfile(kept.path, np.uint8)).view(kept.dtype).reshape(kept.shape).to(device)

    def __enter__(self) -> Cache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._kept.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class _OnDisk:
    """A tensor in a file."""

    def __init__(self, path: Path, shape: torch.Size, dtype: torch.dtype) -> None:
        self.path, self.shape, self.dtype = path, shape, dtype
