"""What every method does with Moments: refuse what cannot be erased, warn, describe the result."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from excise._array import Array, describe_device, host, namespace
from excise._files import versions
from excise.errors import ConceptError, ExciseError, ExciseWarning, InputError
from excise.moments import Moments

__all__ = [
    "canonical_correlation",
    "check_strength",
    "check_whole",
    "correlation_matrix",
    "describe",
    "greatest_correlation",
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
    if hidden > 0.05:
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


def greatest_correlation(X: Any, codes: Any) -> float:
    """Greatest |correlation| of a feature (NumPy, float64) with a class; features that hardly vary count too."""
    Z = np.eye(int(codes.max()) + 1)[codes]
    Xc, Zc = X - X.mean(axis=0), Z - Z.mean(axis=0)
    sizes = np.linalg.norm(Xc, axis=0)
    noise = 1e-13 * np.linalg.norm(X, axis=0)  # a constant, to rounding
    c = (
        np.abs(Xc.T @ Zc)
        / np.where(sizes > noise, sizes, np.inf)[:, None]
        / np.maximum(np.linalg.norm(Zc, axis=0), 1e-300)
    )
    return float(c.max(initial=0.0))


def canonical_correlation(X: Any, codes: Any) -> float:
    """Greatest canonical correlation of features (NumPy, float64) with classes, by singular values of the data."""
    Z = np.eye(int(codes.max()) + 1)[codes]
    Xc = X - X.mean(axis=0)
    sizes = np.linalg.norm(Xc, axis=0)
    varies = sizes > 1e-13 * np.linalg.norm(X, axis=0)
    if not varies.any():
        return 0.0
    Q, s, _ = np.linalg.svd(Xc[:, varies] / sizes[varies], full_matrices=False)
    W, t, _ = np.linalg.svd(Z - Z.mean(axis=0), full_matrices=False)
    return float(np.linalg.svd(Q[:, s > 1e-10 * s[0]].T @ W[:, t > 1e-10 * t[0]], compute_uv=False)[0])


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
