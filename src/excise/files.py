"""The one file format: float64 arrays as safetensors, with a versioned JSON description. Never pickle.

A file is written beside its target and renamed, so a crash leaves either the old file or the new one.
"""

from __future__ import annotations

import json
import os
import platform
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from excise.errors import FileFormatError
from excise.numerics.arrays import Array, host

__all__ = ["FORMAT", "pack", "read", "remove_leftovers", "replacing", "unpack", "versions", "write"]

FORMAT = 2


def versions() -> dict[str, str]:
    from excise import __version__

    return {"excise": __version__, "numpy": np.__version__, "python": platform.python_version()}


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path in the same folder; renamed onto `path` on success, removed on failure.

    What a killed run left behind is removed first. A symbolic link stays one: the file that it points to is replaced.

    Raises:
        FileFormatError: the folder does not exist.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileFormatError(f"cannot write {path}: the folder {target.parent} does not exist", code="no-folder")
    remove_leftovers(target)
    owner = f"{_host()}-{os.getpid()}"
    handle, name = tempfile.mkstemp(
        dir=target.parent, prefix=f".{target.name}.{owner}.", suffix=f".part{target.suffix}"
    )
    os.close(handle)
    try:
        yield Path(name)
        with open(name, "rb") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)  # mkstemp makes private files
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def remove_leftovers(target: Path) -> None:
    """Temporary files beside `target` whose process, on this machine, is gone."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.{re.escape(_host())}-(\d+)\..*\.part")
    for found in target.parent.iterdir():
        match = pattern.match(found.name)
        if match and not _is_running(int(match.group(1))):
            found.unlink(missing_ok=True)


def _host() -> str:
    return re.sub(r"\W", "", platform.node())[:32] or "host"


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def write(path: str | os.PathLike[str], kind: str, arrays: Mapping[str, Array], about: Mapping[str, Any]) -> None:
    """Save `arrays` and the JSON description `about` as an object of the given `kind`."""
    content = pack(kind, arrays, about)
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def pack(kind: str, arrays: Mapping[str, Array], about: Mapping[str, Any]) -> bytes:
    """The content of such a file."""
    from safetensors.numpy import save

    stored = {name: np.ascontiguousarray(host(array)) for name, array in arrays.items()}
    header = json.dumps({"format": FORMAT, "kind": kind, "versions": versions(), "about": about}, default=_plain)
    return save(stored, metadata={"excise": header})


def unpack(content: bytes, what: str = "the bytes") -> tuple[str, dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """Kind, arrays and description of what `pack` made.

    Raises:
        FileFormatError: it is truncated, not from excise, or from a newer excise.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(content)
        size = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + size]).get("__metadata__", {})
    except (SafetensorError, ValueError, RecursionError) as error:
        raise FileFormatError(
            f"{what} are not a whole safetensors file ({error})", code="not-a-file-of-excise"
        ) from None
    return _described(metadata, what, arrays)


def _plain(value: Any) -> Any:
    """NumPy scalars as JSON values."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be saved")


def read(path: str | os.PathLike[str]) -> tuple[str, dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """Kind, arrays and description of a file that `write` made.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: it is truncated, not from excise, or from a newer excise.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise FileFormatError(
            f"{path} is not a whole safetensors file ({error}): was it cut off in transfer?",
            code="not-a-file-of-excise",
        ) from None
    return _described(metadata, str(path), arrays)


def _described(
    metadata: Mapping[str, str], path: str, arrays: dict[str, np.ndarray[Any, Any]]
) -> tuple[str, dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    try:
        header = json.loads(metadata["excise"])
        version, kind, about = header["format"], header["kind"], header["about"]
    except (KeyError, ValueError, TypeError, RecursionError):
        raise FileFormatError(
            f"{path} is a safetensors file, but excise did not write it", code="not-a-file-of-excise"
        ) from None
    if not isinstance(version, int):
        raise FileFormatError(f"{path} has no format number, got {version!r}: excise did not write it")
    if version > FORMAT:
        raise FileFormatError(
            f"{path} has format {version} (excise {header.get('versions', {}).get('excise')}); this excise reads up to "
            f"{FORMAT}: upgrade excise"
        )
    return kind, arrays, about
