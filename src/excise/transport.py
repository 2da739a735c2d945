"""TransportEraser: one affine map per class; the form of quadratic erasure."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from excise import _files
from excise._array import Array, as_rows, check_features, computable, convert, give_back, namespace
from excise._labels import Name, name_order
from excise._linalg import inverse_root_psd, root_psd
from excise.concept import Concept
from excise.errors import ConceptError, InputError
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
    """r(x, c) = T_c (x - mean_c) + mean: needs the class of every row when it is applied."""

    maps: Array  # (k, d, d)
    means: Array  # (k, d)
    covs: Array  # (k, d, d)
    center: Array  # (d,): the mean of all rows
    names: tuple[Name, ...]
    concept: Concept
    info: dict[str, Any] = field(default_factory=dict)

    def __call__(self, X: Array, z: Any) -> Array:
        """Erase from X (..., d) with one class per row; the same library, dtype, device and shape come back.

        Raises:
            InputError: another number of features, NaN or infinity.
            ConceptError: labels of another number than rows, or of a class that was not fitted.
        """
        X, rows, codes = self._read(X, z)
        xp = namespace(rows)
        out = xp.empty_like(rows)
        center = convert(self.center, rows, "float64")
        for c in range(len(self.names)):
            at = convert(np.flatnonzero(codes == c), rows)
            T, mean = convert(self.maps[c], rows, "float64"), convert(self.means[c], rows, "float64")
            moved = (xp.astype(rows[at], xp.float64) - mean) @ T.T + center
            out[at] = xp.astype(moved, rows.dtype)
        return give_back(out.reshape(X.shape), X)

    def edit(self, X: Array, source: Name, target: Name) -> Array:
        """Move rows of class `source` to where they would be as class `target`: the optimal map between the two."""
        X = check_features(X)
        a, b = (self._position(name) for name in (source, target))
        rows = as_rows(computable(X))
        xp = namespace(rows)
        T = convert(transport_map(self.covs[a], self.covs[b]), rows, "float64")
        start, end = (convert(self.means[c], rows, "float64") for c in (a, b))
        moved = (xp.astype(rows, xp.float64) - start) @ T.T + end
        return give_back(xp.astype(moved, rows.dtype).reshape(X.shape), X)

    def _position(self, name: Name) -> int:
        keys = [name_order(known) for known in self.names]
        if name_order(name) not in keys:
            raise ConceptError(f"no class {name!r}; classes are {', '.join(repr(known) for known in self.names)}")
        return keys.index(name_order(name))

    def _read(self, X: Array, z: Any) -> tuple[Array, Array, Any]:
        X = check_features(X)
        if X.shape[-1] != self.d:
            raise InputError(
                f"X has {X.shape[-1]} features (shape {tuple(X.shape)}), this eraser was fitted on {self.d}"
            )
        rows = as_rows(computable(X))
        encoded = self.concept.read(flat_labels(z, tuple(X.shape[:-1])))
        if len(self.names) != encoded.k:
            raise ConceptError(
                f"the concept has {encoded.k} classes, but only {len(self.names)} of them had rows to fit on"
            )
        if encoded.n != rows.shape[0]:
            raise ConceptError(f"X has {rows.shape[0]} rows, but there are {encoded.n} labels: pass one label per row")
        xp = namespace(rows)
        if not bool(xp.all(xp.isfinite(rows))):
            raise InputError("X has values that are NaN or infinite: remove or impute them")
        return X, rows, encoded.codes

    @property
    def d(self) -> int:
        return int(self.center.shape[0])

    @property
    def rank(self) -> int:
        """Dimensions removed: none, the classes are moved onto each other."""
        return 0

    def to(self, device: Any = None, dtype: Any = None) -> TransportEraser:
        """The maps on another device (as PyTorch tensors; "numpy" for NumPy) or in another dtype."""
        from excise.eraser import placed

        arrays = (placed(a, device, dtype) for a in (self.maps, self.means, self.covs, self.center))
        maps, means, covs, center = arrays
        return TransportEraser(maps, means, covs, center, self.names, self.concept, self.info)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file that `excise.load` reads; a crash leaves no half file."""
        arrays = {"maps": self.maps, "means": self.means, "covs": self.covs, "center": self.center}
        about = {"info": self.info, "names": list(self.names), "concept": self.concept.to_dict()}
        _files.write(path, "TransportEraser", arrays, about)

    @staticmethod
    def from_stored(arrays: dict[str, Array], about: dict[str, Any]) -> TransportEraser:
        names = tuple(tuple(n) if isinstance(n, list) else n for n in about["names"])
        return TransportEraser(**arrays, names=names, concept=Concept.from_dict(about["concept"]), info=about["info"])

    def __repr__(self) -> str:
        return f"TransportEraser(d={self.d}, classes={len(self.names)})"
