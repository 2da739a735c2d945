"""Moments: what must be known of (X, Z) to erase Z from X, gathered in one pass.

Streaming, out-of-core, multi-GPU and cluster fitting are all `Moments.merge`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np

from excise import files
from excise.concepts.concept import Concept
from excise.concepts.encoded import Encoded
from excise.errors import ConceptError, FileFormatError, InputError
from excise.moments.fingerprints import Fingerprints
from excise.moments.labelled_rows import (
    check_weight,
    flat_labels,
    read_labelled_rows,
)
from excise.moments.scatter import MatrixScatter, RowScatter, read_scatter
from excise.moments.statistics import (
    Statistics,
    class_covariance,
    join,
    not_finite,
    of_batch,
    spread_columns,
    stored_n2,
    stored_rounding,
    without,
)
from excise.numerics.arrays import Array, convert, describe_device, namespace
from excise.numerics.correlation import scales
from excise.numerics.linalg import inverse_root
from excise.numerics.precision import EPS64

__all__ = ["Moments"]


class Moments:
    """Weight, means and covariances of features X (n, d) and a concept Z (n, k).

    Everything is learnt from the first batch unless given: `d`, the concept, the names of the features, the device.
    Arrays are float64, of the library of the first batch (NumPy for any other than NumPy, PyTorch and CuPy). As long as
    there are fewer rows than features the centred rows are kept in place of the d x d covariance. With `track_xx=False`
    only variances are kept: enough for `oracle`, `sal` and `mean_projection`.

    >>> import numpy as np
    >>> m = Moments().update(np.array([[0.0, 1.0], [2.0, 5.0]]), ["no", "yes"])
    >>> m.n, m.mean_x.tolist(), m.cov_xz.tolist()
    (2.0, [1.0, 3.0], [[-0.5, 0.5], [-1.0, 1.0]])
    """

    def __init__(self, d: int | None = None, concept: Concept | None = None, track_xx: bool = True) -> None:
        self._d = d
        self._concept = concept
        self._track_xx = track_xx
        self._statistics: Statistics | None = None
        self._feature_names: tuple[str, ...] | None = None

    def update(self, X: Any, z: Any, sample_weight: Any = None) -> Moments:
        """Add a batch: X (..., d), one label per row, optionally one weight (a weight of 2 is the row twice).

        X may be a data frame: its columns are then known by name, and later frames are read by these names.

        Raises:
            InputError: X is not finite, not real, not dense, or of another width; weights are negative.
            ConceptError: labels are missing, ambiguous, of another kind or of another number than rows.
            A refused batch changes nothing.
        """
        given = read_labelled_rows(X, self.d, self._feature_names, z)
        labels = flat_labels(z, given.lead)
        if given.rows.shape[0] == 0 and len(labels) == 0:
            return self
        concept, encoded = Concept.learn(labels) if self._concept is None else self._concept.extend(labels)
        return self.update_encoded(given.rows, concept, encoded, sample_weight, given.names)

    @staticmethod
    def of_task(X: Any, y: Any, sample_weight: Any = None, kind: Any = None) -> Moments:
        """Moments of X and a task y, which may be of any kind that a concept may be; variances only.

        Raises:
            ConceptError: as `update`, about y; its kind is asked for as `task_kind`.
        """
        try:
            concept = None if kind is None else Concept.of(y, kind=kind)
            return Moments(concept=concept, track_xx=False).update(X, y, sample_weight)
        except ConceptError as error:
            raise error.of("y (the task)", "task_kind") from None

    def update_encoded(
        self,
        rows: Array,
        concept: Concept,
        encoded: Encoded,
        sample_weight: Any = None,
        names: tuple[str, ...] | None = None,
        look: bool = True,
    ) -> Moments:
        """`update` with rows (n, d) that were checked and labels that were parsed already.

        `look`: for features that hardly vary or have few values, which fitting warns of.
        """
        if encoded.n != rows.shape[0]:
            raise ConceptError(
                f"X has {rows.shape[0]} rows, but there are {encoded.n} labels: pass one label per row",
                code="row-count",
            )
        weight = check_weight(sample_weight, rows.shape[0])
        if weight is not None and not weight.all():
            keep = weight > 0
            counted, encoded, weight = rows[convert(np.flatnonzero(keep), rows)], encoded.rows(keep), weight[keep]
            try:
                batch = of_batch(counted, encoded, weight, self._track_xx, look)
            except InputError:  # count rows as the caller does
                raise not_finite(rows) from None
        else:
            batch = of_batch(rows, encoded, weight, self._track_xx, look)
        self._add(batch, concept)
        self._feature_names = self._feature_names or names
        return self

    def _add(self, batch: Statistics, concept: Concept) -> None:
        if self._statistics is None:
            self._statistics, self._concept, self._d = batch, concept, batch.mean_x.shape[0]
            return
        assert self._concept is not None
        old = spread_columns(self._statistics, self._concept.positions_in(concept), concept.k)
        with np.errstate(over="ignore", invalid="ignore"):  # looked at below
            joined = join(old, _moved(batch, old.mean_x))
            diagonal = joined.s_xx.diagonal()
        xp = namespace(diagonal)
        if not bool(xp.all(xp.isfinite(diagonal)) & xp.all(xp.isfinite(joined.s_xz))):
            raise InputError(
                "the squares of X or of the labels overflow float64 when joined: divide them by their scale"
            )
        self._statistics, self._concept = joined, concept

    def merge(self, other: Moments) -> Moments:
        """Moments of both data sets, as a new object; the order does not matter, classes are joined by name.

        Raises:
            InputError: another number of features, other names, or only one of the two has the d x d covariance.
            ConceptError: another kind of concept.
        """
        concept = self._joined_concept(other)
        out = Moments(self.d or other.d, concept, self._track_xx)
        out._feature_names = self._feature_names or other._feature_names
        for part in (self, other):
            if part._statistics is not None:
                assert part._concept is not None
                assert concept is not None
                out._add(spread_columns(part._statistics, part._concept.positions_in(concept), concept.k), concept)
        return out

    def _joined_concept(self, other: Moments) -> Concept | None:
        """The concept of both.

        Raises:
            InputError, ConceptError: the two do not fit together.
        """
        if self._track_xx != other._track_xx:
            raise InputError(
                "cannot merge: one of the Moments has track_xx=False (no d x d covariance), the other has it"
            )
        if None not in (self.d, other.d) and self.d != other.d:
            raise InputError(f"cannot merge Moments of {self.d} and {other.d} features", code="feature-count")
        names = (self._feature_names, other._feature_names)
        if names[0] is not None and names[1] is not None and names[0] != names[1]:
            differ = next(pair for pair in zip(names[0], names[1], strict=True) if pair[0] != pair[1])
            raise InputError(
                f"cannot merge: feature {names[0].index(differ[0])} is {differ[0]!r} in one and {differ[1]!r} in the "
                f"other; gather both with the same columns in the same order",
                code="feature-names",
            )
        if self._concept is None or other._concept is None:
            return self._concept or other._concept
        return self._concept.join(other._concept)

    def __add__(self, other: Moments) -> Moments:
        return self.merge(other) if isinstance(other, Moments) else NotImplemented

    def __radd__(self, other: Any) -> Moments:
        return self if isinstance(other, int) and other == 0 else NotImplemented  # sum([...]) starts at 0

    def __sub__(self, other: Moments) -> Moments:
        """Moments of the rows of this data set that are not in `other`, which must be a part of it.

        Raises:
            InputError: `other` is not a part of this data set: what is left would have a negative variance.
        """
        if not isinstance(other, Moments):
            return NotImplemented
        if other._statistics is None:
            return self
        concept = self._joined_concept(other)
        if concept is None or concept != self._concept:
            raise ConceptError("cannot subtract: the second Moments have classes that the first lack")
        part = spread_columns(other._statistics, other.concept.positions_in(concept), concept.k)
        whole = self.statistics
        if part.n >= whole.n or part.rows >= whole.rows:
            raise InputError(f"cannot subtract {part.rows} rows from {whole.rows}: nothing would be left")
        out = Moments.from_statistics(without(whole, _moved(part, whole.mean_x)), concept, self._feature_names)
        out._refuse_indefinite(whole)
        return out

    def _refuse_indefinite(self, whole: Statistics) -> None:
        xp = namespace(self.mean_x)
        scale = scales(whole.s_xx.diagonal() / whole.n)
        shares = self.mean_z if self.statistics.s_zz is None else self.mean_z * 0.0
        slack = 1e-8
        worst = float(xp.min(self.var_x / scale**2))
        if self._track_xx:
            worst = float(xp.linalg.eigvalsh(self.cov_xx / scale[:, None] / scale[None, :])[0])
        if worst < -slack or float(xp.min(shares)) < -slack:
            raise InputError(
                "cannot subtract: what is left would have a negative variance, so the second Moments are not a part of the "
                "first",
                code="not-a-part",
            )

    def decay(self, factor: float) -> Moments:
        """These moments with all weights multiplied by `factor` in (0, 1], for streams that drift: old rows count less.

        >>> m = Moments().update(np.array([[0.0], [2.0]]), ["a", "b"])
        >>> m.decay(0.5).update(np.array([[4.0], [6.0]]), ["a", "b"]).n
        3.0
        """
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0.0 < factor <= 1.0:
            raise InputError(f"factor must be a number above 0 and at most 1, got {factor!r}")
        s = self.statistics
        faded = replace(
            s,
            n=s.n * factor,
            s_xx=s.s_xx.scaled(factor),
            s_xz=s.s_xz * factor,
            s_zz=None if s.s_zz is None else s.s_zz * factor,
            n2=s.n2 * factor**2,
            rounding=s.rounding * factor,
        )
        return Moments.from_statistics(faded, self.concept, self._feature_names)

    @property
    def statistics(self) -> Statistics:
        """The raw sums.

        Raises:
            InputError: nothing was added yet.
        """
        if self._statistics is None:
            raise InputError(
                "these Moments are empty: call update(X, z) with at least one row of positive weight", code="no-rows"
            )
        return self._statistics

    @property
    def d(self) -> int | None:
        """Number of features; None until it is known."""
        return self._d

    @property
    def k(self) -> int:
        """Columns of the encoded concept; 0 until it is known."""
        return self._concept.k if self._concept else 0

    @property
    def concept(self) -> Concept:
        if self._concept is None:
            raise InputError("these Moments are empty and were given no concept", code="no-rows")
        return self._concept

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Names of the columns, where the features came as data frames."""
        return self._feature_names

    @property
    def fingerprints(self) -> Fingerprints | None:
        """Which features hardly vary or have few values; None if that was not looked at."""
        return None if self._statistics is None else self._statistics.fingerprints

    @property
    def track_xx(self) -> bool:
        return self._track_xx

    @property
    def n(self) -> float:
        """Total weight: the number of rows where no weights were given."""
        return self._statistics.n if self._statistics else 0.0

    @property
    def rows(self) -> int:
        """Rows with a weight above zero."""
        return self._statistics.rows if self._statistics else 0

    @property
    def effective_rows(self) -> float:
        """The rows that estimates rest on: weights are repetitions, unless they add up to less than one per row (weights
        that were normalised to sum to 1), where every row counts once."""
        return max(self.n, float(self.rows))

    @property
    def mean_x(self) -> Array:
        return self.statistics.mean_x

    @property
    def mean_z(self) -> Array:
        return self.statistics.mean_z

    @property
    def var_x(self) -> Array:
        """(d,) variances of the features; known with and without the d x d covariance."""
        return self.statistics.var_x

    @property
    def std_x(self) -> Array:
        """(d,) standard deviations to divide by; 1 for a constant feature."""
        return self.statistics.std_x

    @property
    def var_z(self) -> Array:
        """(k,) variances of the concept's columns."""
        s = self.statistics
        if s.s_zz is None:
            return s.mean_z * (1.0 - s.mean_z)
        return namespace(s.s_zz).linalg.diagonal(s.s_zz) / self.n

    @property
    def cov_xx(self) -> Array:
        """(d, d) population covariance (1/n), as a new array.

        Raises:
            InputError: made with track_xx=False.
        """
        self._require_covariance()
        return self.statistics.s_xx.matrix() / self.n

    def cov_xx_times(self, V: Array) -> Array:
        """cov_xx @ V, without forming cov_xx where rows are kept."""
        self._require_covariance()
        return self.statistics.s_xx.times(V) / self.n

    def _require_covariance(self) -> None:
        if not self._track_xx:
            raise InputError(
                "these Moments have no d x d covariance (track_xx=False): this method needs track_xx=True",
                code="no-covariance",
            )

    @property
    def cov_xz(self) -> Array:
        return self.statistics.s_xz / self.n

    @property
    def cov_zz(self) -> Array:
        s = self.statistics
        return class_covariance(s.mean_z) if s.s_zz is None else s.s_zz / self.n

    @property
    def whitened_cov_xz(self) -> Array:
        """Sxz T with T T^T = Szz^+: its squared length is the part of X that Z explains.

        For one block of classes of shares p, T = diag(p)^-1/2, because the columns of Sxz add up to zero: no k x k matrix.
        """
        s = self.statistics
        if s.s_zz is not None:
            return self.cov_xz @ inverse_root(self.cov_zz)
        return self.cov_xz / scales(s.mean_z)[None, :]

    @property
    def regression(self) -> Array:
        """(d, k) Sxz Szz^+: the least-squares coefficients of X on Z. For classes, class means less the mean."""
        s = self.statistics
        if s.s_zz is None:
            return self.cov_xz / _positive(s.mean_z)[None, :]
        T = inverse_root(self.cov_zz)
        return self.cov_xz @ T @ T.T

    def mean_squared_edit(self, left: Array, right: Array) -> float:
        """E |U V^T (x - mean)|^2 = tr(U V^T Sxx V U^T), for left U and right V (d, r)."""
        return float(namespace(left).sum((left.T @ left) * (right.T @ self.cov_xx_times(right))))

    @property
    def eps_xx(self) -> float:
        """Machine epsilon of the arithmetic behind cov_xx: that of float32 for wide 16- and 32-bit data."""
        return self.statistics.eps

    @property
    def kish(self) -> float:
        """Effective number of rows, (sum w)^2 / (sum w^2): fewer than there are if some weigh far more than others."""
        return self.statistics.kish

    @property
    def delta(self) -> Array:
        """(d,) what one rounding of its numbers does to a feature, in its standard deviations."""
        return self.statistics.delta

    @property
    def standardised_rows(self) -> Array | None:
        """G (m, d) with G^T G the correlation matrix, where rows are kept in place of the covariance; else None."""
        s = self.statistics
        if not isinstance(s.s_xx, RowScatter):
            return None
        return s.s_xx.rows() * self._units()[None, :]

    def correlation_matrix(self) -> Array:
        """(d, d) correlations of X; the identity in the rows of constant features. A new array: it may be used up."""
        self._require_covariance()
        unit = self._units()
        R = self.statistics.s_xx.matrix() * unit[:, None]
        R *= unit[None, :]
        if not self.statistics.host_var_x.all():
            xp = namespace(unit)
            constant = xp.astype(self.var_x <= 0, unit.dtype)
            R = R + constant[:, None] * xp.eye(unit.shape[0], dtype=unit.dtype, device=unit.device)
        return R

    def _units(self) -> Array:
        """(d,) what a row is multiplied by so that squares add up to correlations; 0 for constant features."""
        xp = namespace(self.std_x)
        return xp.astype(self.var_x > 0, self.std_x.dtype) / (self.std_x * float(np.sqrt(self.n)))

    def to(self, device: Any) -> Moments:
        """The same moments on another device, as PyTorch tensors ("numpy" for NumPy arrays)."""
        s = self.statistics
        return Moments.from_statistics(_moved(s, _target(device)), self.concept, self._feature_names)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file that `excise.load` reads; a crash leaves no half file.

        Where rows are kept, a triangular factor with the same products is written, never the rows themselves.
        """
        files.write(path, "Moments", *self.stored())

    def stored(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """What `save` writes: arrays, and a description in plain JSON values. `from_stored` is the way back."""
        s = self.statistics
        arrays = {"mean_x": s.mean_x, "mean_z": s.mean_z, "s_xz": s.s_xz, s.s_xx.name: s.s_xx.stored()}
        arrays["rounding"] = s.rounding
        if s.s_zz is not None:
            arrays["s_zz"] = s.s_zz
        about = {"n": s.n, "rows": s.rows, "eps": s.eps, "n2": s.n2, "concept": self.concept.to_dict()}
        about["feature_names"] = None if self._feature_names is None else list(self._feature_names)
        about["fingerprints"] = None if s.fingerprints is None else s.fingerprints.to_dict()
        return arrays, about

    def all_reduce(self, group: Any = None) -> Moments:
        """The moments of all ranks of a torch.distributed group together, the same on every rank.

        Raises:
            ExciseError: torch.distributed is not initialised.
            InputError, ConceptError: the ranks have other features or another kind of concept.
        """
        from excise.distributed.ranks import all_reduce

        return all_reduce(self, group)

    @staticmethod
    def from_stored(arrays: dict[str, Array], about: dict[str, Any]) -> Moments:
        concept = Concept.from_dict(about["concept"])
        n, rows = about["n"], about["rows"]
        if not isinstance(n, (int, float)) or not np.isfinite(n) or n <= 0 or not isinstance(rows, int) or rows < 1:
            raise FileFormatError(f"it says that it holds {rows!r} rows of weight {n!r}")
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise FileFormatError("it holds values that are NaN or infinite")
        d, k = arrays["mean_x"].shape[0], concept.k
        scatter = read_scatter(arrays)
        shapes = {"mean_x": (d,), "mean_z": (k,), "s_xz": (d, k), "s_zz": (k, k), "rounding": (d,)}
        wrong = [name for name, shape in shapes.items() if name in arrays and arrays[name].shape != shape]
        if wrong or scatter.stored().shape[-1] != d:
            raise FileFormatError(f"its array {wrong[0] if wrong else scatter.name!r} has the wrong shape")
        looked = about.get("fingerprints")
        statistics = Statistics(
            n=n,
            rows=rows,
            mean_x=arrays["mean_x"],
            mean_z=arrays["mean_z"],
            s_xx=scatter,
            s_xz=arrays["s_xz"],
            s_zz=None if concept.is_one_categorical else arrays["s_zz"],
            eps=about.get("eps", EPS64),
            n2=stored_n2(about, n, rows),
            rounding=stored_rounding(arrays, about, n, scatter.diagonal(), arrays["mean_x"]),
            fingerprints=None if looked is None else Fingerprints.from_dict(looked),
        )
        names = about.get("feature_names")
        return Moments.from_statistics(statistics, concept, None if names is None else tuple(names))

    @staticmethod
    def from_statistics(
        statistics: Statistics, concept: Concept, feature_names: tuple[str, ...] | None = None
    ) -> Moments:
        out = Moments(track_xx=isinstance(statistics.s_xx, (MatrixScatter, RowScatter)))
        out._add(statistics, concept)
        out._feature_names = feature_names
        return out

    def __repr__(self) -> str:
        where = f", {describe_device(self.mean_x)}" if self._statistics else ""
        return f"Moments(n={self.n:g}, d={self.d}, k={self.k}{where})"


def _positive(share: Array) -> Array:
    """`share`, with 1 for classes that have no rows."""
    xp = namespace(share)
    return xp.where(share > 0, share, xp.ones_like(share))


def _moved(s: Statistics, like: Array) -> Statistics:
    moved = {name: convert(getattr(s, name), like) for name in ("mean_x", "mean_z", "s_xz", "rounding")}
    s_zz = None if s.s_zz is None else convert(s.s_zz, like)
    return replace(s, **moved, s_xx=s.s_xx.to(like), s_zz=s_zz)


def _target(device: Any) -> Array:
    if device == "numpy":
        return np.zeros(0)
    import torch

    return torch.zeros(0, device=device)
