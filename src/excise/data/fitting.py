"""From files to an eraser, by any method: in one pass where moments are enough, on a sample where the rows are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from excise.data import labels as label_pieces
from excise.data.array_files import open_arrays
from excise.data.bad_rows import BadRows
from excise.data.gathering import Gathered, gather, learn_recipe
from excise.data.locations import find_files
from excise.data.table import Table
from excise.erasers.affine import AffineEraser
from excise.erasers.protocol import Eraser
from excise.errors import ConceptError, ExciseError
from excise.fitting import fit, fit_batches, fit_moments
from excise.methods.special import check_special
from excise.methods.table import Method, check_method
from excise.moments.moments import Moments
from excise.numerics.arrays import host

__all__ = ["Fitted", "check_table_method", "fit_gathered", "fit_table", "sample"]

SAMPLE = 100_000  # rows for the methods that train on them


@dataclass(frozen=True)
class Fitted:
    """An eraser, and what it was fitted on."""

    eraser: Eraser
    rows: int  # that the eraser was fitted on
    of: int  # rows of the files
    bad: BadRows
    gathered: Gathered | None


def check_table_method(method: str, options: dict[str, Any], task: bool) -> Method:
    """The method behind a name, for tables.

    Raises:
        ExciseError: an unknown method or option; a task that is missing, or has no use.
    """
    found = check_method(method, options)
    if found.uses_task == "must" and not task:
        raise ExciseError(f"method {method!r} needs the task: name its column with --task", code="no-task")
    if found.uses_task == "no" and task:
        raise ExciseError(f"method {method!r} has no use for the task: leave --task out", code="no-task")
    return found


def fit_table(
    table: Table,
    method: str = "leace",
    kind: Any = None,
    sample_rows: int = SAMPLE,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    checkpoint: Any = None,
    run: Callable[..., Gathered] = gather,
    track_all: bool = False,
    task_kind: Any = None,
    **options: Any,
) -> Fitted:
    """Fit an eraser on a table.

    Args:
        table: with labels; from `open_table`.
        method: as in `excise.fit`. INLP and RLACE train on rows: they are fitted on a uniform sample of `sample_rows`.
        kind: "categorical" or "continuous" if it cannot be inferred from the labels.
        seed: of that sample.
        progress: called with the rows of every batch.
        checkpoint: a `Checkpoint`, for the methods that need one pass.
        run: who makes the pass: `gather`, or a cluster.
        track_all: gather the d x d covariance even if this method does not need it.
        task_kind: as `kind`, for the task.
        options: of the method.

    Raises:
        ExciseError: bad input; the message says what was found and what to do.

    >>> import numpy as np, tempfile, pathlib, excise.data
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> z = np.arange(1000) % 2
    >>> np.savez(folder / "both.npz", X=np.random.default_rng(0).standard_normal((1000, 3)) + z[:, None], z=z)
    >>> fitted = fit_table(excise.data.open_table(folder / "both.npz", concept="z"))
    >>> fitted.rows, fitted.eraser.rank, fitted.eraser.info["columns"]
    (1000, 1, ['X'])
    """
    found = check_table_method(method, options, table.has_task)
    needs = found.needs_with(options)
    if needs == "rows":
        if checkpoint is not None:
            raise ExciseError(f"method {method!r} trains on a sample of the rows, in memory: leave the checkpoint out")
        return _fit_sample(table, method, kind, sample_rows, seed, progress, options)
    recipe = learn_recipe(table, "moments" if track_all and needs == "variances" else needs, kind, task_kind)
    more = {} if checkpoint is None else {"checkpoint": checkpoint}
    gathered = run(table, recipe, progress=progress, **more)
    eraser = described(fit_gathered(gathered, method, **options), table)
    _refuse_everything(eraser, int((host(m.var_x) > 0).sum()) if isinstance(m := gathered.main, Moments) else table.d)
    return Fitted(eraser, gathered.rows - gathered.bad.count, gathered.rows, gathered.bad, gathered)


def _refuse_everything(eraser: Eraser, varying: int) -> None:
    """What a fit in memory warns of is an error here, where nobody may be looking.

    Raises:
        ConceptError: the concept takes all dimensions of the features, so that every row would come out the same.
    """
    if isinstance(eraser, AffineEraser) and eraser.info.get("strength", 1.0) == 1.0 and 0 < varying <= eraser.rank:
        raise ConceptError(
            f"everything would be erased: the concept ({eraser.info['k']} columns) takes all {varying} dimensions of the features, so every "
            f"row would become the same. Are these the labels? Pass one label per row, fewer classes or more features",
            code="all-erased",
        )


def fit_in_passes(
    table: Table,
    method: str = "leace",
    kind: Any = None,
    normalize: bool = False,
    condition_on: str | bool = False,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> Fitted:
    """Fit what needs several passes over a table: unit vectors (`normalize`), or erasure within the classes of a task.

    Args:
        condition_on: True for the task of the table, or a .npy file with one class per row.

    Raises:
        ExciseError: bad input; rows that are dropped cannot be matched with a file of classes.
    """
    check_special(method, options, normalize, bool(condition_on))
    if not table.has_labels:
        raise ConceptError("no labels: pass a second file, or name the column(s) of X with --concept", code="no-labels")
    classes = _classes(str(condition_on), table) if isinstance(condition_on, str) else None
    bad = BadRows()

    def batches() -> Any:
        nonlocal bad
        bad, at = BadRows(), 0
        for batch in table.stream(again=False):
            bad += batch.bad
            own = batch.y if classes is None else np.asarray(classes[at : at + batch.count])
            at += batch.count
            if progress is not None:
                progress(batch.count)
            if len(batch.X):
                yield (batch.X, batch.z, own) if condition_on else (batch.X, batch.z)

    eraser = fit_batches(
        batches, kind=kind, normalize=normalize, conditional=bool(condition_on), method=method, **options
    )
    _refuse_everything(eraser, table.d)
    return Fitted(described(eraser, table), table.n - bad.count, table.n, bad, None)


def _classes(path: str, table: Table) -> Any:
    if table.skip_bad:
        raise ExciseError(
            "--skip-bad drops rows, which a file of classes would not follow: put them into a column of DATA"
        )
    classes = open_arrays(find_files(path)[0])[""].whole()
    if classes.ndim != 1 or len(classes) != table.n:
        raise ConceptError(f"{path} has shape {classes.shape}, expected ({table.n},): one class per row")
    return classes


def fit_gathered(gathered: Gathered, method: str, **options: Any) -> Eraser:
    """An eraser from what a pass has gathered."""
    return fit_moments(gathered.main, method, task=gathered.task, **options)


def described(eraser: Eraser, table: Table) -> Eraser:
    """The eraser with the names of the columns that it was fitted on."""
    info = dict(eraser.info)
    if table.columns and table.feature_names is None:
        info["columns"] = list(table.columns)
    if table.concept_columns:
        info["concept_columns"] = list(table.concept_columns)
    known: set[str] = {f.name for f in fields(eraser)} if is_dataclass(eraser) else set()
    names = {"feature_names": table.feature_names} if "feature_names" in known and table.feature_names else {}
    return replace(eraser, info=info, **names)  # type: ignore[type-var]


def sample(table: Table, rows: int, seed: int = 0, progress: Callable[[int], None] | None = None) -> Any:
    """(X, z, y, bad): a uniform sample of the rows of a table, in their order; all of them where there are no more.

    Raises:
        InputError: rows that cannot be used, unless they are to be dropped.
    """
    if rows < 2:
        raise ExciseError(f"a sample must have at least 2 rows, got {rows}")
    n = table.n
    chosen = np.arange(n) if n <= rows else np.sort(np.random.default_rng(seed).choice(n, rows, replace=False))
    kept: list[tuple[Any, Any, Any]] = []
    bad, before, file = BadRows(), 0, 0
    starts = np.cumsum([0, *(source.rows for source in table.sources)])
    for batch in table.stream():
        file = batch.file
        before = int(starts[file]) + batch.begin
        inside = chosen[np.searchsorted(chosen, before) : np.searchsorted(chosen, before + batch.count)] - before
        # Where rows were dropped, the sample takes as many of the others.
        inside = inside[inside < len(batch.X)]
        if len(inside):
            good = np.zeros(len(batch.X), dtype=bool)
            good[inside] = True
            kept.append((np.array(batch.X[good]), _kept(batch.z, good), _kept(batch.y, good)))
        bad += batch.bad
        if progress is not None:
            progress(batch.count)
    X = np.concatenate([part[0] for part in kept])
    return X, _joined([part[1] for part in kept]), _joined([part[2] for part in kept]), bad


def _kept(labels: Any, good: Any) -> Any:
    if labels is None or isinstance(labels, dict) or hasattr(labels, "column_names"):
        return label_pieces.keep(labels, good)
    return labels.filter(good) if hasattr(labels, "filter") else np.array(labels[good])


def _joined(parts: list[Any]) -> Any:
    if not parts or parts[0] is None:
        return None
    if hasattr(parts[0], "chunks"):  # one column of a table
        import pyarrow as pa

        return pa.chunked_array([chunk for part in parts for chunk in part.chunks])
    return label_pieces.join(parts)


def _fit_sample(
    table: Table, method: str, kind: Any, rows: int, seed: int, progress: Any, options: dict[str, Any]
) -> Fitted:
    if not table.has_labels:
        raise ConceptError("no labels: pass a second file, or name the column(s) of X with --concept", code="no-labels")
    X, z, y, bad = sample(table, rows, seed, progress)
    n = table.n
    eraser = described(fit(X, z, method, y=y, kind=kind, **options), table)
    if len(X) < n - bad.count:
        eraser.info["sample"] = {"rows": len(X), "of": n, "seed": seed}
    return Fitted(eraser, len(X), n, bad, None)
