"""Disjoint rows to fit an eraser, to train a probe and to test it: three parts, in rotation.

Two parts are not enough. A probe that is trained on the eraser's own rows finds nothing there by theorem; and if the
eraser has seen the test rows, what is left in them is the opposite of what is left in the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.auditing.audit_data import Target
from excise.errors import ConceptError, InputError

__all__ = ["FOLDS", "Part", "chosen_rows", "rotations"]

FOLDS = 5


@dataclass(frozen=True)
class Part:
    """Row numbers: `erase` fits the eraser (40%), `train` the probe (40%), `test` measures it (20%)."""

    erase: Any
    train: Any
    test: Any

    @property
    def unseen(self) -> Any:
        """All rows that the eraser was not fitted on."""
        return np.concatenate([self.train, self.test])


def chosen_rows(target: Target, most: int, seed: int) -> tuple[Any, list[str]]:
    """At most `most` rows, without classes too small to be in every fold; and what was left out, in words.

    Raises:
        ConceptError: fewer than two classes are large enough.
    """
    n = target.encoded.n
    rng = np.random.default_rng(seed)
    index = np.sort(rng.choice(n, most, replace=False)) if n > most else np.arange(n)
    notes = [f"{most:,} of {n:,} rows, drawn at random, were used here"] if n > most else []
    if len(index) < 2 * FOLDS:
        raise ConceptError(f"{len(index)} rows are too few for {FOLDS} folds: at least {2 * FOLDS} are needed")
    if target.codes is None:
        return index, notes
    counts = np.bincount(target.codes[index], minlength=target.k)
    small = [c for c in range(target.k) if 0 < counts[c] < FOLDS]
    if small:
        names = ", ".join(f"{target.names[c]!r} ({counts[c]})" for c in small[:5])
        if (counts >= FOLDS).sum() < 2:
            raise ConceptError(
                f"fewer than two classes have {FOLDS} rows each, one per fold (too small: {names}): nothing can be held out"
            )
        notes.append(
            f"{len(small)} classes with fewer than {FOLDS} rows were left out: {names}{', ...' if len(small) > 5 else ''}"
        )
        index = index[~np.isin(target.codes[index], small)]
    return index, notes


def rotations(target: Target, index: Any, groups: Any, seed: int, erase: bool = True) -> list[Part]:
    """Five times three disjoint parts; every row is in `test` once. With `erase=False` no rows are kept for an eraser.

    Raises:
        InputError: fewer groups than folds.
    """
    from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold

    codes = None if target.codes is None else target.codes[index]
    if groups is not None:
        group = np.unique(groups[index], return_inverse=True)[1]
        if len(np.unique(group)) < FOLDS:
            raise InputError(f"groups: {len(np.unique(group))} different ones, but at least {FOLDS} are needed")
        splitter: Any = (GroupKFold if codes is None else StratifiedGroupKFold)(FOLDS, shuffle=True, random_state=seed)
    else:
        group = None
        splitter = (KFold if codes is None else StratifiedKFold)(FOLDS, shuffle=True, random_state=seed)
    folds = [test for _, test in splitter.split(index, codes, group)]
    parts = []
    for f in range(FOLDS):
        others = [folds[(f + i) % FOLDS] for i in range(1, FOLDS)]
        own = others[:2] if erase else [np.zeros(0, dtype=int)]
        train = others[2:] if erase else others
        part = Part(*(index[np.sort(np.concatenate(rows))] for rows in (own, train, [folds[f]])))
        if target.codes is not None:
            _require_classes(target, part, erase)
        parts.append(part)
    return parts


def _require_classes(target: Target, part: Part, erase: bool) -> None:
    """Every class that is tested must be known to the eraser and to the probe: groups can keep one out."""
    tested = np.unique(target.codes[part.test])
    for name, rows in (("the eraser", part.erase), ("the probe", part.train))[0 if erase else 1 :]:
        missing = np.setdiff1d(tested, target.codes[rows])
        if len(missing) or len(np.unique(target.codes[rows])) < 2:
            which = repr(target.names[missing[0]]) if len(missing) else "one of them"
            raise ConceptError(
                f"a split leaves {name} without a class ({which}): its rows are all of one group, or too few"
            )
