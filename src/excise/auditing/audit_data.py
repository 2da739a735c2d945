"""What is audited: rows before and after, with their labels, read in batches so that a memory map stays on disk."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from excise.concepts.concept import Concept
from excise.concepts.encoded import Encoded
from excise.errors import ConceptError, InputError
from excise.moments.labelled_rows import flat_labels, refuse_features_as_labels
from excise.numerics.arrays import as_rows, dtype_name, host, is_numpy, to_compute_array
from excise.numerics.frames import read_features
from excise.numerics.precision import unit_roundoff

__all__ = ["AuditData", "Target", "erased_rows", "read_audit_data", "take", "unit_rows"]

BATCH_BYTES = 2**25
HELD_BYTES = 2**29  # of erased rows that are kept


def take(labels: Any, index: Any) -> Any:
    """Some of the labels, whatever they are kept in."""
    if isinstance(labels, Mapping):
        return {name: take(column, index) for name, column in labels.items()}
    if hasattr(labels, "iloc"):
        return labels.iloc[index]
    if isinstance(labels, (list, tuple)):
        return [labels[i] for i in index]
    if hasattr(labels, "take") and not hasattr(labels, "dtype"):  # pyarrow
        return labels.take(index)
    return labels[index]


@dataclass(frozen=True)
class Target:
    """The concept as the probes see it: one column of classes (`codes`), or numbers (`values`): several columns of
    classes are taken as their 0/1 columns, for that is what is erased of them."""

    concept: Concept
    encoded: Encoded
    codes: Any  # (n,) class of each row, or None
    names: list[Any]  # of the classes, or of the columns

    @property
    def values(self) -> Any:
        """(n, k) columns of the encoding."""
        return self.encoded.dense()

    @property
    def k(self) -> int:
        return len(self.names)


def _target(z: Any, n: int, d: int, kind: Any) -> Target:
    concept, encoded = Concept.learn(z, kind=kind)
    refuse_features_as_labels(concept, encoded, d)
    if encoded.n != n:
        raise ConceptError(f"X has {n} rows, but there are {encoded.n} labels: pass one label per row")
    names = [list(name) if isinstance(name, tuple) else name for name in concept.names]
    return Target(concept, encoded, encoded.codes, names)


def erased_rows(eraser: Any, X: Any, z: Any) -> Any:
    """The rows after an eraser of any kind: with labels where it takes them."""
    return eraser(X, z) if needs_labels(eraser) else eraser(X)


def unit_rows(rows: Any) -> Any:
    """Rows divided by their lengths, in their own dtype; zero rows stay."""
    wide = np.asarray(rows, dtype=np.float64)
    largest = np.abs(wide).max(axis=1, keepdims=True)
    wide = wide / np.where(largest > 0, largest, 1.0)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return (wide / np.where(lengths > 0, lengths, 1.0)).astype(rows.dtype)


def needs_labels(eraser: Any) -> bool:
    """Whether it must be called with labels; a plain function of X need not say."""
    return bool(getattr(eraser, "needs_labels", False))


def _release(array: Any) -> None:
    """Let go of the pages of a memory map that were read: they count as ours until then."""
    while array is not None and not (isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap)):
        array = getattr(array, "base", None)
    # Read-only maps alone: of a copy-on-write one this would throw the caller's changes away.
    if array is not None and array.mode == "r" and hasattr(mmap, "MADV_DONTNEED"):
        array.base.madvise(mmap.MADV_DONTNEED)


def _copied(source: Any, index: Any) -> Any:
    rows = np.array(source[index])
    _release(source)
    return rows


@dataclass(frozen=True)
class AuditData:
    """Rows before (`X`) and after (an eraser, or `X_erased`), and labels.

    `before(index)` and `after(index)` give float64 rows. Where the erased rows fit into memory they were made once, when
    the data were read; else every look at them applies the eraser.
    """

    X: Any  # (n, d) NumPy, any float dtype, may be a memory map
    z: Any
    target: Target
    eraser: Any
    X_erased: Any
    dtype: str
    eps: float  # of the digits that the audited rows hold
    feature_names: tuple[str, ...] | None = None
    unit: bool = False  # rows are judged in unit length, before and after

    def name_of(self, feature: int) -> str:
        """A feature as people call it."""
        return self.feature_names[feature] if self.feature_names is not None else f"feature {feature}"

    @property
    def n(self) -> int:
        return int(self.X.shape[0])

    @property
    def d(self) -> int:
        return int(self.X.shape[1])

    @property
    def edited(self) -> bool:
        return self.eraser is not None or self.X_erased is not None

    @property
    def needs_labels(self) -> bool:
        return needs_labels(self.eraser)

    def before(self, index: Any) -> Any:
        return np.asarray(self.raw_before(index), dtype=np.float64)

    def raw_before(self, index: Any) -> Any:
        """Rows before, in the dtype that they came in."""
        return self._shown(_copied(self.X, index))

    def raw_after(self, index: Any) -> Any:
        """Rows after, in the dtype that they are kept in."""
        if self.X_erased is not None or self.eraser is None:
            return self._shown(_copied(self.X if self.X_erased is None else self.X_erased, index))
        where = np.arange(self.n)[index] if isinstance(index, slice) else index
        return self._shown(self._erased(self.eraser, _copied(self.X, index), where))

    def _erased(self, eraser: Any, rows: Any, where: Any) -> Any:
        return np.asarray(eraser(rows, take(self.z, where)) if needs_labels(eraser) else eraser(rows))

    def _shown(self, rows: Any) -> Any:
        return unit_rows(rows) if self.unit else rows

    def after(self, index: Any) -> Any:
        return np.asarray(self.raw_after(index), dtype=np.float64)

    def batches(self, width: int = 1) -> Iterator[slice]:
        """Slices over all rows, small enough that `width` float64 copies of one fit in a few tens of megabytes."""
        rows = max(256, BATCH_BYTES // (8 * self.d * width))
        for begin in range(0, self.n, rows):
            yield slice(begin, min(begin + rows, self.n))

    def truth(self, index: Any) -> Any:
        """What a probe predicts for these rows: class codes (n,), or numbers (n, k)."""
        return self.target.codes[index] if self.target.codes is not None else self.target.values[index]

    def erased_by(self, eraser: Any, index: Any) -> Any:
        """These rows after another eraser than the audited one, float64."""
        return np.asarray(self._shown(self._erased(eraser, np.array(self.X[index]), index)), dtype=np.float64)

    def labels(self, index: Any) -> Any:
        """What Moments take for these rows: class codes, or columns."""
        if self.target.encoded.codes is not None:
            return self.target.encoded.codes[index]
        assert self.target.encoded.matrix is not None
        return self.target.encoded.matrix[index]


def _rows(values: Any, what: str) -> Any:
    if values.ndim < 2 or values.shape[-1] == 0:
        raise InputError(f"{what} has shape {tuple(values.shape)}: expected (..., d), at least two dimensions")
    return host(as_rows(to_compute_array(values)))


def read_audit_data(X: Any, z: Any, eraser: Any, X_erased: Any, kind: Any, normalize: bool = False) -> AuditData:
    """Check that everything fits together, before any long work.

    Raises:
        InputError: shapes that do not match, or both an eraser and erased rows.
        ConceptError: labels that do not match, or of one class only.
    """
    if eraser is not None and X_erased is not None:
        raise InputError("pass eraser= or X_erased=, not both: they would describe two different results")
    if eraser is not None and not callable(eraser):
        raise InputError(f"eraser must be callable (excise.fit, excise.load), got {type(eraser).__name__}")
    given = read_features(X, names=getattr(eraser, "feature_names", None))
    values = given.values
    lead = tuple(values.shape[:-1])
    rows, dtype = _rows(values, "X"), dtype_name(values)
    after = None
    if X_erased is not None:
        erased = read_features(X_erased, "X_erased", names=given.names).values
        after, dtype = _rows(erased, "X_erased"), dtype_name(erased)
        if after.shape != rows.shape:
            raise InputError(f"X_erased has shape {after.shape}, X has {rows.shape}: they must be the same rows")
    if eraser is not None and getattr(eraser, "d", rows.shape[1]) != rows.shape[1]:
        raise InputError(f"X has {rows.shape[1]} features, the eraser was fitted on {eraser.d}", code="feature-count")
    if len(rows) < 2:
        raise InputError(f"X has {len(rows)} rows: at least two are needed")
    labels = flat_labels(z, lead)
    target = _target(labels, len(rows), rows.shape[1], kind)
    if target.codes is None and not target.values.std(axis=0).any():
        raise ConceptError(f"concept is constant over all {len(rows)} rows: there is nothing to look for")
    if target.codes is not None and len(np.unique(target.codes)) < 2:
        raise ConceptError(
            f"concept has one class only ({target.names[0]!r}, {len(rows)} rows): there is nothing to look for; pass labels "
            f"with at least two classes"
        )
    if eraser is not None and not is_numpy(values):  # in the caller's library, whose dtypes NumPy may not have
        after = host(as_rows(to_compute_array(erased_rows(eraser, values, z))))
    data = AuditData(rows, labels, target, eraser, after, dtype, 0.0, given.names, normalize)
    if eraser is not None and after is None:
        if rows.nbytes <= HELD_BYTES:
            data = replace(data, X_erased=data._erased(eraser, rows, np.arange(len(rows))))
        # The result may have more digits than what went in.
        data = replace(data, dtype=str(data.raw_after(slice(0, 1)).dtype))
    head = data.raw_after(slice(0, min(len(rows), 1024)))
    if head.shape[1:] != rows.shape[1:]:
        raise InputError(f"the eraser gives {head.shape[1:]} features for {rows.shape[1:]}: the same number is needed")
    # Rows that nobody edited were not rounded by an edit: what they show is there.
    eps = unit_roundoff(head, data.dtype) if data.edited else unit_roundoff(head, "float64")
    return replace(data, eps=eps)
