"""What every method does with Moments: refuse what cannot be erased, warn, describe the result."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from excise._array import Array, describe_device, host, namespace
from excise._files import versions
from excise._linalg import HIDDEN
from excise.concept import Concept
from excise.errors import ConceptError, ExciseError, ExciseWarning, InputError
from excise.moments import Moments, flat_labels

__all__ = [
    "check_strength",
    "check_whole",
    "class_codes",
    "correlation_matrix",
    "describe",
    "require_concept",
    "warn_few_rows",
    "warn_hidden",
    "warn_left",
    "warn_rank_zero",
]

ROWS_PER_FEATURE = 10


def require_concept(m: Moments) -> None:
    """There must be at least two rows, and a concept that varies.

    Raises:
        InputError: no rows, or one.
        ConceptError: one class, or a continuous concept that is constant.
    """
    if not isinstance(m, Moments):
        raise InputError(f"expected Moments, got {type(m).__name__}: Moments().update(X, z), or use excise.fit(X, z)")
    if m.rows < 2:
        raise InputError(f"{m.rows} sample (row) of data is too few: at least two are needed to erase a concept")
    xp = namespace(m.cov_zz)
    varying = host(xp.linalg.diagonal(m.cov_zz)) > 0
    if not varying.any():
        present = [name for name, share in zip(m.concept.names, host(m.mean_z).tolist(), strict=True) if share > 0]
        if m.concept.kind == "categorical" and len(present) == 1:
            raise ConceptError(
                f"concept has one class only ({present[0]!r}, {m.rows} rows): nothing can be erased; pass labels with at "
                f"least two classes"
            )
        raise ConceptError(f"concept is constant over all {m.rows} rows: nothing can be erased; pass labels that vary")


def warn_few_rows(m: Moments) -> None:
    assert m.d is not None
    if m.n < ROWS_PER_FEATURE * m.d:
        warnings.warn(
            f"{m.n:g} rows for {m.d} features: the concept is gone from these rows, but on new ones a linear model can "
            f"expect to find about d/n = {min(1.0, m.d / m.n):.2g} of the variance again; more rows help",
            ExciseWarning,
            stacklevel=4,
        )


def warn_hidden(hidden: float) -> None:
    if hidden > HIDDEN:
        warnings.warn(
            f"the concept shows in directions of X that hardly vary (below what the arithmetic can resolve; canonical "
            f"correlation about {min(1.0, hidden):.2g}): it is erased, but by a larger edit than the smallest possible; pass X as "
            f"float64, or drop features that are almost copies of others",
            ExciseWarning,
            stacklevel=4,
        )


def check_strength(strength: float) -> None:
    if isinstance(strength, str) or not np.isfinite(strength):
        raise ExciseError(f"strength must be a finite number, got {strength!r}")


def check_whole(name: str, value: Any, least: int) -> None:
    """Raises ExciseError unless `value` is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ExciseError(f"{name} must be a whole number of at least {least}, got {value!r}")


def warn_left(before: float, after: float, by_chance: float, method: str) -> None:
    """A classifier at chance is no proof: say so where least squares still finds the concept."""
    if after > max(0.5 * before, 3.0 * by_chance):
        warnings.warn(
            f"{method} stopped because its classifier found nothing, but the canonical correlation with the concept is still "
            f"{after:.2g} ({before:.2g} before): the classifier does not see features of small spread; standardise them, or use leace",
            ExciseWarning,
            stacklevel=3,
        )


def warn_rank_zero() -> None:
    warnings.warn(
        "nothing was erased (rank 0): the features have no linear relation with the concept on these rows",
        ExciseWarning,
        stacklevel=4,
    )


def correlation_matrix(m: Moments, D: Array) -> Array:
    """Correlation matrix of X, with 1 on the diagonal for constant features too. A fresh array: it may be used up."""
    xp = namespace(D)
    R = m.cov_xx
    R /= D[:, None]
    R /= D[None, :]
    constant = xp.astype(m.var_x <= 0, D.dtype)
    if bool(xp.any(constant > 0)):
        R = R + constant[:, None] * xp.eye(D.shape[0], dtype=D.dtype, device=D.device)
    return R


def class_codes(
    z: Any, lead: tuple[int, ...], n: int, kind: Any = None, what: str = "concept"
) -> tuple[Any, tuple[Any, ...]]:
    """Class of each row as a code, and the names.

    Raises:
        ConceptError: not one column of classes, one class only, or another number of labels than rows.
    """
    labels = flat_labels(z, lead)
    try:
        concept, encoded = Concept.of(labels, kind=kind).extend(labels)
    except ConceptError as error:
        raise ConceptError(f"{what}: {error}") from None
    if encoded.codes is None:
        raise ConceptError(f"{what}: one column of classes is needed, got a {concept.kind} one of {concept.k} columns")
    if encoded.n != n:
        raise ConceptError(f"X has {n} rows, but there are {encoded.n} labels ({what}): pass one label per row")
    if concept.k < 2:
        raise ConceptError(
            f"{what} has one class only ({concept.names[0]!r}, {n} rows): pass labels with at least two classes"
        )
    return encoded.codes, concept.names


def describe(m: Moments, method: str, **more: Any) -> dict[str, Any]:
    """`eraser.info`: plain JSON values only."""
    concept = m.concept
    return {
        "method": method,
        "n": m.n,
        "rows": m.rows,
        "d": m.d,
        "k": m.k,
        "concept_kind": concept.kind,
        "classes": [list(name) if isinstance(name, tuple) else name for name in concept.names],
        "device": describe_device(m.mean_x),
        "versions": versions(),
        **more,
    }
