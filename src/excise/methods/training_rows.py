"""Rows for the methods that train on them (INLP, RLACE): float64, centred, one unit for all features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.concepts.concept import Concept
from excise.errors import InputError
from excise.methods.checks import read_classes, warn_fingerprints
from excise.moments.fingerprints import Fingerprints
from excise.moments.labelled_rows import read_labelled_rows
from excise.moments.statistics import not_finite
from excise.numerics.arrays import Array, namespace

__all__ = ["TrainingRows", "read_training_rows"]


@dataclass(frozen=True)
class TrainingRows:
    """An orthogonal projection of rows that were centred and divided by one number is one of the rows themselves."""

    X: Array  # (n, d) float64, centred, of unit mean variance
    like: Array  # the rows as they came
    codes: Any  # (n,) classes
    concept: Concept
    lead: tuple[int, ...]
    feature_names: tuple[str, ...] | None

    @property
    def classes(self) -> tuple[Any, ...]:
        return self.concept.names

    @property
    def n(self) -> int:
        return int(self.X.shape[0])

    @property
    def d(self) -> int:
        return int(self.X.shape[1])


def read_training_rows(X: Any, z: Any, kind: Any = None) -> TrainingRows:
    """
    Raises:
        InputError: NaN or infinity, constant features only, or not a real dense array.
        ConceptError: not one column of classes, one class only, or another number of labels than rows.
    """
    given = read_labelled_rows(X, z=z)
    xp = namespace(given.rows)
    data = xp.astype(given.rows, xp.float64)
    if not bool(xp.all(xp.isfinite(data))):
        raise not_finite(given.rows)
    warn_fingerprints(Fingerprints.of(given.rows), False, "training", given.names)
    concept, codes = read_classes(z, given.lead, data.shape[0], kind)
    with np.errstate(over="ignore", invalid="ignore"):
        centred = data - xp.mean(data, axis=0)
        unit = float(xp.sqrt(xp.mean(centred**2)))
    if unit == 0.0 or not np.isfinite(unit):
        raise InputError("X is constant, or its squares overflow: there is nothing to project")
    return TrainingRows(centred / unit, given.rows, codes, concept, given.lead, given.names)
