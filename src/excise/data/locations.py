"""Where data lies: a file, a glob or a folder, on this machine or behind an fsspec URL -> the files to read, in order."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from excise.errors import FileFormatError, InputError, missing_extra

__all__ = ["HUGGING_FACE", "SUFFIXES", "Location", "find_files", "is_collection", "is_url", "local_path", "open_url"]

SUFFIXES = (".npy", ".npz", ".safetensors", ".parquet", ".arrow", ".feather", ".csv")
HUGGING_FACE = "state.json"  # what `datasets` writes beside the files of a data set
SAMPLE = 2**16  # bytes at each place of a file that its fingerprint looks at


@dataclass(frozen=True)
class Location:
    """One file."""

    path: str  # on this machine, or a URL
    relative: str  # its name under the folder or glob that it was found by, with forward slashes

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.relative).suffix.lower()

    @property
    def is_local(self) -> bool:
        return not is_url(self.path)

    @property
    def size(self) -> int:
        if self.is_local:
            return os.stat(self.path).st_size
        system, path = open_url(self.path)
        return int(system.info(path)["size"])

    def open(self) -> BinaryIO:
        """The bytes, from the start, with `seek`."""
        if self.is_local:
            return open(self.path, "rb")
        system, path = open_url(self.path)
        return system.open(path, "rb")  # type: ignore[no-any-return]

    def fingerprint(self) -> dict[str, Any]:
        """Size, time of the last change, and a hash of a few samples of the bytes: another file differs in one of them."""
        size = self.size
        with self.open() as file:
            digest = hashlib.blake2b(digest_size=16)
            for at in sorted({0, size // 3, 2 * size // 3, max(0, size - SAMPLE)}):
                file.seek(at)
                digest.update(file.read(SAMPLE))
        changed = str(os.stat(self.path).st_mtime_ns) if self.is_local else _version(self.path)
        return {"path": self.path, "size": size, "changed": changed, "sample": digest.hexdigest()}

    def __str__(self) -> str:
        return self.path


def is_url(path: str | os.PathLike[str]) -> bool:
    return "://" in os.fspath(path)


def open_url(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it.

    Raises:
        ExciseError: fsspec, or the package for this kind of storage, is not installed.
        InputError: no such kind of storage.
    """
    try:
        import fsspec
    except ModuleNotFoundError:
        raise missing_extra(f"reading {url} needs fsspec", "data") from None
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise InputError(f"cannot open {url}: {error}", code="storage") from None
    except ValueError as error:
        raise InputError(f"cannot open {url}: {error}", code="storage") from None
    return system, path


def _version(url: str) -> str:
    system, path = open_url(url)
    return str(system.ukey(path))


def local_path(data: str | os.PathLike[str]) -> str:
    """The path of a file: URL as a path on this machine; anything else as it is."""
    text = os.fspath(data)
    return text.removeprefix("file://") if text.startswith("file://") else text


def is_collection(data: str | os.PathLike[str]) -> bool:
    """Whether this is a folder or a glob rather than one file."""
    text = local_path(data)
    if not is_url(text):
        return os.path.isdir(text) or (glob.has_magic(text) and not os.path.exists(text))
    system, path = open_url(text)
    return bool(system.isdir(path)) or glob.has_magic(path)


def find_files(data: str | os.PathLike[str]) -> list[Location]:
    """The files of `data`, sorted by name; all of one format.

    A folder is searched with its subfolders; names that begin with a dot or an underscore are left out. In a folder that
    Hugging Face `datasets` wrote, the files come in the order of its own list.

    Raises:
        FileNotFoundError: there is nothing.
        InputError: files of several formats, of none that excise reads, or a data set of several splits.
    """
    text = local_path(data)
    found = _find_local(text) if not is_url(text) else _find_remote(text)
    return _one_format(text, found)


def _find_local(text: str) -> list[Location]:
    path = Path(text)
    if path.is_file():
        return [Location(text, path.name)]
    if path.is_dir():
        names = [p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()]
        return _in_folder(text, names, lambda name: (path / name).read_bytes(), lambda name: str(path / name))
    if glob.has_magic(text):
        names = sorted(name for name in glob.glob(text, recursive=True) if os.path.isfile(name))
        if names:
            root = _fixed_part(text)
            return [Location(name, Path(name).relative_to(root).as_posix()) for name in names]
        raise FileNotFoundError(f"no file matches {text}")
    raise FileNotFoundError(f"no such file: {text}")


def _find_remote(text: str) -> list[Location]:
    system, path = open_url(text)
    try:
        if glob.has_magic(path):
            names = sorted(name for name in system.glob(path) if system.isfile(name))
            root = _fixed_part(path)
            found = [Location(system.unstrip_protocol(n), str(PurePosixPath(n).relative_to(root))) for n in names]
            if not found:
                raise FileNotFoundError(f"no file matches {text}")
            return found
        if system.isfile(path):
            return [Location(text, PurePosixPath(path).name)]
        if system.isdir(path):
            names = [str(PurePosixPath(n).relative_to(path)) for n in system.find(path)]
            return _in_folder(
                text,
                names,
                lambda name: system.cat_file(f"{path}/{name}"),
                lambda name: system.unstrip_protocol(f"{path}/{name}"),
            )
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever a storage raises: refused logins, lost connections
        raise InputError(f"cannot read {text}: {type(error).__name__}: {error}", code="storage") from None
    raise FileNotFoundError(f"no such file: {text}")


def _fixed_part(pattern: str) -> str:
    """The folder above the first part of a glob that has a star in it."""
    parts = PurePosixPath(pattern).parts
    first = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return str(PurePosixPath(*parts[:first])) if first else "."


def _in_folder(folder: str, names: Sequence[str], read: Any, full: Any) -> list[Location]:
    if "dataset_dict.json" in names:
        splits = sorted({PurePosixPath(name).parts[0] for name in names if len(PurePosixPath(name).parts) > 1})
        raise InputError(
            f"{folder} is a data set of several splits ({', '.join(splits)}): pass one of them, e.g. "
            f"{folder}/{splits[0] if splits else 'train'}",
            code="several-splits",
        )
    if HUGGING_FACE in names and "dataset_info.json" in names:
        return [Location(full(name), name) for name in _listed(folder, read(HUGGING_FACE), set(names))]
    visible = [name for name in names if not any(part[0] in "._" for part in PurePosixPath(name).parts)]
    chosen = sorted(name for name in visible if PurePosixPath(name).suffix.lower() in SUFFIXES)
    if not chosen:
        raise FileNotFoundError(f"{folder} holds no file that ends in {', '.join(SUFFIXES)}")
    return [Location(full(name), name) for name in chosen]


def _listed(folder: str, state: bytes, present: set[str]) -> list[str]:
    """The files of a Hugging Face data set, in their order. Only files of the folder itself: the list is not trusted."""
    try:
        names = [entry["filename"] for entry in json.loads(state)["_data_files"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FileFormatError(f"{folder}/{HUGGING_FACE} is not what `datasets` writes") from None
    for name in names:
        if not isinstance(name, str) or name not in present or PurePosixPath(name).name != name:
            raise FileFormatError(f"{folder}/{HUGGING_FACE} lists {name!r}, which is not a file of that folder")
    return names


def _one_format(text: str, found: list[Location]) -> list[Location]:
    suffixes = sorted({location.suffix for location in found})
    unknown = [location for location in found if location.suffix not in SUFFIXES]
    if unknown:
        raise InputError(f"{unknown[0]}: expected a file that ends in {', '.join(SUFFIXES)}", code="file-format")
    if len(suffixes) > 1:
        raise InputError(
            f"{text} holds files of several formats ({', '.join(suffixes)}): choose one, e.g. "
            f"{text.rstrip('/')}/*{suffixes[0]}",
            code="file-format",
        )
    return found
