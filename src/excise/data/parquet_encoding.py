"""How Parquet writes page headers (Thrift's compact protocol) and levels (runs of bits). Every read is within the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["CompactReader", "NotPlain", "unpack_runs"]

Values = np.ndarray[Any, Any]


class NotPlain(Exception):
    """This column, or a page of it, is not lists of one length written plainly: read it through Arrow."""


class CompactReader:
    """The compact protocol of Thrift, as far as page headers use it."""

    def __init__(self, data: memoryview, at: int) -> None:
        self.data, self.at = data, at

    def varint(self) -> int:
        out = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            out |= (byte & 127) << shift
            if byte < 128:
                return out
            shift += 7
            if shift > 63:
                raise NotPlain

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Fields by number: numbers, booleans and structs; everything else is passed over."""
        out: dict[int, Any] = {}
        field = 0
        if depth > 4:
            raise NotPlain
        while True:
            head = self.data[self.at]
            self.at += 1
            if head == 0:
                return out
            kind, delta = head & 15, head >> 4
            field = field + delta if delta else self._zigzag()
            if kind in (1, 2):
                out[field] = kind == 1
            elif kind in (4, 5, 6):
                out[field] = self._zigzag()
            elif kind == 8:
                size = self.varint()
                self.at += size
            elif kind == 12:
                out[field] = self.struct(depth + 1)
            else:
                raise NotPlain

    def _zigzag(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)


def unpack_runs(data: memoryview, width: int, count: int) -> Values:
    """`count` numbers of `width` bits from runs of repeated and of bit-packed ones (Parquet's RLE encoding)."""
    out = np.empty(count, dtype=np.int64)
    reader, filled = CompactReader(data, 0), 0
    size = (width + 7) // 8
    powers = 1 << np.arange(width, dtype=np.int64)
    while filled < count:
        head = reader.varint()
        if head & 1:
            groups = head >> 1
            packed = np.frombuffer(data, np.uint8, groups * width, reader.at)
            reader.at += groups * width
            bits = np.unpackbits(packed, bitorder="little").reshape(-1, width)
            take = min(count - filled, groups * 8)
            out[filled : filled + take] = bits[:take] @ powers if width else 0
        else:
            take = min(count - filled, head >> 1)
            out[filled : filled + take] = int.from_bytes(data[reader.at : reader.at + size], "little")
            reader.at += size
        if take == 0:
            raise NotPlain
        filled += take
    return out
