"""What every method does with its input: refuse what cannot be erased, warn, describe the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from excise.concepts.concept import Concept
from excise.concepts.labels import Name
from excise.errors import ConceptError, ExciseError, InputError, warn
from excise.files import versions
from excise.moments.fingerprints import RARE_ROWS, Fingerprints
from excise.moments.labelled_rows import flat_labels
from excise.moments.moments import Moments
from excise.numerics.arrays import describe_device, host
from excise.numerics.correlation import FEW_ROWS

__all__ = [
    "check_number",
    "check_strength",
    "check_whole",
    "class_codes",
    "describe",
    "json_names",
    "read_classes",
    "require_concept",
    "warn_all_erased",
    "warn_few_rows",
    "warn_fingerprints",
    "warn_left",
    "warn_rank_zero",
]


LEAST_ROWS = 100  # in fewer rows nothing can be said of rare features


def require_concept(m: Moments, what: str = "concept") -> None:
    """There must be at least two rows, and a concept (or a task: `what`) that varies.

    Raises:
        InputError: no rows, or one.
        ConceptError: one class, or a continuous concept that is constant.
    """
    if not isinstance(m, Moments):
        raise InputError(f"expected Moments, got {type(m).__name__}: Moments().update(X, z), or use excise.fit(X, z)")
    if m.rows < 2:
        raise InputError(
            f"{m.rows} sample (row) of data is too few: at least two are needed to erase a concept", code="no-rows"
        )
    if not (host(m.var_z) > 0).any():
        aim = "erase" if what == "concept" else "keep"
        present = [name for name, share in zip(m.concept.names, host(m.mean_z).tolist(), strict=True) if share > 0]
        if m.concept.kind == "categorical" and len(present) == 1:
            raise ConceptError(
                f"{what} has one class only ({present[0]!r}, {m.rows} rows), so there is nothing to {aim}; pass labels with "
                f"at least two classes",
                code="one-class",
            )
        raise ConceptError(
            f"{what} is constant over all {m.rows} rows, so there is nothing to {aim}; pass labels that vary",
            code="one-class",
        )


def warn_few_rows(m: Moments, shrinkage: str = "none") -> None:
    """Say so where the guarantee on these rows says little about new ones."""
    assert m.d is not None
    rows = m.effective_rows
    if rows >= FEW_ROWS * m.d:
        return
    calmer = "" if shrinkage != "none" else "; shrinkage='auto' or 'oas' makes the edit of new rows smaller"
    warn(
        f"{rows:g} rows for {m.d} features: the concept is gone from these rows, but on new ones a linear model can "
        f"expect to find about d/n = {min(1.0, m.d / rows):.2g} of the variance again; more rows help{calmer}",
        code="few-rows",
    )


def warn_all_erased(rank: int, m: Moments) -> None:
    """Say so where nothing is left of the features."""
    varying = int((m.statistics.host_var_x > 0).sum())
    if 0 < varying <= rank:
        what = f"{m.k} classes" if m.concept.kind == "categorical" else f"{m.k} columns"
        warn(
            f"everything was erased: the concept ({what}) takes all {varying} dimensions of the features (rank {rank}), so "
            f"every feature becomes a constant; use fewer classes (kind='continuous' takes numbers as numbers), or more "
            f"features",
            code="all-erased",
        )


def warn_fingerprints(
    found: Fingerprints | None, labels_to_apply: bool, method: str, names: Sequence[str] | None
) -> None:
    """Say which features an edit would leave fingerprints on."""
    if found is None or found.rows < LEAST_ROWS:
        return
    few = np.flatnonzero(found.few_valued)
    if labels_to_apply and len(few):
        warn(
            f"{len(few)} feature(s) have few distinct values ({_shown(few, names)}): {method} shifts each class by an "
            f"amount of its own, so the fraction of such a value gives the class away to trees and look-ups; use leace, "
            f"condition_on, or leave them out",
            code="discrete-features",
        )
    rare = np.flatnonzero(found.rare())
    if len(rare):
        rows = found.least_varying[rare]
        warn(
            f"{len(rare)} feature(s) vary in fewer than {RARE_ROWS} rows ({_shown(rare, names)}; {int(rows.min())} to "
            f"{int(rows.max())} rows): in "
            f"new rows where they do not vary, the edit leaves a copy of the concept in them; drop them, pool rare "
            f"categories, or encode them otherwise",
            code="rare-features",
        )


def _shown(features: Any, names: Sequence[str] | None) -> str:
    shown = [repr(names[int(i)]) if names is not None else str(int(i)) for i in features[:4]]
    return ", ".join(shown) + (", ..." if len(features) > 4 else "")


def warn_left(before: float, after: float, by_chance: float, method: str) -> None:
    """A classifier at chance is no proof: say so where least squares still finds the concept."""
    if after > max(0.5 * before, 3.0 * by_chance):
        warn(
            f"{method} stopped because its classifier found nothing, but the canonical correlation with the concept is still "
            f"{after:.2g} ({before:.2g} before): the classifier does not see features of small variance; standardise them, or "
            f"use leace",
            code="still-there",
        )


def warn_rank_zero() -> None:
    warn(
        "nothing was erased (rank 0): the features have no linear relation with the concept on these rows",
        code="nothing-erased",
    )


def check_strength(strength: Any) -> None:
    check_number("strength", strength)


def check_number(name: str, value: Any, positive: bool = False) -> None:
    """Raises ExciseError unless `value` is a finite number (above zero where asked)."""
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not number or not np.isfinite(value) or (positive and value <= 0):
        raise ExciseError(
            f"{name} must be a {'positive' if positive else 'finite'} number, got {value!r}", code="option"
        )


def check_whole(name: str, value: Any, least: int) -> None:
    """Raises ExciseError unless `value` is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ExciseError(f"{name} must be a whole number of at least {least}, got {value!r}", code="option")


def read_classes(z: Any, lead: tuple[int, ...], n: int, kind: Any = None, what: str = "concept") -> tuple[Concept, Any]:
    """A concept of one column of classes, and the class of each row as a code.

    Raises:
        ConceptError: not one column of classes, one class only, or another number of labels than rows.
    """
    concept, codes = Concept.learn_classes(flat_labels(z, lead), what, n, kind=kind)
    if concept.k < 2:
        raise ConceptError(
            f"{what} has one class only ({concept.names[0]!r}, {n} rows): pass labels with at least two classes",
            code="one-class",
        )
    return concept, codes


def class_codes(
    z: Any, lead: tuple[int, ...], n: int, kind: Any = None, what: str = "concept"
) -> tuple[Any, tuple[Any, ...]]:
    """Class of each row as a code, and the names; as `read_classes`."""
    concept, codes = read_classes(z, lead, n, kind, what)
    return codes, concept.names


def json_names(names: Any) -> list[Name]:
    """Class names as JSON values: tuples become lists."""
    return [list(name) if isinstance(name, tuple) else name for name in names]


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
        "classes": json_names(concept.names),
        "device": describe_device(m.mean_x),
        "versions": versions(),
        **more,
    }
