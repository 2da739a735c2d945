"""Where results go: files that appear when they are whole, on this machine or behind an fsspec URL."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from excise.data.locations import is_url, local_path, open_url
from excise.errors import ExciseError
from excise.files import replacing

__all__ = ["check_folder", "exists", "inside", "make_folder", "read_text", "remove", "write_text", "writing"]


def exists(path: str) -> bool:
    if not is_url(path):
        return os.path.lexists(path)
    system, inner = open_url(path)
    return bool(system.exists(inner))


def inside(folder: str, name: str) -> str:
    """The path of a file in a folder.

    Raises:
        ExciseError: the name leads out of the folder.
    """
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or PurePosixPath(name).is_absolute() or "\\" in name or "\0" in name:
        raise ExciseError(f"refusing to write {name!r}: it leads out of {folder}", code="outside")
    return f"{folder.rstrip('/')}/{name}" if is_url(folder) else str(Path(folder, *parts))


def make_folder(path: str) -> None:
    if is_url(path):
        system, inner = open_url(path)
        system.makedirs(inner, exist_ok=True)
    else:
        Path(path).mkdir(parents=True, exist_ok=True)


def check_folder(path: str) -> None:
    """
    Raises:
        ExciseError: the folder that is to hold the file does not exist.
    """
    if not is_url(path) and not Path(os.path.realpath(path)).parent.is_dir():
        raise ExciseError(f"cannot write {path}: the folder {Path(path).parent} does not exist", code="no-folder")


@contextmanager
def writing(path: str) -> Iterator[Path]:
    """A local path to write to; it becomes `path` when all went well, and is removed otherwise.

    What goes behind a URL is written to this machine first and sent in one piece.
    """
    path = local_path(path)
    if not is_url(path):
        with replacing(path) as temporary:
            yield temporary
        return
    system, inner = open_url(path)
    with tempfile.TemporaryDirectory(prefix="excise-") as folder:
        temporary = Path(folder, PurePosixPath(inner).name)
        yield temporary
        system.put_file(str(temporary), inner)


def read_text(path: str) -> str:
    if not is_url(path):
        return Path(path).read_text(encoding="utf-8")
    system, inner = open_url(path)
    return str(system.cat_file(inner).decode("utf-8"))


def write_text(path: str, text: str) -> None:
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove(path: str) -> None:
    if not is_url(path):
        Path(path).unlink(missing_ok=True)
        return
    system, inner = open_url(path)
    if system.exists(inner):
        system.rm_file(inner)
