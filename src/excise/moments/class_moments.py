"""ClassMoments: a mean and a covariance per class, for methods that compare the classes' spreads."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from excise import files
from excise.concepts.concept import Concept
from excise.concepts.encoded import Encoded
from excise.concepts.labels import Name, name_order
from excise.errors import ConceptError, InputError
from excise.moments.fingerprints import Fingerprints
from excise.moments.labelled_rows import check_weight, flat_labels, read_labelled_rows
from excise.moments.moments import Moments
from excise.moments.scatter import MatrixScatter
from excise.moments.statistics import Statistics, not_finite, of_batch, stored_n2, stored_rounding
from excise.numerics.arrays import Array, convert, namespace
from excise.numerics.memory import require_memory

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
        self._feature_names: tuple[str, ...] | None = None

    def update(self, X: Any, z: Any, sample_weight: Any = None) -> ClassMoments:
        """Add a batch: X (..., d), one class per row. A refused batch changes nothing.

        Raises:
            InputError, ConceptError: as Moments.update.
        """
        given = read_labelled_rows(X, self.d, self._feature_names)
        rows = given.rows
        if rows.shape[0] == 0:
            return self
        labels = flat_labels(z, given.lead)
        concept, encoded = Concept.learn(labels) if self._concept is None else self._concept.extend(labels)
        return self.update_encoded(rows, concept, encoded, sample_weight, given.names)

    def update_encoded(
        self,
        rows: Array,
        concept: Concept,
        encoded: Encoded,
        sample_weight: Any = None,
        names: tuple[str, ...] | None = None,
    ) -> ClassMoments:
        """`update` with rows (n, d) that were checked and labels that were parsed already."""
        if not concept.is_one_categorical:
            raise ConceptError(
                f"ClassMoments needs one column of classes, got a {concept.kind} concept of {concept.k} columns"
            )
        if encoded.n != rows.shape[0]:
            raise ConceptError(
                f"X has {rows.shape[0]} rows, but there are {encoded.n} labels: pass one label per row",
                code="row-count",
            )
        require_memory(
            8 * concept.k * min(rows.shape[0] + 1, rows.shape[1]) * rows.shape[1],
            f"a covariance for each of {concept.k} classes of {rows.shape[1]} features",
            "use fewer classes, or a method that needs no covariance per class",
        )
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
        self._feature_names = self._feature_names or names
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
        out._feature_names = self._feature_names or other._feature_names
        for source in (self, other):
            for key, part in source._parts.items():
                out._parts[key] = out._parts[key].merge(part) if key in out._parts else part
        return out

    def __add__(self, other: ClassMoments) -> ClassMoments:
        return self.merge(other) if isinstance(other, ClassMoments) else NotImplemented

    def _known(self) -> list[Moments]:
        if not self._parts:
            raise InputError("these ClassMoments are empty: call update(X, z)", code="no-rows")
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

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Names of the columns, where the features came as data frames."""
        return self._feature_names

    @property
    def fingerprints(self) -> Fingerprints | None:
        """As in Moments."""
        total: Fingerprints | None = None
        for part in self._known():
            found = part.fingerprints
            if found is None:
                return None
            total = found if total is None else total + found
        return total

    def to_moments(self) -> Moments:
        """The moments of all classes together."""
        out = Moments(self.d, self.concept)
        for part in self._known():
            out = out.merge(part)
        return Moments.from_statistics(out.statistics, out.concept, self._feature_names)

    def to(self, device: Any) -> ClassMoments:
        """The same on another device, as PyTorch tensors ("numpy" for NumPy arrays)."""
        out = ClassMoments(self._concept)
        out._feature_names = self._feature_names
        out._parts = {key: part.to(device) for key, part in self._parts.items()}
        return out

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file that `excise.load` reads."""
        files.write(path, "ClassMoments", *self.stored())

    def stored(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """What `save` writes: arrays, and a description in plain JSON values. `from_stored` is the way back."""
        parts = self._known()
        about = {
            "concept": self.concept.to_dict(),
            "names": list(self.names),
            "n": [part.n for part in parts],
            "rows": [part.rows for part in parts],
            "eps": [part.eps_xx for part in parts],
            "n2": [part.statistics.n2 for part in parts],
            "fingerprints": [None if (f := part.statistics.fingerprints) is None else f.to_dict() for part in parts],
            "feature_names": None if self._feature_names is None else list(self._feature_names),
        }
        arrays = {"mean_x": self.means, "s_xx": _stacked([part.statistics.s_xx.matrix() for part in parts])}
        arrays["rounding"] = _stacked([part.statistics.rounding for part in parts])
        return arrays, about

    @staticmethod
    def from_stored(arrays: dict[str, Array], about: dict[str, Any]) -> ClassMoments:
        out = ClassMoments(Concept.from_dict(about["concept"]))
        names = about.get("feature_names")
        out._feature_names = None if names is None else tuple(names)
        k = len(about["names"])
        looked = about.get("fingerprints", [None] * k)
        for i, name in enumerate(tuple(n) if isinstance(n, list) else n for n in about["names"]):
            mean, S = arrays["mean_x"][i], arrays["s_xx"][i]
            n, rows, scatter = about["n"][i], about["rows"][i], MatrixScatter(S)
            own: dict[str, Any] = {key: about[key][i] for key in ("n2", "roundoff") if key in about}
            stored = {"rounding": arrays["rounding"][i]} if "rounding" in arrays else {}
            statistics = Statistics(
                n=n,
                rows=rows,
                mean_x=mean,
                mean_z=np.ones(1),
                s_xx=scatter,
                s_xz=np.zeros((mean.shape[0], 1)),
                s_zz=None,
                eps=about["eps"][i],
                n2=stored_n2(own, n, rows),
                rounding=stored_rounding(stored, own, n, scatter.diagonal(), mean),
                fingerprints=None if looked[i] is None else Fingerprints.from_dict(looked[i]),
            )
            out._parts[name_order(name)] = Moments.from_statistics(statistics, _single(out.concept, name))
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
