"""OracleEraser: an edit that depends on the label of the row."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from excise import files
from excise.concepts.concept import Concept
from excise.erasers.apply import Constants, subtract_by_label
from excise.erasers.protocol import check_stored, needs_gradient, placed, read_names, read_rows, with_gradient_of
from excise.numerics.arrays import Array, host, namespace
from excise.numerics.correlation import basis, scales

__all__ = ["OracleEraser"]


@dataclass(frozen=True, eq=False)
class OracleEraser:
    """r(x, z) = x - coefficients @ (z - mean_z): needs the label of every row when it is applied."""

    coefficients: Array  # (d, k)
    mean_z: Array  # (k,)
    concept: Concept
    info: dict[str, Any] = field(default_factory=dict)
    feature_names: tuple[str, ...] | None = None
    emptied: Array | None = None  # (m,) numbers of features that are a function of the label alone, ascending
    constants: Array | None = None  # (m,) what they come out as

    needs_labels = True

    def __call__(
        self, X: Any, z: Any = None, *, rounding: str = "nearest", rounding_seed: int | None = None, seed: Any = None
    ) -> Any:
        """Erase from X (..., d) with one label per row; the same library, dtype, device and shape come back.

        Args:
            X: features; of a data frame the fitted columns are taken by name.
            z: one label per row, of the classes that were fitted.
            rounding, rounding_seed: as for `AffineEraser`.

        Raises:
            InputError: another number of features, NaN or infinity.
            ConceptError: no labels, labels of another number than rows, or of a class that was not fitted.
        """
        rows = read_rows(X, self.d, self.feature_names, rounding, rounding_seed if rounding_seed is not None else seed)
        labels = rows.labels(z, self.concept)
        out = subtract_by_label(rows.values, labels, self.coefficients, self.mean_z, rows.seed, self._constants)
        back = rows.restore(out)
        # The edit depends on the label alone.
        return with_gradient_of(back, rows.given) if needs_gradient(rows.given) else back

    @cached_property
    def _constants(self) -> Constants | None:
        if self.emptied is None or self.constants is None or not len(self.emptied):
            return None
        return Constants(host(self.emptied).astype(np.int64), host(self.constants))

    @property
    def d(self) -> int:
        return int(self.coefficients.shape[0])

    @property
    def rank(self) -> int:
        """Dimensions in which the edit lives; 0 is the identity."""
        scaled = self.coefficients / scales(namespace(self.coefficients).sum(self.coefficients**2, axis=1))[:, None]
        return int(basis(scaled)[0].shape[1])

    def drawn(self, number: int) -> OracleEraser:
        """Itself: nothing is drawn at random."""
        return self

    def to(self, device: Any = None, dtype: Any = None) -> OracleEraser:
        """The coefficients on another device (as PyTorch tensors; "numpy" for NumPy) or in another dtype."""
        coefficients, mean_z = (placed(f, device, dtype) for f in (self.coefficients, self.mean_z))
        return OracleEraser(
            coefficients, mean_z, self.concept, self.info, self.feature_names, self.emptied, self.constants
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file that `excise.load` reads; a crash leaves no half file."""
        arrays = {"coefficients": self.coefficients, "mean_z": self.mean_z}
        if self.emptied is not None and self.constants is not None:
            arrays |= {"emptied": self.emptied, "constants": self.constants}
        names = None if self.feature_names is None else list(self.feature_names)
        about = {"info": self.info, "concept": self.concept.to_dict(), "feature_names": names}
        files.write(path, "OracleEraser", arrays, about)

    @staticmethod
    def from_stored(arrays: dict[str, Array], about: dict[str, Any]) -> OracleEraser:
        concept = Concept.from_dict(about["concept"])
        d = arrays["coefficients"].shape[0]
        check_stored(arrays, {"coefficients": (d, concept.k), "mean_z": (concept.k,)})
        return OracleEraser(
            arrays["coefficients"],
            arrays["mean_z"],
            concept,
            about["info"],
            read_names(about),
            arrays.get("emptied"),
            arrays.get("constants"),
        )

    def __repr__(self) -> str:
        return f"OracleEraser(d={self.d}, k={self.concept.k})"
