"""What changes the promise of a method: unit vectors (`normalize`) and erasure within classes (`condition_on`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from excise.concepts.concept import Concept
from excise.concepts.encoded import Encoded
from excise.erasers.affine import AffineEraser
from excise.errors import ExciseError, InputError
from excise.methods.checks import json_names, warn_fingerprints
from excise.methods.leace import leace
from excise.methods.sal import sal
from excise.methods.unit_vectors import leace_for_unit_vectors, shift_for
from excise.methods.weighted_rows import Batch, WeightedRows
from excise.moments.conditional import ConditionalMoments
from excise.moments.labelled_rows import check_weight, flat_labels, read_labelled_rows, refuse_features_as_labels
from excise.moments.moments import Moments

__all__ = ["check_special", "fit_batches", "fit_conditional", "fit_special"]

CONDITIONAL: dict[str, Callable[..., AffineEraser]] = {"leace": leace, "sal": sal}
UNIT_OPTIONS = ("shrinkage", "max_rounds")


def check_special(method: str, options: dict[str, Any], normalize: bool, conditional: bool) -> None:
    """Refuse what `normalize` and `condition_on` do not go with.

    Raises:
        ExciseError: another method than these, or an option that has no meaning there.
    """
    if normalize and method != "leace":
        raise ExciseError(
            f"normalize=True is for method 'leace', not {method!r}: it changes what is solved", code="option"
        )
    if conditional and method not in CONDITIONAL:
        raise ExciseError(f"condition_on is for the methods {', '.join(CONDITIONAL)}, not {method!r}", code="option")
    unknown = [name for name in options if normalize and name not in UNIT_OPTIONS]
    if unknown:
        raise ExciseError(
            f"normalize=True has no option {unknown[0]!r}; it has {', '.join(UNIT_OPTIONS)}", code="option"
        )


def fit_conditional(c: ConditionalMoments, method: str = "leace", **options: Any) -> AffineEraser:
    """An eraser of z within the classes of y, from ConditionalMoments.

    Raises:
        ConceptError: a class of y with one group only.
    """
    check_special(method, {}, False, True)
    c.require_groups()
    return _named(CONDITIONAL[method](c.to_moments(), **options), c)


def _named(eraser: AffineEraser, c: ConditionalMoments) -> AffineEraser:
    """The concept of the eraser is z; `info` says within what."""
    about = {"classes": json_names(c.concept.names), "k": c.concept.k, "concept_kind": c.concept.kind}
    given = {"classes": json_names(c.names), "rows": c.counts}
    return replace(eraser, concept=c.concept, info={**eraser.info, **about, "condition_on": given})


def fit_special(
    X: Any,
    z: Any,
    method: str,
    sample_weight: Any,
    kind: Any,
    normalize: bool,
    condition_on: Any,
    options: dict[str, Any],
) -> AffineEraser:
    """`fit` with normalize or condition_on, on rows in memory."""
    given = read_labelled_rows(X, z=z)
    labels = flat_labels(z, given.lead)
    concept, encoded = Concept.learn(labels, kind=kind)
    refuse_features_as_labels(concept, encoded, given.rows.shape[1])
    weight = check_weight(sample_weight, given.rows.shape[0])
    conditional = None
    if condition_on is not None:
        y = flat_labels(condition_on, given.lead)
        conditional = ConditionalMoments(concept).update(X, z, condition_on, weight)
        conditional.require_groups()
        m, encoded = conditional.to_moments(), conditional.columns(labels, y)
    else:
        m = Moments().update_encoded(given.rows, concept, encoded, weight, given.names)
    warn_fingerprints(m.fingerprints, False, method, given.names)
    if normalize:
        batch = Batch(given.rows, encoded, weight)
        rows = WeightedRows(lambda: iter([batch]), shift_for(m), m.mean_z, m.mean_x)
        eraser = leace_for_unit_vectors(m, rows, **options)
    else:
        eraser = CONDITIONAL[method](m, **options)
    return eraser if conditional is None else _named(eraser, conditional)


def fit_batches(
    batches: Iterable[Any] | Callable[[], Iterable[Any]],
    kind: Any = None,
    normalize: bool = False,
    conditional: bool = False,
    method: str = "leace",
    **options: Any,
) -> AffineEraser:
    """An eraser from data that do not fit into memory, in as many passes as it takes.

    Args:
        batches: a list, a data set or a function that gives the batches anew each time: (X, z), (X, z, weight), or with
            `conditional` (X, z, y) and (X, z, y, weight). A generator ends after one pass and is refused.
        kind: of the concept, if it cannot be inferred from the first batch.
        normalize: as in `fit`: one pass for the moments, then one per round.
        conditional: the third part of every batch is the class within which z is erased.
        method, options: as in `fit`.

    Raises:
        ExciseError: as `fit`; and if a second pass gives other rows than the first.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> z = rng.integers(0, 2, (4, 500))
    >>> parts = [(rng.standard_normal((500, 5)) + labels[:, None], labels) for labels in z]
    >>> eraser = fit_batches(parts, normalize=True)
    >>> u = eraser(np.concatenate([X for X, _ in parts]))
    >>> bool(abs(u[z.ravel() == 1].mean(0) - u[z.ravel() == 0].mean(0)).max() < 1e-10)
    True
    """
    check_special(method, options, normalize, conditional)
    start = _starter(batches)
    c = m = None
    for X, z, y, weight in _parts(start, conditional):
        if m is None and c is None:
            learnt = Concept.of(z, kind=kind) if kind is not None else None
            c, m = (ConditionalMoments(learnt), None) if conditional else (None, Moments(concept=learnt))
        if c is not None:
            c.update(X, z, y, weight)
        elif m is not None:
            m.update(X, z, weight)
    if m is None and c is None:
        raise InputError("there are no batches", code="no-rows")
    if c is not None:
        c.require_groups()
        m = c.to_moments()
    assert m is not None
    whole = m

    def again() -> Iterator[Batch]:
        seen = 0
        for X, z, y, weight in _parts(start, conditional):
            given = read_labelled_rows(X, whole.d, whole.feature_names)
            labels = flat_labels(z, given.lead)
            encoded: Encoded = (
                c.columns(labels, flat_labels(y, given.lead)) if c is not None else whole.concept.read(labels)
            )
            seen += given.rows.shape[0]
            yield Batch(given.rows, encoded, check_weight(weight, given.rows.shape[0]))
        if seen < whole.rows:
            raise InputError(
                f"the batches gave {whole.rows} rows at first and {seen} in a later pass: pass something that starts anew "
                f"each time (a list, a data set, a function), not a generator",
                code="not-repeatable",
            )

    warn_fingerprints(m.fingerprints, False, method, m.feature_names)
    if normalize:
        rows = WeightedRows(again, shift_for(m), m.mean_z, m.mean_x, in_memory=False)
        eraser = leace_for_unit_vectors(m, rows, **options)
    else:
        eraser = CONDITIONAL[method](m, **options)
    return eraser if c is None else _named(eraser, c)


def _starter(batches: Any) -> Callable[[], Iterable[Any]]:
    if callable(batches):
        return batches  # type: ignore[no-any-return]
    if isinstance(batches, Iterator):
        raise InputError(
            "batches is a generator, which ends after one pass: pass a list, a data set, or a function that starts it anew",
            code="not-repeatable",
        )
    return lambda: batches


def _parts(start: Callable[[], Iterable[Any]], conditional: bool) -> Iterator[tuple[Any, Any, Any, Any]]:
    for batch in start():
        parts = list(batch)
        least = 3 if conditional else 2
        if not least <= len(parts) <= least + 1:
            raise InputError(
                f"a batch has {len(parts)} parts, expected (X, z{', y' if conditional else ''}) and perhaps weights"
            )
        X, z = parts[:2]
        yield X, z, parts[2] if conditional else None, parts[least] if len(parts) > least else None
