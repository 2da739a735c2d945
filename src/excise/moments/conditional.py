"""ConditionalMoments: what must be known of (X, z) within each class of y to erase z given y.

With columns 1[y = c] (z - E[z | y = c]) for every class c, Cov(X, columns) holds the covariances within the classes.
Sums per class of y are enough for it, so it streams and merges like Moments.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from excise.concepts.concept import Block, Concept
from excise.concepts.encoded import Encoded
from excise.concepts.labels import Name, name_order
from excise.errors import ConceptError, InputError, warn
from excise.moments.labelled_rows import check_weight, flat_labels, read_labelled_rows
from excise.moments.moments import Moments
from excise.moments.statistics import class_covariance, spread_columns
from excise.numerics.arrays import Array, convert, host, namespace

__all__ = ["ConditionalMoments", "conditional_columns"]


class ConditionalMoments:
    """Streaming and mergeable like Moments; X (..., d), a concept z of any kind, and classes y.

    >>> import numpy as np
    >>> X = np.array([[0.0], [2.0], [10.0], [16.0]])
    >>> c = ConditionalMoments().update(X, ["a", "b", "a", "b"], ["no", "no", "yes", "yes"])
    >>> c.to_moments().cov_xz.tolist()  # of the columns (no, a), (no, b), (yes, a), (yes, b)
    [[-0.25, 0.25, -0.75, 0.75]]
    """

    def __init__(self, concept: Concept | None = None) -> None:
        self._whole = Moments(concept=concept)
        self._condition: Concept | None = None
        self._parts: dict[Any, Moments] = {}  # by name_order of the class of y; no d x d covariances

    def update(self, X: Any, z: Any, y: Any, sample_weight: Any = None) -> ConditionalMoments:
        """Add a batch. A refused batch changes nothing.

        Raises:
            InputError, ConceptError: as Moments.update; y must be one class per row.
        """
        given = read_labelled_rows(X, self.d, self._whole.feature_names)
        n = given.rows.shape[0]
        if n == 0:
            return self
        labels = flat_labels(z, given.lead)
        known = self._whole._concept
        concept, encoded = Concept.learn(labels) if known is None else known.extend(labels)
        condition, codes = Concept.learn_classes(flat_labels(y, given.lead), "condition_on", n, self._condition)
        weight = check_weight(sample_weight, n)
        whole = self._whole.merge(
            Moments(concept=concept).update_encoded(given.rows, concept, encoded, weight, given.names)
        )
        parts = dict(self._parts)
        for code, name in enumerate(condition.blocks[0].names):
            keep = np.flatnonzero((codes == code) & (weight > 0 if weight is not None else True))
            if len(keep):
                batch = Moments(track_xx=False).update_encoded(
                    given.rows[convert(keep, given.rows)],
                    concept,
                    encoded.rows(np.isin(np.arange(n), keep)),
                    None if weight is None else weight[keep],
                    given.names,
                    look=False,
                )
                key = name_order(name)
                parts[key] = parts[key].merge(batch) if key in parts else batch
        self._whole, self._condition, self._parts = whole, condition, parts
        return self

    def merge(self, other: ConditionalMoments) -> ConditionalMoments:
        """Moments of both data sets, classes joined by name, as a new object."""
        out = ConditionalMoments()
        out._whole = self._whole.merge(other._whole)
        if self._condition is None or other._condition is None:
            out._condition = self._condition or other._condition
        else:
            out._condition = self._condition.join(other._condition)
        for source in (self, other):
            for key, part in source._parts.items():
                out._parts[key] = out._parts[key].merge(part) if key in out._parts else part
        return out

    def __add__(self, other: ConditionalMoments) -> ConditionalMoments:
        return self.merge(other) if isinstance(other, ConditionalMoments) else NotImplemented

    @property
    def d(self) -> int | None:
        return self._whole.d

    @property
    def concept(self) -> Concept:
        """Of z."""
        return self._whole.concept

    @property
    def condition(self) -> Concept:
        """Of y."""
        if self._condition is None:
            raise InputError("these ConditionalMoments are empty: call update(X, z, y)", code="no-rows")
        return self._condition

    @property
    def names(self) -> tuple[Name, ...]:
        """The classes of y that have rows."""
        return tuple(name for name in self.condition.blocks[0].names if name_order(name) in self._parts)

    @property
    def counts(self) -> dict[str, dict[str, float]]:
        """Weight of every cell of y and z, by their names; of every class of y where z is numbers."""
        out: dict[str, dict[str, float]] = {}
        for name, part in self._named():
            mean = host(part.mean_z) * part.n
            classes = self.concept.is_one_categorical
            out[str(name)] = (
                dict(zip(map(str, self.concept.names), mean.tolist(), strict=True)) if classes else {"rows": part.n}
            )
        return out

    def _named(self) -> list[tuple[Name, Moments]]:
        """Each class of y and its moments, with the columns of the whole concept."""
        concept = self.concept
        out = []
        for name in self.names:
            part = self._parts[name_order(name)]
            statistics = spread_columns(part.statistics, part.concept.positions_in(concept), concept.k)
            out.append((name, Moments.from_statistics(statistics, concept)))
        return out

    def require_groups(self) -> None:
        """Every class of y must have at least two groups; cells of one row are worth a warning.

        Raises:
            ConceptError: z does not vary within some class of y.
        """
        for name, part in self._named():
            if part.rows < 2 or not (host(part.var_z) > 0).any():
                present = [c for c, share in zip(self.concept.names, host(part.mean_z), strict=True) if share > 0]
                only = f" (only {present[0]!r})" if self.concept.is_one_categorical and len(present) == 1 else ""
                raise ConceptError(
                    f"class {name!r} of condition_on has one group only{only}, {part.rows} rows: within it there is nothing "
                    f"to erase and nothing to compare; merge it with another class, or leave its rows out",
                    code="one-group",
                )
        if not self.concept.is_one_categorical:
            return
        cells = [(y, z, n) for y, row in self.counts.items() for z, n in row.items()]
        thin = [f"{y}/{z}" for y, z, n in cells if 0 < n <= 1]
        empty = [f"{y}/{z}" for y, z, n in cells if n == 0]
        if thin:
            warn(
                f"{len(thin)} cell(s) of condition_on and the concept have one row ({', '.join(thin[:4])}): what is erased "
                f"there is that row; merge small classes",
                code="thin-cells",
            )
        if empty:
            warn(
                f"{len(empty)} cell(s) of condition_on and the concept are empty ({', '.join(empty[:4])}): nothing is "
                f"promised for them",
                code="empty-cells",
            )

    def to_moments(self) -> Moments:
        """Moments of X and the columns 1[y = c] (z - E[z | y = c]): LEACE of these erases z given y."""
        whole = self._whole.statistics
        parts = self._named()
        xp = namespace(whole.mean_x)
        s_xz = xp.concat([convert(part.statistics.s_xz, whole.mean_x) for _, part in parts], axis=1)
        k = self.concept.k
        s_zz = xp.zeros((s_xz.shape[1], s_xz.shape[1]), dtype=whole.mean_x.dtype, device=whole.mean_x.device)
        for i, (_, part) in enumerate(parts):
            s = part.statistics
            block = s.n * class_covariance(s.mean_z) if s.s_zz is None else s.s_zz
            s_zz[i * k : (i + 1) * k, i * k : (i + 1) * k] = convert(block, whole.mean_x)
        mean_z = xp.zeros(s_xz.shape[1], dtype=whole.mean_x.dtype, device=whole.mean_x.device)
        names = tuple((name, c) for name, _ in parts for c in self.concept.names)
        columns = Concept((Block("continuous", (None,), names),))
        return Moments.from_statistics(
            replace(whole, mean_z=mean_z, s_xz=s_xz, s_zz=s_zz), columns, self._whole.feature_names
        )

    def columns(self, z: Any, y: Any) -> Encoded:
        """The columns of `to_moments` for rows with these labels."""
        encoded = self.concept.read(z)
        _, codes = Concept.learn_classes(y, "condition_on", encoded.n, self.condition)
        dense, k = encoded.dense(), self.concept.k
        place = {name: i for i, name in enumerate(self.names)}
        matrix = np.zeros((encoded.n, k * len(place)))
        for code, name in enumerate(self.condition.blocks[0].names):
            at = np.flatnonzero(codes == code)
            if len(at):
                part = self._named()[place[name]][1]
                matrix[at, k * place[name] : k * (place[name] + 1)] = dense[at] - host(part.mean_z)
        return Encoded(encoded.n, matrix.shape[1], matrix=matrix)

    def __repr__(self) -> str:
        return f"ConditionalMoments(classes={len(self._parts)}, n={self._whole.n:g}, d={self.d})"


def conditional_columns(z: Any, y: Any, kind: Any = None, sample_weight: Any = None) -> Array:
    """(n, classes of y times columns of z): 1[y = c] (z - E[z | y = c]).

    X is free of z given y exactly where its covariance with these columns is zero: what an audit of `condition_on` tests.

    >>> conditional_columns([0, 1, 0, 0], ["a", "a", "b", "b"]).tolist()
    [[0.5, -0.5, 0.0, 0.0], [-0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """
    concept, encoded = Concept.learn(z, kind=kind)
    m = ConditionalMoments(concept).update(np.zeros((encoded.n, 1)), z, y, sample_weight)
    return m.columns(z, y).matrix
