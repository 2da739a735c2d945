"""What a linear model finds in rows that the eraser has not seen.

The theorem is about the fitting rows. On new rows an eraser that was fitted on n rows leaves about d / n of linear
information, from estimation alone: so the size of what is left stands beside that expectation, and a p-value says only
whether anything is left at all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.auditing.audit_data import AuditData, take
from excise.auditing.estimation import as_information, expected_leftover
from excise.auditing.linear import BITS
from excise.auditing.probe_models import PENALTIES, penalised_logistic
from excise.auditing.probes import standardised
from excise.auditing.resampling import PERMUTATIONS, interval_of_mean, null_in_words, permutation_test
from excise.auditing.splits import Part
from excise.errors import ExciseError, ExciseWarning, InputError
from excise.fitting import fit
from excise.methods.table import check_method

__all__ = ["HeldOut", "held_out", "refitted", "unseen_p_value"]

Refit = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class HeldOut:
    """Figures on rows that the eraser has not seen. Bits per row for classes; the share of variance (R^2) for numbers."""

    own: bool  # of the audited eraser itself, on test rows; else of erasers that were fitted again (cross-fitted)
    grouped: bool  # rows of one group were taken together
    measure: str  # "bits" or "R^2"
    information: float
    interval: tuple[
        float, float
    ]  # 95%, for the choice of test rows (of groups where they are given) and of training rows
    information_before: float
    loss: float | None  # bits
    constant_loss: float | None
    accuracy: float | None
    majority: float | None
    accuracy_before: float | None
    expected_from_estimation: float  # in the same unit
    n: int
    n_erase: int
    n_train: int
    d: int
    p_value: float
    null: str
    permutations: int
    smallest_effect: float  # canonical correlation found with 80% probability at 5%
    smallest_effect_information: float  # the same, as information
    reading: str
    notes: list[str]


def refitted(refit: Any, kind: Any, options: dict[str, Any]) -> Refit:
    """refit= as a function of (X, z) that gives an eraser; a method is called with the options of the audited eraser.

    Raises:
        ExciseError: an unknown method.
        InputError: neither a name nor callable.
    """
    if isinstance(refit, str):
        if check_method(refit, {}).uses_task == "must":
            raise ExciseError(f"refit={refit!r} needs the task: pass a function of (X, z) that fits it")
        return lambda X, z: fit(X, z, refit, kind=kind, **options)
    if not callable(refit):
        raise InputError(
            f"refit must be the name of a method or a function of (X, z) that gives an eraser, got {type(refit).__name__}"
        )
    return refit  # type: ignore[no-any-return]


def held_out(
    data: AuditData,
    parts: list[Part],
    refit: Refit,
    seed: int,
    notes: list[str],
    step: Callable[[str], None],
    groups: Any = None,
    seen: int | None = None,
) -> HeldOut:
    """Erase with what was fitted on other folds, train a probe on further ones, measure it on the last.

    `groups` are those of all rows; the interval and the p-value take rows of one group together. `seen` is the number of
    rows that the eraser itself was fitted on, where it is measured on rows of its own (`refit` then gives it as it is).

    Raises:
        ExciseError: the eraser could not be fitted on a part of the rows.
    """
    gains, gains_before, losses, right, right_before, prior = [], [], [], [], [], []
    said: list[str] = list(notes)
    p = power = None
    for f, part in enumerate(parts):
        step(f"held out, fold {f + 1} of {len(parts)}")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                eraser = refit(np.asarray(data.X[part.erase]), take(data.z, part.erase))
                after = [data.erased_by(eraser, rows) for rows in (part.train, part.test)]
            except Exception as error:
                raise ExciseError(f"refit failed on fold {f + 1} ({len(part.erase)} rows): {error}") from error
        said += [str(w.message) for w in caught if issubclass(w.category, ExciseWarning) and f == 0]
        if not all(np.isfinite(rows).all() for rows in after):
            raise ExciseError(f"the eraser that refit= gave on fold {f + 1} makes NaN or infinity")
        before = [data.before(rows) for rows in (part.train, part.test)]
        truth = [data.truth(rows) for rows in (part.train, part.test)]
        scale = before[0].std(axis=0)
        a = _probe(after[0], after[1], truth[0], truth[1], scale, seed)
        b = _probe(before[0], before[1], truth[0], truth[1], scale, seed)
        gains.append(a.gain)
        gains_before.append(b.gain)
        losses.append(a.loss)
        right.append(a.right)
        right_before.append(b.right)
        prior.append(a.prior)
        if f == 0:
            p, power = unseen_p_value(data, part, lambda X, z, eraser=eraser: eraser, seed, groups=groups)  # type: ignore[misc]
    gain, gain_before = np.concatenate(gains), np.concatenate(gains_before)
    classes = data.target.codes is not None
    own = seen is not None
    n_erase = len(parts[0].erase) if seen is None else seen
    tested = np.concatenate([part.test for part in parts])
    looked_at = parts[0].unseen if own else parts[0].erase
    d = int((data.before(looked_at).std(axis=0) > 0).sum())  # constant features carry nothing
    expected = expected_leftover(n_erase, d, data.target.codes[tested] if classes else None)
    ratio = len(parts[0].test) / len(parts[0].train)
    interval = interval_of_mean(gain, None if groups is None else groups[tested], ratio)
    information = float(gain.mean())
    assert p is not None
    assert power is not None
    return HeldOut(
        own=own,
        grouped=groups is not None,
        measure="bits" if classes else "R^2",
        information=information,
        interval=interval,
        information_before=float(gain_before.mean()),
        loss=float(np.concatenate(losses).mean()) if classes else None,
        constant_loss=float(np.concatenate(losses).mean() + information) if classes else None,
        accuracy=float(np.concatenate(right).mean()) if classes else None,
        majority=float(np.concatenate(prior).mean()) if classes else None,
        accuracy_before=float(np.concatenate(right_before).mean()) if classes else None,
        expected_from_estimation=float(expected),
        n=len(gain),
        n_erase=n_erase,
        n_train=len(parts[0].train),
        d=d,
        p_value=p,
        null=null_in_words(groups is not None),
        permutations=PERMUTATIONS,
        smallest_effect=power,
        smallest_effect_information=as_information(power) if classes else power**2,
        reading=_reading(information, float(gain_before.mean()), interval, expected, n_erase, d, p),
        notes=list(dict.fromkeys(said)),
    )


def unseen_p_value(
    data: AuditData, part: Part, refit: Refit, seed: int, permutations: int = PERMUTATIONS, groups: Any = None
) -> tuple[float, float]:
    """p-value and power on the rows of one split that the eraser was not fitted on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eraser = refit(np.asarray(data.X[part.erase]), take(data.z, part.erase))
    rows, classes = part.unseen, data.target.codes is not None
    own = None if groups is None else groups[rows]
    return permutation_test(data.erased_by(eraser, rows), data.truth(rows), classes, seed, permutations, own)


def _reading(
    information: float, before: float, interval: tuple[float, float], expected: float, n: int, d: int, p: float
) -> str:
    if interval[0] <= 0:
        said = "a linear probe gains nothing on the constant in rows that the eraser has not seen"
    elif interval[1] >= before:
        said = (
            "a linear probe finds as much in unseen rows as before the edit: nothing shows that the eraser carries over"
        )
    elif expected >= before:
        said = "a linear probe still gains in unseen rows, and the rows are too few to tell a good eraser from a bad one by it"
    elif information <= expected:
        said = "a linear probe gains something in unseen rows, but no more than estimation alone can leave"
    else:
        said = "a linear probe gains more in unseen rows than estimation alone explains: the eraser does not carry over"
    said += f"; with {n:,} rows to fit on and {d} features, estimation alone can leave up to about {expected:.2g}"
    if n < 10 * d:
        said += (
            f". {n / d:.1f} rows per feature are few: an eraser that is perfect on its own rows must leave a good part of the "
            f"concept in new ones; more rows, fewer features or shrinkage help"
        )
    if p < 0.05 and interval[0] <= 0:
        said += ". The p-value is small all the same: something is left, too little for the probe to use"
    return said


@dataclass(frozen=True)
class _Fitted:
    gain: Any  # per test row: bits, or the part of R^2
    loss: Any
    right: Any
    prior: Any


def _probe(X: Any, X_new: Any, z: Any, z_new: Any, scale: Any, seed: int) -> _Fitted:
    """Gain of a penalised linear probe on the constant, per row of X_new."""
    A, B = standardised(X, X_new, scale)
    if z.ndim == 2:
        return _probe_numbers(A, B, z, z_new)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = penalised_logistic(z, seed).fit(A, z)
    place = np.searchsorted(model.classes_, z_new)
    own = -np.log(np.maximum(model.predict_proba(B)[np.arange(len(B)), place], 1e-15))
    share = np.bincount(z, minlength=model.classes_.max() + 1)[model.classes_] / len(z)
    constant = -np.log(share[place])
    majority = model.classes_[np.argmax(share)]
    return _Fitted((constant - own) * BITS, own * BITS, model.predict(B) == z_new, z_new == majority)


def _probe_numbers(A: Any, B: Any, z: Any, z_new: Any) -> _Fitted:
    from sklearn.linear_model import RidgeCV

    spread = np.where(z.std(axis=0) > 0, z.std(axis=0), 1.0)
    model = RidgeCV(alphas=[penalty * len(z) for penalty in PENALTIES]).fit(A, (z - z.mean(axis=0)) / spread)
    true = (z_new - z.mean(axis=0)) / spread
    said = model.predict(B).reshape(true.shape)
    gain = (true**2 - (true - said) ** 2).mean(axis=1) / np.mean(true**2)
    return _Fitted(gain, ((true - said) ** 2).mean(axis=1), np.zeros(0), np.zeros(0))
