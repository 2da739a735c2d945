"""Encoded labels: class codes, or the dense matrix of columns. Codes stay on the device that they came from."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from excise.concepts.labels import Values
from excise.numerics.arrays import Array, convert, describe_device, host

__all__ = ["Encoded"]


class Encoded:
    """Of n rows and k columns: class codes where one categorical block is all there is, else the dense (n, k) matrix."""

    def __init__(
        self,
        n: int,
        k: int,
        codes: Values | None = None,
        matrix: Values | None = None,
        device_codes: Array | None = None,
        counts: Values | None = None,
    ) -> None:
        self.n, self.k, self.matrix = n, k, matrix
        self._codes, self._device_codes, self._counts = codes, device_codes, counts

    @property
    def has_classes(self) -> bool:
        return self.matrix is None

    @cached_property
    def codes(self) -> Values | None:
        """(n,) class of each row, NumPy; None for a matrix."""
        return host(self._device_codes) if self._device_codes is not None else self._codes

    def codes_like(self, X: Array) -> Array:
        """The same in the library and on the device of X."""
        own = self._device_codes
        return own if own is not None and describe_device(own) == describe_device(X) else convert(self.codes, X)

    @cached_property
    def counts(self) -> Values:
        """(k,) rows of each class."""
        return np.bincount(np.asarray(self.codes), minlength=self.k) if self._counts is None else self._counts

    def dense(self) -> Values:
        if self.matrix is not None:
            return self.matrix
        out = np.zeros((self.n, self.k))
        out[np.arange(self.n), self.codes] = 1.0
        return out

    def rows(self, keep: Values) -> Encoded:
        """Some of the rows."""
        if self.matrix is not None:
            return Encoded(int(keep.sum()), self.k, matrix=self.matrix[keep])
        codes: Any = self.codes
        return Encoded(int(keep.sum()), self.k, codes=codes[keep])
