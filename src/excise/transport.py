"""TransportEraser: one affine map per class; the form of quadratic erasure."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from excise import _files
from excise._apply import refuse_not_finite
from excise._array import Array, as_rows, check_features, computable, convert, give_back, namespace
from excise._labels import Name, name_order
from excise._linalg import inverse_root_psd, root_psd
from excise._rounding import check_rounding, round_randomly
from excise.concept import Concept
from excise.eraser import fresh_seed, needs_gradient, placed
from excise.errors import ConceptError, ExciseError, InputError
from excise.moments import flat_labels

__all__ = ["TransportEraser", "transport_map"]


def transport_map(S: Array, target: Array) -> Array:
    """T = S^-1/2 (S^1/2 S* S^1/2)^1/2 S^-1/2: the symmetric map that takes N(0, S) to N(0, S*) and moves it least.

    Where S is singular, its pseudo-inverse is taken: a map cannot make variance where there is none.
    """
    root, inverse = root_psd(S), inverse_root_psd(S)
    T = inverse @ root_psd(root @ target @ root) @ inverse
    return (T + T.T) / 2


@dataclass(frozen=True, eq=False)
class TransportEraser:
    """r(x, c) = T_c (x - mean_c) + mean: needs the class of every row when it is applied.

    Distances are measured in standard deviations of the features, so the maps do not depend on their units.
    """

    maps: Array  # (k, d, d)
    means: Array  # (k, d)
    covs: Array  # (k, d, d)
    center: Array  # (d,): the mean of all rows
    scale: Array  # (d,): standard deviations of all rows
    names: tuple[Name, ...]
    concept: Concept
    info: dict[str, Any] = field(default_factory=dict)

    def __call__(self, X: Array, z: Any, rounding: str = "nearest", seed: int | None = None) -> Array:
        """Erase from X (..., d) with one class per row; the same library, dtype, device and shape come back.

        Raises:
            InputError: another number of features, NaN or infinity.
            ConceptError: labels of another number than rows, or of a class that was not fitted.
            ExciseError: X needs a gradient, which this eraser does not carry.
        """
        X, rows = self._read(X)
        random = check_rounding(rounding, X)
        encoded = self.concept.read(flat_labels(z, tuple(X.shape[:-1])))
        if encoded.n != rows.shape[0]:
            raise ConceptError(f"X has {rows.shape[0]} rows, but there are {encoded.n} labels: pass one label per row")
        assert encoded.codes is not None
        xp = namespace(rows)
        exact = xp.astype(rows, xp.float64, copy=True)
        center = convert(self.center, rows, "float64")
        for code in np.unique(encoded.codes).tolist():
            c = self._position(self.concept.blocks[0].names[code])
            at = convert(np.flatnonzero(encoded.codes == code), rows)
            T, mean = convert(self.maps[c], rows, "float64"), convert(self.means[c], rows, "float64")
            exact[at] = (exact[at] - mean) @ T.T + center
        return _given_back(exact, X, rows, fresh_seed(random, seed))

    def edit(self, X: Array, source: Name, target: Name) -> Array:
        """Move rows of class `source` to where they would be as class `target`: the optimal map between the two.

        Raises:
            ConceptError: no such class.
            InputError: another number of features, NaN or infinity.
        """
        X, rows = self._read(X)
        a, b = (self._position(name) for name in (source, target))
        scale = self.scale
        units = scale[:, None] * scale[None, :]
        T = transport_map(self.covs[a] / units, self.covs[b] / units) * scale[:, None] / scale[None, :]
        xp = namespace(rows)
        start, end = (convert(self.means[c], rows, "float64") for c in (a, b))
        moved = (xp.astype(rows, xp.float64) - start) @ convert(T, rows, "float64").T + end
        return _given_back(moved, X, rows, None)

    def _position(self, name: Name) -> int:
        keys = [name_order(known) for known in self.names]
        if name_order(name) not in keys:
            raise ConceptError(f"no class {name!r}; classes are {', '.join(repr(known) for known in self.names)}")
        return keys.index(name_order(name))

    def _read(self, X: Array) -> tuple[Array, Array]:
        X = check_features(X)
        if X.shape[-1] != self.d:
            raise InputError(
                f"X has {X.shape[-1]} features (shape {tuple(X.shape)}), this eraser was fitted on {self.d}"
            )
        if needs_gradient(X):
            raise ExciseError("quadratic erasure carries no gradient: call it under torch.no_grad(), or on X.detach()")
        rows = as_rows(computable(X))
        xp = namespace(rows)
        if not bool(xp.all(xp.isfinite(rows))):
            raise refuse_not_finite(rows)
        return X, rows

    @property
    def d(self) -> int:
        return int(self.center.shape[0])

    @property
    def rank(self) -> int:
        """Dimensions removed: none, the classes are moved onto each other."""
        return 0

    def to(self, device: Any = None, dtype: Any = None) -> TransportEraser:
        """The maps on another device (as PyTorch tensors; "numpy" for NumPy) or in another dtype."""
        arrays = {name: placed(getattr(self, name), device, dtype) for name in ARRAYS}
        return TransportEraser(**arrays, names=self.names, concept=self.concept, info=self.info)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file that `excise.load` reads; a crash leaves no half file."""
        about = {"info": self.info, "names": list(self.names), "concept": self.concept.to_dict()}
        _files.write(path, "TransportEraser", {name: getattr(self, name) for name in ARRAYS}, about)

    @staticmethod
    def from_stored(arrays: dict[str, Array], about: dict[str, Any]) -> TransportEraser:
        names = tuple(tuple(n) if isinstance(n, list) else n for n in about["names"])
        return TransportEraser(**arrays, names=names, concept=Concept.from_dict(about["concept"]), info=about["info"])

    def __repr__(self) -> str:
        return f"TransportEraser(d={self.d}, classes={len(self.names)})"


ARRAYS = ("maps", "means", "covs", "center", "scale")


def _given_back(exact: Array, X: Array, rows: Array, seed: int | None) -> Array:
    xp = namespace(rows)
    out = xp.astype(exact, rows.dtype) if seed is None else round_randomly(exact, rows.dtype, (seed, 0))
    if not bool(xp.all(xp.isfinite(out))):
        raise refuse_not_finite(rows)
    return give_back(out.reshape(X.shape), X)
