"""Moments: what must be known of (X, Z) to erase Z from X, gathered in one pass.

Streaming, out-of-core, multi-GPU and cluster fitting are all `Moments.merge`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np

from excise import _files
from excise._array import Array, as_rows, check_features, computable, convert, describe_device, host, namespace
from excise._linalg import ULPS, scales
from excise._statistics import Statistics, join, not_finite, of_batch, spread_columns
from excise.concept import Concept
from excise.errors import ConceptError, InputError

__all__ = ["Moments"]


class Moments:
    """Weight, means and covariances of features X (n, d) and a concept Z (n, k).

    Everything is learnt from the first batch unless given: `d`, the concept, the device. Arrays are float64, of the
    library of the first batch (NumPy for any other than NumPy, PyTorch and CuPy). With `track_xx=False` only
    variances are kept in place of the d x d covariance: enough for `oracle`, `sal` and `mean_projection`.

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

    def update(self, X: Array, z: Any, sample_weight: Any = None) -> Moments:
        """Add a batch: X (..., d), one label per row, optionally one weight (a weight of 2 is the row twice).

        Raises:
            InputError: X is not finite, not real, not dense, or of another width; weights are negative.
            ConceptError: labels are missing, ambiguous, of another kind or of another number than rows.
            A refused batch changes nothing.
        """
        X = check_features(X)
        if X.ndim < 2:
            raise InputError(f"X has shape {tuple(X.shape)}: expected (..., d), at least two dimensions")
        d = self.d
        if d is not None and X.shape[-1] != d:
            raise InputError(f"X has {X.shape[-1]} features, expected {d}")
        if X.shape[-1] == 0:
            raise InputError(f"X has shape {tuple(X.shape)}: there are no features")
        lead = tuple(X.shape[:-1])
        rows = as_rows(computable(X))
        labels = flat_labels(z, lead)
        if rows.shape[0] == 0 and len(labels) == 0:
            return self
        concept, encoded = (self._concept or Concept.of(labels)).extend(labels)
        if encoded.n != rows.shape[0]:
            raise ConceptError(f"X has {rows.shape[0]} rows, but there are {encoded.n} labels: pass one label per row")
        weight = check_weight(sample_weight, rows.shape[0])
        if weight is not None and not weight.all():
            keep = weight > 0
            counted, encoded, weight = rows[convert(np.flatnonzero(keep), rows)], encoded.rows(keep), weight[keep]
            try:
                batch = of_batch(counted, encoded, weight, self._track_xx)
            except InputError:  # count rows as the caller does
                raise not_finite(rows) from None
        else:
            batch = of_batch(rows, encoded, weight, self._track_xx)
        self._add(batch, concept)
        return self

    def _add(self, batch: Statistics, concept: Concept) -> None:
        if self._statistics is None:
            self._statistics, self._concept, self._d = batch, concept, batch.mean_x.shape[0]
            return
        assert self._concept is not None
        old = spread_columns(self._statistics, self._concept.positions_in(concept), concept.k)
        with np.errstate(over="ignore", invalid="ignore"):  # looked at below
            joined = join(old, _moved(batch, old.mean_x))
        xp = namespace(joined.s_xx)
        if not bool(xp.all(xp.isfinite(joined.s_xx))) or not bool(xp.all(xp.isfinite(joined.s_zz))):
            raise InputError(
                "the squares of X or of the labels overflow float64 when joined: divide them by their scale"
            )
        self._statistics, self._concept = joined, concept

    def merge(self, other: Moments) -> Moments:
        """Moments of both data sets, as a new object; the order does not matter, classes are joined by name.

        Raises:
            InputError: another number of features, or only one of the two has the d x d covariance.
            ConceptError: another kind of concept.
        """
        if self._track_xx != other._track_xx:
            raise InputError(
                "cannot merge: one of the Moments has track_xx=False (no d x d covariance), the other has it"
            )
        if None not in (self.d, other.d) and self.d != other.d:
            raise InputError(f"cannot merge Moments of {self.d} and {other.d} features")
        if self._concept is None or other._concept is None:
            concept = self._concept or other._concept
        else:
            concept = self._concept.join(other._concept)
        out = Moments(self.d or other.d, concept, self._track_xx)
        for part in (self, other):
            if part._statistics is not None:
                assert part._concept is not None
                assert concept is not None
                out._add(spread_columns(part._statistics, part._concept.positions_in(concept), concept.k), concept)
        return out

    def __add__(self, other: Moments) -> Moments:
        return self.merge(other) if isinstance(other, Moments) else NotImplemented

    def __radd__(self, other: Any) -> Moments:
        return self if other == 0 else NotImplemented  # sum([...]) starts at 0

    @property
    def statistics(self) -> Statistics:
        """The raw sums.

        Raises:
            InputError: nothing was added yet.
        """
        if self._statistics is None:
            raise InputError("these Moments are empty: call update(X, z) with at least one row of positive weight")
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
            raise InputError("these Moments are empty and were given no concept")
        return self._concept

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
    def mean_x(self) -> Array:
        return self.statistics.mean_x

    @property
    def mean_z(self) -> Array:
        return self.statistics.mean_z

    @property
    def var_x(self) -> Array:
        """(d,) variances of the features; known with and without the d x d covariance."""
        s = self.statistics.s_xx
        return (s if s.ndim == 1 else s.diagonal()) / self.n

    @property
    def cov_xx(self) -> Array:
        """(d, d) population covariance (1/n).

        Raises:
            InputError: made with track_xx=False.
        """
        if not self._track_xx:
            raise InputError("these Moments have no d x d covariance (track_xx=False): this method needs track_xx=True")
        return self.statistics.s_xx / self.n

    @property
    def cov_xz(self) -> Array:
        return self.statistics.s_xz / self.n

    @property
    def cov_zz(self) -> Array:
        return self.statistics.s_zz / self.n

    @property
    def eps_xx(self) -> float:
        """Machine epsilon of the arithmetic behind cov_xx: that of float32 for wide 16- and 32-bit data."""
        return self.statistics.eps

    @property
    def rounding(self) -> Array:
        """(d,) what a few roundings of its numbers do to a feature, in its standard deviations."""
        s = self.statistics
        xp = namespace(s.mean_x)
        return ULPS * s.roundoff * xp.sqrt(s.mean_x**2 + self.var_x) / scales(self.var_x)

    def to(self, device: Any) -> Moments:
        """The same moments on another device, as PyTorch tensors ("numpy" for NumPy arrays)."""
        s = self.statistics
        return Moments.from_statistics(_moved(s, _target(device)), self.concept)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file that `excise.load` reads; a crash leaves no half file."""
        s = self.statistics
        arrays = {name: getattr(s, name) for name in ARRAYS}
        about = {"n": s.n, "rows": s.rows, "eps": s.eps, "roundoff": s.roundoff, "concept": self.concept.to_dict()}
        _files.write(path, "Moments", arrays, about)

    @staticmethod
    def from_stored(arrays: dict[str, Array], about: dict[str, Any]) -> Moments:
        known = {name: about.get(name, 0.0) for name in ("eps", "roundoff")}
        statistics = Statistics(n=about["n"], rows=about["rows"], **known, **arrays)
        return Moments.from_statistics(statistics, Concept.from_dict(about["concept"]))

    @staticmethod
    def from_statistics(statistics: Statistics, concept: Concept) -> Moments:
        out = Moments(track_xx=statistics.s_xx.ndim == 2)
        out._add(statistics, concept)
        return out

    def __repr__(self) -> str:
        where = f", {describe_device(self.mean_x)}" if self._statistics else ""
        return f"Moments(n={self.n:g}, d={self.d}, k={self.k}{where})"


ARRAYS = ("mean_x", "mean_z", "s_xx", "s_xz", "s_zz")


def _moved(s: Statistics, like: Array) -> Statistics:
    return replace(s, **{name: convert(getattr(s, name), like) for name in ARRAYS})


def _target(device: Any) -> Array:
    if device == "numpy":
        return np.zeros(0)
    import torch

    return torch.zeros(0, device=device)


def flat_labels(z: Any, lead: tuple[int, ...]) -> Any:
    """Labels of shape (*lead,) or (*lead, k) for features of shape (*lead, d), as (n,) or (n, k)."""
    shape = getattr(z, "shape", None)
    if len(lead) > 1 and shape is not None and tuple(shape[: len(lead)]) == lead:
        z = z if hasattr(z, "reshape") else np.asarray(z)
        return z.reshape((-1, *shape[len(lead) :]))
    return z


def check_weight(weight: Any, n: int) -> np.ndarray[Any, Any] | None:
    if weight is None:
        return None
    try:
        w = np.asarray(host(weight) if hasattr(weight, "dtype") else weight, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise InputError("sample_weight must be numbers, one per row") from None
    if len(w) != n:
        raise InputError(f"X has {n} rows, but there are {len(w)} weights: pass one weight per row")
    bad = ~(np.isfinite(w) & (w >= 0))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InputError(f"{int(bad.sum())} weights are negative, NaN or infinite (first at row {row}: {w[row]:g})")
    if n and not w.any():
        raise InputError(f"all {n} weights are zero: there is nothing to learn from")
    return w
