"""ClassMoments: a mean and a covariance per class, for methods that compare the classes' spreads."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from excise import _files
from excise._array import Array, as_rows, check_features, computable, convert, namespace
from excise._labels import Name, name_order
from excise._statistics import not_finite, of_batch
from excise.concept import Concept, Encoded
from excise.errors import ConceptError, InputError
from excise.moments import Moments, check_weight, flat_labels

__all__ = ["ClassMoments"]


class ClassMoments:
    """Streaming and mergeable like Moments; the concept must be one column of classes.

    >>> import numpy as np
    >>> c = ClassMoments().update(np.array([[0.0], [2.0], [7.0]]), ["a", "a", "b"])
    >>> c.names, c.n.tolist(), c.means.tolist(), c.covs.tolist()
    (('a', 'b'), [2.0, 1.0], [[1.0], [7.0]], [[[1.0]], [[0.0]]])
    """

    def __init__(self, concept: Concept | None = None) -> None:
        self._concept = concept
        self._parts: dict[Any, Moments] = {}  # one per class, by name_order; their own concept is a single class

    def update(self, X: Array, z: Any, sample_weight: Any = None) -> ClassMoments:
        """Add a batch: X (..., d), one class per row. A refused batch changes nothing.

        Raises:
            InputError, ConceptError: as Moments.update.
        """
        X = check_features(X)
        if X.ndim < 2:
            raise InputError(f"X has shape {tuple(X.shape)}: expected (..., d), at least two dimensions")
        rows = as_rows(computable(X))
        if rows.shape[0] == 0:
            return self
        if self.d is not None and X.shape[-1] != self.d:
            raise InputError(f"X has {X.shape[-1]} features, expected {self.d}")
        labels = flat_labels(z, tuple(X.shape[:-1]))
        concept, encoded = (self._concept or Concept.of(labels)).extend(labels)
        if not concept.is_one_categorical:
            raise ConceptError(
                f"ClassMoments needs one column of classes, got a {concept.kind} concept of {concept.k} columns"
            )
        if encoded.n != rows.shape[0]:
            raise ConceptError(f"X has {rows.shape[0]} rows, but there are {encoded.n} labels: pass one label per row")
        weight = check_weight(sample_weight, rows.shape[0])
        parts = dict(self._parts)
        try:
            batches = _by_class(concept, encoded, rows, weight)
        except InputError:  # count rows as the caller does
            raise not_finite(rows) from None
        for name, batch in batches:
            key = name_order(name)
            parts[key] = parts[key].merge(batch) if key in parts else batch
        self._concept, self._parts = concept, parts
        return self

    def merge(self, other: ClassMoments) -> ClassMoments:
        """Moments of both data sets, classes joined by name, as a new object."""
        if None not in (self.d, other.d) and self.d != other.d:
            raise InputError(f"cannot merge ClassMoments of {self.d} and {other.d} features")
        if self._concept is None or other._concept is None:
            concept = self._concept or other._concept
        else:
            concept = self._concept.join(other._concept)
        out = ClassMoments(concept)
        for source in (self, other):
            for key, part in source._parts.items():
                out._parts[key] = out._parts[key].merge(part) if key in out._parts else part
        return out

    def __add__(self, other: ClassMoments) -> ClassMoments:
        return self.merge(other) if isinstance(other, ClassMoments) else NotImplemented

    def _known(self) -> list[Moments]:
        if not self._parts:
            raise InputError("these ClassMoments are empty: call update(X, z)")
        return [self._parts[name_order(name)] for name in self.names]

    @property
    def concept(self) -> Concept:
        if self._concept is None:
            raise InputError("these ClassMoments are empty and were given no concept")
        return self._concept

    @property
    def names(self) -> tuple[Name, ...]:
        """The classes that have rows."""
        return tuple(name for name in self.concept.blocks[0].names if name_order(name) in self._parts)

    @property
    def d(self) -> int | None:
        return next(iter(self._parts.values())).d if self._parts else None

    @property
    def n(self) -> np.ndarray[Any, Any]:
        """(k,) weight of each class."""
        return np.array([part.n for part in self._known()])

    @property
    def rows(self) -> np.ndarray[Any, Any]:
        """(k,) rows of each class with a weight above zero."""
        return np.array([part.rows for part in self._known()])

    @property
    def means(self) -> Array:
        """(k, d) mean of each class."""
        return _stacked([part.mean_x for part in self._known()])

    @property
    def covs(self) -> Array:
        """(k, d, d) population covariance of each class."""
        return _stacked([part.cov_xx for part in self._known()])

    def to_moments(self) -> Moments:
        """The moments of all classes together."""
        out = Moments(self.d, self.concept)
        for part in self._known():
            out = out.merge(part)
        return out

    def to(self, device: Any) -> ClassMoments:
        """The same on another device, as PyTorch tensors ("numpy" for NumPy arrays)."""
        out = ClassMoments(self._concept)
        out._parts = {key: part.to(device) for key, part in self._parts.items()}
        return out

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file that `excise.load` reads."""
        parts = self._known()
        about = {
            "concept": self.concept.to_dict(),
            "names": list(self.names),
            "n": [part.n for part in parts],
            "rows": [part.rows for part in parts],
            "eps": [part.eps_xx for part in parts],
            "roundoff": [part.statistics.roundoff for part in parts],
        }
        arrays = {"mean_x": self.means, "s_xx": _stacked([part.statistics.s_xx for part in parts])}
        _files.write(path, "ClassMoments", arrays, about)

    @staticmethod
    def from_stored(arrays: dict[str, Array], about: dict[str, Any]) -> ClassMoments:
        out = ClassMoments(Concept.from_dict(about["concept"]))
        for i, name in enumerate(tuple(n) if isinstance(n, list) else n for n in about["names"]):
            sums = {"mean_x": arrays["mean_x"][i], "s_xx": arrays["s_xx"][i]}
            sums |= {"mean_z": np.ones(1), "s_xz": np.zeros((sums["mean_x"].shape[0], 1)), "s_zz": np.zeros((1, 1))}
            one = _single(out.concept, name).to_dict()
            stored = {"n": about["n"][i], "rows": about["rows"][i], "eps": about["eps"][i], "concept": one}
            if "roundoff" in about:
                stored["roundoff"] = about["roundoff"][i]
            out._parts[name_order(name)] = Moments.from_stored(sums, stored)
        return out

    def __repr__(self) -> str:
        return f"ClassMoments(classes={len(self._parts)}, n={sum(p.n for p in self._parts.values()):g}, d={self.d})"


def _stacked(arrays: list[Array]) -> Array:
    return namespace(arrays[0]).stack([convert(array, arrays[0]) for array in arrays])


def _single(concept: Concept, name: Name) -> Concept:
    """The concept with one class only: joining such concepts by name gives the whole."""
    stored = concept.to_dict()
    return Concept.from_dict({**stored, "blocks": [{**stored["blocks"][0], "names": [name]}]})


def _by_class(concept: Concept, encoded: Encoded, rows: Array, weight: Any) -> list[tuple[Name, Moments]]:
    out: list[tuple[Name, Moments]] = []
    codes = encoded.codes
    assert codes is not None
    for code, name in enumerate(concept.blocks[0].names):
        keep = np.flatnonzero((codes == code) & (weight > 0 if weight is not None else True))
        if len(keep):
            batch = of_batch(
                rows[convert(keep, rows)],
                Encoded(len(keep), 1, codes=np.zeros(len(keep), dtype=np.int64)),
                None if weight is None else weight[keep],
                track_xx=True,
            )
            out.append((name, Moments.from_statistics(batch, _single(concept, name))))
    return out
