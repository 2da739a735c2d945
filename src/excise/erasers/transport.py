"""TransportEraser: one affine map per class; the form of quadratic erasure."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from excise import files
from excise.concepts.concept import Concept
from excise.concepts.labels import Name, name_order
from excise.erasers.apply import refuse_not_finite
from excise.erasers.protocol import Rows, check_stored, needs_gradient, placed, read_names, read_rows
from excise.errors import ConceptError, ExciseError
from excise.numerics.arrays import Array, convert, namespace
from excise.numerics.linalg import inverse_root_psd, rank_psd, root_psd
from excise.numerics.rounding import round_randomly

__all__ = ["TransportEraser", "transport_map"]

ARRAYS = ("maps", "means", "covs", "center", "scale")
ROWS_AT_ONCE = 2**24  # numbers of a class that are mapped at a time


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
    feature_names: tuple[str, ...] | None = None

    needs_labels = True

    def __call__(
        self, X: Any, z: Any = None, *, rounding: str = "nearest", rounding_seed: int | None = None, seed: Any = None
    ) -> Any:
        """Erase from X (..., d) with one class per row; the same library, dtype, device and shape come back.

        Args:
            X: features; of a data frame the fitted columns are taken by name.
            z: one class per row, of those that were fitted.
            rounding, rounding_seed: as for `AffineEraser`.

        Raises:
            InputError: another number of features, NaN or infinity.
            ConceptError: no labels, labels of another number than rows, or of a class that was not fitted.
            ExciseError: X needs a gradient, which this eraser does not carry.
        """
        rows = self._read(X, rounding, rounding_seed if rounding_seed is not None else seed)
        codes = rows.labels(z, self.concept).codes
        assert codes is not None
        xp = namespace(rows.values)
        exact = xp.astype(rows.values, xp.float64, copy=True)
        center = convert(self.center, exact)
        for code in np.unique(codes).tolist():
            c = self._position(self.concept.blocks[0].names[code])
            T, mean = convert(self.maps[c], exact), convert(self.means[c], exact)
            if bool(xp.all(mean == center)) and bool(xp.all(xp.eye(self.d, dtype=T.dtype, device=T.device) == T)):
                continue  # a class that stays where it is, to the last bit
            whole = np.flatnonzero(codes == code)
            for first in range(0, len(whole), step := max(1, ROWS_AT_ONCE // self.d)):
                at = convert(whole[first : first + step], exact)
                exact[at] = (exact[at] - mean) @ T.T + center
        return _restored(exact, rows)

    def edit(self, X: Any, source: Name, target: Name) -> Any:
        """Move rows of class `source` to where they would be as class `target`: the optimal map between the two.

        Raises:
            ConceptError: no such class.
            InputError: another number of features, NaN or infinity.
        """
        rows = self._read(X, "nearest", None)
        a, b = (self._position(name) for name in (source, target))
        scale = self.scale
        units = scale[:, None] * scale[None, :]
        T = transport_map(self.covs[a] / units, self.covs[b] / units) * scale[:, None] / scale[None, :]
        xp = namespace(rows.values)
        exact = xp.astype(rows.values, xp.float64)
        start, end = (convert(self.means[c], exact) for c in (a, b))
        return _restored((exact - start) @ convert(T, exact).T + end, rows)

    def _position(self, name: Name) -> int:
        keys = [name_order(known) for known in self.names]
        if name_order(name) not in keys:
            raise ConceptError(f"no class {name!r}; classes are {', '.join(repr(known) for known in self.names)}")
        return keys.index(name_order(name))

    def _read(self, X: Any, rounding: str, seed: int | None) -> Rows:
        rows = read_rows(X, self.d, self.feature_names, rounding, seed)
        if needs_gradient(rows.given):
            raise ExciseError("quadratic erasure carries no gradient: call it under torch.no_grad(), or on X.detach()")
        xp = namespace(rows.values)
        if not bool(xp.all(xp.isfinite(rows.values))):
            raise refuse_not_finite(rows.values)
        return rows

    @property
    def d(self) -> int:
        return int(self.center.shape[0])

    @property
    def rank(self) -> int:
        """Dimensions in which the edit lives: mostly all of them, as every class is moved onto one common shape."""
        xp = namespace(self.center)
        moved = xp.eye(self.d, dtype=self.center.dtype, device=self.center.device)[None, :, :] - self.maps
        shift = (self.center[None, :] - self.means)[:, :, None]
        edits = xp.concat([moved * self.scale[None, None, :], shift], axis=2) / self.scale[None, :, None]
        spread = xp.sum(edits @ xp.permute_dims(edits, (0, 2, 1)), axis=0)
        return rank_psd(spread) if bool(xp.any(spread != 0)) else 0

    def drawn(self, number: int) -> TransportEraser:
        """Itself: nothing is drawn at random."""
        return self

    def to(self, device: Any = None, dtype: Any = None) -> TransportEraser:
        """The maps on another device (as PyTorch tensors; "numpy" for NumPy) or in another dtype."""
        arrays = {name: placed(getattr(self, name), device, dtype) for name in ARRAYS}
        about = {name: getattr(self, name) for name in ("names", "concept", "info", "feature_names")}
        return TransportEraser(**arrays, **about)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file that `excise.load` reads; a crash leaves no half file."""
        about = {
            "info": self.info,
            "names": list(self.names),
            "concept": self.concept.to_dict(),
            "feature_names": None if self.feature_names is None else list(self.feature_names),
        }
        files.write(path, "TransportEraser", {name: getattr(self, name) for name in ARRAYS}, about)

    @staticmethod
    def from_stored(arrays: dict[str, Array], about: dict[str, Any]) -> TransportEraser:
        names = tuple(tuple(n) if isinstance(n, list) else n for n in about["names"])
        k, d = len(names), arrays["center"].shape[0]
        check_stored(arrays, {"maps": (k, d, d), "means": (k, d), "covs": (k, d, d), "scale": (d,)})
        concept = Concept.from_dict(about["concept"])
        return TransportEraser(
            **arrays, names=names, concept=concept, info=about["info"], feature_names=read_names(about)
        )

    def __repr__(self) -> str:
        return f"TransportEraser(d={self.d}, classes={len(self.names)})"


def _restored(exact: Array, rows: Rows) -> Any:
    xp = namespace(rows.values)
    dtype = rows.values.dtype
    with np.errstate(over="ignore"):
        out = xp.astype(exact, dtype) if rows.seed is None else round_randomly(exact, dtype, (rows.seed, 0))
    if not bool(xp.all(xp.isfinite(out))):
        raise refuse_not_finite(rows.values)
    return rows.restore(out)
