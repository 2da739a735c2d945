"""Dask arrays and data frames: fit and apply without ever having them in one place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from excise.concepts.concept import Concept
from excise.data.fitting import fit_gathered, fit_table
from excise.data.gathering import Gathered, Recipe
from excise.data.opening import open_table
from excise.data.table import Table
from excise.distributed.dask_files import gather_on
from excise.distributed.reducing import reduce_parts
from excise.distributed.scheduler import require_dask
from excise.erasers.protocol import Eraser
from excise.errors import ConceptError, ExciseError, InputError
from excise.methods.table import Needs, check_method
from excise.moments.class_moments import ClassMoments
from excise.moments.moments import Moments

__all__ = ["apply", "blocks_of", "fit", "moments"]

Columns = Sequence[str] | None


def fit(
    X: Any,
    z: Any = None,
    method: str = "leace",
    features: Columns = None,
    concept: Columns = None,
    kind: Any = None,
    client: Any = None,
    **options: Any,
) -> Eraser:
    """Fit an eraser on a Dask array or data frame, or on files, with a tree of sums.

    Args:
        X: a Dask array (n, d), a Dask data frame, a `Table`, or whatever `open_table` opens (a folder, a glob, a URL).
        z: a Dask or NumPy array, a Dask series or frame of labels with the same partitions; or None for `concept`.
        features, concept: columns of a frame or of files. Features are all columns that are not the concept unless given.
        client: a `distributed.Client`; without one, whatever scheduler Dask is set to.
        method, kind, options: as for `excise.fit`.

    Raises:
        ExciseError: the method needs the rows themselves, or the input is bad.
    """
    if isinstance(X, (str, os.PathLike)):
        X, z = open_table(X, z, features, concept), None
    if isinstance(X, Table):
        return fit_table(X, method, kind=kind, run=gather_on(client), **options).eraser
    found = check_method(method, options)
    needs = found.needs_with(options)
    if needs == "rows" or found.uses_task == "must":
        raise ExciseError(
            f"method {method!r} is not fitted from sums of moments: fit it with excise.fit on a sample of the rows"
        )
    return fit_gathered(_gathered(X, z, features, concept, kind, needs, client), method, **options)


def moments(
    X: Any,
    z: Any = None,
    features: Columns = None,
    concept: Columns = None,
    kind: Any = None,
    client: Any = None,
    needs: Needs = "moments",
) -> Moments | ClassMoments:
    """Moments of a Dask array or data frame; arguments as for `fit`. `needs="class moments"` gives ClassMoments."""
    return _gathered(X, z, features, concept, kind, needs, client).main


def _gathered(X: Any, z: Any, features: Columns, concept: Columns, kind: Any, needs: Needs, client: Any) -> Gathered:
    pairs = blocks_of(X, z, features, concept)
    recipe = Recipe(needs, first_concept(pairs, kind))
    total: Gathered = reduce_parts(of_block, [(x, labels, recipe) for x, labels in pairs], client)
    if total.is_empty:
        raise InputError("X has no rows", code="no-rows")
    return total


def of_block(x: Any, labels: Any, recipe: Recipe) -> Gathered:
    """What a worker does with one block of rows."""
    out = recipe.start()
    if len(x):
        out.update(x, labels)
    return out


def first_concept(pairs: list[tuple[Any, Any]], kind: Any) -> Concept:
    """The concept of the first block that has rows: its kind holds for all."""
    import dask

    for _, labels in pairs:
        known = dask.compute(labels)[0]
        if len(known):
            return Concept.of(known, kind=kind)
    raise ConceptError("labels are empty: pass one label per row", code="no-labels")


def blocks_of(X: Any, z: Any, features: Columns, concept: Columns) -> list[tuple[Any, Any]]:
    """Delayed (x, labels) of every block of rows.

    Raises:
        InputError, ConceptError: not Dask collections of the same partitions.
    """
    require_dask()
    if hasattr(X, "to_delayed") and hasattr(X, "columns"):
        return _frame_blocks(X, z, features, concept)
    if not (hasattr(X, "to_delayed") and hasattr(X, "chunks")):
        raise InputError(f"X must be a Dask array or data frame, files, or a Table, got {type(X).__name__}")
    if z is None:
        raise ConceptError("no labels: pass z, one label per row", code="no-labels")
    if X.ndim != 2:
        raise InputError(f"X has {X.ndim} dimensions: expected (n, d)", code="feature-shape")
    X = X.rechunk({1: -1})
    rows = X.chunks[0]
    return list(zip(X.to_delayed().ravel(), _label_blocks(z, rows), strict=True))


def _label_blocks(z: Any, rows: tuple[Any, ...]) -> list[Any]:
    import dask.array as da

    if not hasattr(z, "to_delayed"):
        z = da.from_array(np.asarray(z), chunks=(rows, *[-1] * (np.ndim(z) - 1)))
    elif hasattr(z, "chunks"):
        if not np.isnan(rows).any():
            if z.shape[0] != sum(rows):
                raise ConceptError(
                    f"X has {sum(rows)} rows, but there are {z.shape[0]} labels: pass one label per row",
                    code="row-count",
                )
            z = z.rechunk((rows, *[-1] * (z.ndim - 1)))
        return list(z.to_delayed().ravel())
    blocks = list(z.to_delayed().ravel() if hasattr(z, "chunks") else z.to_delayed())
    if len(blocks) != len(rows):
        raise ConceptError(
            f"X has {len(rows)} blocks of rows, the labels have {len(blocks)}: repartition them alike", code="row-count"
        )
    return blocks


def _frame_blocks(X: Any, z: Any, features: Columns, concept: Columns) -> list[tuple[Any, Any]]:
    names = list(X.columns)
    labels = [concept] if isinstance(concept, str) else list(concept or [])
    missing = [name for name in [*labels, *(features or [])] if name not in names]
    if missing:
        raise InputError(f"X has no column {missing[0]!r}; it has {', '.join(map(str, names))}", code="missing-column")
    if (z is None) == (not labels):
        raise ConceptError(
            "pass the labels as z, or name columns of X as the concept: one of the two", code="no-labels"
        )
    chosen = list(features) if features else [name for name in names if name not in labels]
    blocks = X[chosen].to_delayed()
    if z is not None:
        return list(zip(blocks, _label_blocks(z, tuple([np.nan] * len(blocks))), strict=True))
    beside = X[labels[0] if len(labels) == 1 else labels].to_delayed()
    return list(zip(blocks, beside, strict=True))


def apply(eraser: Eraser, X: Any, z: Any = None) -> Any:
    """The erased collection, as lazy as X: a Dask array or data frame of the same chunks, dtype and names.

    Args:
        eraser: of any method.
        X: a Dask array (n, d), or a data frame that has the columns of the fit.
        z: a Dask array of labels, for the erasers that need them.

    Raises:
        InputError: another number of features.
        ConceptError: the eraser needs labels and there are none.
    """
    require_dask()
    if eraser.needs_labels and z is None:
        raise ConceptError("this eraser needs the label of every row: pass z", code="labels-needed")
    if hasattr(X, "columns"):
        if eraser.needs_labels:
            return X.map_partitions(eraser, z, meta=X._meta)
        return X.map_partitions(eraser, meta=X._meta)
    if X.shape[-1] != eraser.d:
        raise InputError(f"X has {X.shape[-1]} features, the eraser was fitted on {eraser.d}", code="feature-count")
    X = X.rechunk({X.ndim - 1: -1})
    if not eraser.needs_labels:
        return X.map_blocks(eraser, dtype=X.dtype, meta=X._meta)
    import dask.array as da

    z = z if hasattr(z, "chunks") else da.from_array(np.asarray(z), chunks=X.chunks[0])
    z = z.rechunk((X.chunks[0], *[-1] * (z.ndim - 1)))
    if z.ndim == 1:
        z = z[:, None]
    return da.map_blocks(_with_labels, X, z, eraser=eraser, dtype=X.dtype, meta=X._meta, chunks=X.chunks)


def _with_labels(x: Any, z: Any, eraser: Any) -> Any:
    return eraser(x, z[:, 0] if z.shape[1] == 1 else z)
