"""Lists of floats straight from the pages of a Parquet file, where every list has the same length and nothing is missing.

Arrow decodes two levels per number to find out where lists begin and what is null: most of the time that reading such a
column takes. Here the levels are compared with what they must be, page by page, and the numbers are taken as they lie.
Whatever is not of this plain kind raises NotPlain, and the caller reads it through Arrow instead: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.data.mapped import MappedFile
from excise.data.parquet_encoding import CompactReader, NotPlain, unpack_runs

__all__ = ["ListPages", "NotPlain", "PageRows", "list_pages"]

RELEASE = 2**24  # bytes of the file after which their pages are given back
MOST_PAGE = 2**28  # bytes of a page, unpacked
MOST_NUMBERS = 2**24  # of a page; pyarrow writes a quarter of a million
REMEMBERED = 4096  # level bytes that were found to be as they must be
DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3
PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY = 0, 2, 3, 8
TYPES: dict[str, np.dtype[Any]] = {"FLOAT": np.dtype("<f4"), "DOUBLE": np.dtype("<f8")}
CODECS = {"UNCOMPRESSED": None, "SNAPPY": "snappy", "ZSTD": "zstd"}  # whose true size can be held against the header

Values = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Page:
    kind: int
    count: int  # numbers, nulls counted
    encoding: int
    repetitions: bytes
    definitions: bytes
    body: memoryview  # the numbers, or codes of a dictionary


class ListPages:
    """The numbers of one list column of an open Parquet file."""

    def __init__(self, metadata: Any, leaf: int, d: int, definition: int) -> None:
        first = metadata.row_group(0).column(leaf)
        self.metadata, self.leaf, self.d, self.definition = metadata, leaf, d, definition
        self.dtype = TYPES[first.physical_type]
        self._known: dict[tuple[int, int, bytes, bytes], bool] = {}

    def values(self, file: MappedFile, group: int) -> Iterator[Values]:
        """All numbers of a row group in order, in pieces; a piece is valid until the next.

        Raises:
            NotPlain: it must be read otherwise. Pieces that came before are right.
        """
        try:
            yield from self._values(file, group)
        except (IndexError, KeyError, ValueError, OverflowError, OSError):  # damaged: Arrow has the word
            raise NotPlain from None

    def _values(self, file: MappedFile, group: int) -> Iterator[Values]:
        rows = self.metadata.row_group(group).num_rows
        dictionary: Values | None = None
        seen = 0
        for page in self._pages(file, group):
            if page.kind == DICTIONARY_PAGE:
                dictionary = np.frombuffer(page.body, self.dtype, page.count)
                continue
            self._check_levels(page, seen % self.d)
            if page.encoding == PLAIN:
                yield np.frombuffer(page.body, self.dtype, page.count)
            elif page.encoding in (PLAIN_DICTIONARY, RLE_DICTIONARY) and dictionary is not None:
                if page.body[0] > 32:
                    raise NotPlain
                codes = unpack_runs(page.body[1:], page.body[0], page.count)
                yield dictionary[codes]
            else:
                raise NotPlain
            seen += page.count
        if seen != rows * self.d:
            raise NotPlain

    def _check_levels(self, page: _Page, phase: int) -> None:
        """Every list has d entries, and no list or entry is missing; `phase` entries of the first came before."""
        key = (phase, page.count, page.repetitions, page.definitions)
        if key in self._known:
            return
        repetitions = unpack_runs(memoryview(page.repetitions), 1, page.count)
        expected = (np.arange(phase, phase + page.count) % self.d) != 0
        if not np.array_equal(repetitions, expected):
            raise NotPlain
        if self.definition:
            width = int(self.definition).bit_length()
            if (unpack_runs(memoryview(page.definitions), width, page.count) != self.definition).any():
                raise NotPlain
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[key] = True

    def _pages(self, file: MappedFile, group: int) -> Iterator[_Page]:
        column = self.metadata.row_group(group).column(self.leaf)
        begin = column.data_page_offset
        if column.has_dictionary_page and column.dictionary_page_offset is not None:
            begin = min(begin, column.dictionary_page_offset) if column.dictionary_page_offset > 0 else begin
        codec = _codec(column.compression)
        end = begin + column.total_compressed_size
        if not 0 <= begin <= end <= len(file):
            raise NotPlain
        data, at, released, seen = memoryview(file.map), begin, begin, 0
        while seen < column.num_values:
            reader = CompactReader(data, at)
            header = reader.struct()
            kind, unpacked, packed = header[1], header[2], header[3]
            at = reader.at + packed
            if not 0 <= packed <= MOST_PAGE or not 0 <= unpacked <= MOST_PAGE or at > end:
                raise NotPlain
            page = _read_page(kind, header, data[reader.at : at], unpacked, codec, bool(self.definition))
            most = MOST_NUMBERS if kind == DICTIONARY_PAGE else min(MOST_NUMBERS, column.num_values - seen)
            if not 1 <= page.count <= most:
                raise NotPlain
            yield page
            seen += page.count if kind != DICTIONARY_PAGE else 0
            if at - released > RELEASE:
                file.release_range(released, at)
                released = at


class PageRows:
    """The rows of a list column one after the other, from row `begin` on."""

    def __init__(self, pages: ListPages, file: MappedFile, begin: int) -> None:
        self._pieces = _from_row(pages, file, begin)
        self._left: Values = np.empty(0, pages.dtype)

    def fill(self, out: Values) -> None:
        """Put the next rows into `out` (n, d), which lies in one piece.

        Raises:
            NotPlain: they must be read otherwise.
        """
        flat, at = out.reshape(-1), 0
        while at < len(flat):
            if not len(self._left):
                piece = next(self._pieces, None)
                if piece is None:
                    raise NotPlain
                self._left = piece
            count = min(len(self._left), len(flat) - at)
            flat[at : at + count] = self._left[:count]
            self._left, at = self._left[count:], at + count


def _from_row(pages: ListPages, file: MappedFile, begin: int) -> Iterator[Values]:
    before = begin * pages.d  # numbers that are passed over
    for group in range(pages.metadata.num_row_groups):
        size = pages.metadata.row_group(group).num_rows * pages.d
        if before >= size:
            before -= size
            continue
        for piece in pages.values(file, group):
            if before < len(piece):
                yield piece[before:]
            before = max(0, before - len(piece))


def _codec(name: str) -> Any:
    if name not in CODECS:
        raise NotPlain
    if CODECS[name] is None:
        return None
    import pyarrow as pa

    return pa.Codec(CODECS[name])


def _read_page(kind: int, header: dict[int, Any], data: memoryview, size: int, codec: Any, nullable: bool) -> _Page:
    if kind == DICTIONARY_PAGE:
        about = header[7]
        if about[2] not in (PLAIN, PLAIN_DICTIONARY):
            raise NotPlain
        return _Page(kind, about[1], PLAIN, b"", b"", _unpacked(data, size, codec))
    if kind == DATA_PAGE:
        about = header[5]
        if about[4] != RLE or (nullable and about[3] != RLE):
            raise NotPlain
        body = _unpacked(data, size, codec)
        repetitions, body = _prefixed(body)
        definitions, body = _prefixed(body) if nullable else (b"", body)
        return _Page(kind, about[1], about[2], repetitions, definitions, body)
    if kind == DATA_PAGE_V2:
        about = header[8]
        count, nulls, encoding, defined, repeated = about[1], about[2], about[4], about[5], about[6]
        if nulls or min(defined, repeated) < 0 or defined + repeated > len(data):
            raise NotPlain
        levels, rest = bytes(data[: defined + repeated]), data[defined + repeated :]
        packed = codec if about.get(7, True) else None
        if size < defined + repeated:
            raise NotPlain
        body = _unpacked(rest, size - defined - repeated, packed)
        return _Page(kind, count, encoding, levels[:repeated], levels[repeated:], body)
    raise NotPlain


def _prefixed(body: memoryview) -> tuple[bytes, memoryview]:
    size = int.from_bytes(body[:4], "little")
    if size > len(body) - 4:
        raise NotPlain
    return bytes(body[4 : 4 + size]), body[4 + size :]


def _unpacked(data: memoryview, size: int, codec: Any) -> memoryview:
    if codec is None:
        return data
    if size == 0:
        return memoryview(b"")
    if codec.name == "snappy" and CompactReader(data, 0).varint() != size:
        raise NotPlain
    return memoryview(codec.decompress(data, decompressed_size=size))


def list_pages(metadata: Any, schema: Any, column: str, d: int) -> ListPages | None:
    """A reader of a list column, where all of its row groups look plain; else None.

    Args:
        metadata: pyarrow's FileMetaData.
        schema: pyarrow's ParquetSchema, of the leaves.
        column: its name.
        d: numbers in a list.
    """
    leaves = [j for j in range(len(schema)) if schema.column(j).path.split(".")[0] == column]
    if len(leaves) != 1 or not metadata.num_row_groups or d < 2:
        return None
    leaf = schema.column(leaves[0])
    if leaf.max_repetition_level != 1 or leaf.physical_type not in TYPES or leaf.path.split(".")[0] != column:
        return None
    for g in range(metadata.num_row_groups):
        chunk = metadata.row_group(g).column(leaves[0])
        if chunk.compression not in CODECS or "BYTE_STREAM_SPLIT" in chunk.encodings:
            return None
        if chunk.num_values != metadata.row_group(g).num_rows * d:
            return None
    return ListPages(metadata, leaves[0], d, leaf.max_definition_level)
