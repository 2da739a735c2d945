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

from excise.auditing.audited import Audited, take
from excise.auditing.linear import BITS, constant_loss
from excise.auditing.probes import PENALTIES, penalised_logistic, standardised
from excise.auditing.splits import Part
from excise.errors import ExciseError, ExciseWarning, InputError
from excise.fitting import check_method, fit

__all__ = ["NULL", "HeldOut", "held_out", "permutation_test", "refitted", "unseen_p_value"]

PERMUTATIONS = 1999
AT_ONCE = 50
RESAMPLES = 2000
NULL = (
    "in rows that the eraser has not seen, the erased features and the labels are independent; under it any order of "
    "these labels is as likely as any other"
)
Refit = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class HeldOut:
    """Cross-fitted figures. Information in bits per row for classes; the share of variance (R^2) for numbers."""

    measure: str  # "bits" or "R^2"
    information: float
    interval: tuple[float, float]  # 95%, bootstrap over rows
    information_before: float
    loss: float | None  # nats
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


def refitted(refit: Any, kind: Any) -> Refit:
    """refit= as a function of (X, z) that gives an eraser.

    Raises:
        ExciseError: an unknown method.
        InputError: neither a name nor callable.
    """
    if isinstance(refit, str):
        if check_method(refit, {}).takes == "task":
            raise ExciseError(f"refit={refit!r} needs the task: pass a function of (X, z) that fits it")
        return lambda X, z: fit(X, z, refit, kind=kind)
    if not callable(refit):
        raise InputError(
            f"refit must be the name of a method or a function of (X, z) that gives an eraser, got {type(refit).__name__}"
        )
    return refit  # type: ignore[no-any-return]


def held_out(
    data: Audited, parts: list[Part], refit: Refit, seed: int, notes: list[str], step: Callable[[str], None]
) -> HeldOut:
    """Erase with what was fitted on other folds, train a probe on further ones, measure it on the last.

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
            p, power = unseen_p_value(data, part, lambda X, z, eraser=eraser: eraser, seed)  # type: ignore[misc]
    gain, gain_before = np.concatenate(gains), np.concatenate(gains_before)
    classes = data.target.codes is not None
    n_erase = len(parts[0].erase)
    d = int((data.before(parts[0].erase).std(axis=0) > 0).sum())  # constant features carry nothing
    columns = (len(np.unique(data.target.codes[np.concatenate([parts[0].train, parts[0].test])])) - 1) if classes else 1
    expected = min(1.0, d / n_erase)
    if classes:  # never more than there is to know
        entropy = constant_loss(data.target.codes[np.concatenate([part.test for part in parts])]) * BITS
        expected = min(entropy, columns * _as_information(np.sqrt(expected)))
    interval = _bootstrap(gain, seed)
    information = float(gain.mean())
    assert p is not None
    assert power is not None
    return HeldOut(
        measure="bits" if classes else "R^2",
        information=information,
        interval=interval,
        information_before=float(gain_before.mean()),
        loss=float(np.concatenate(losses).mean()) if classes else None,
        constant_loss=float(np.concatenate(losses).mean() + information / BITS) if classes else None,
        accuracy=float(np.concatenate(right).mean()) if classes else None,
        majority=float(np.concatenate(prior).mean()) if classes else None,
        accuracy_before=float(np.concatenate(right_before).mean()) if classes else None,
        expected_from_estimation=float(expected),
        n=len(gain),
        n_erase=n_erase,
        n_train=len(parts[0].train),
        d=d,
        p_value=p,
        null=NULL,
        permutations=PERMUTATIONS,
        smallest_effect=power,
        smallest_effect_information=_as_information(power) if classes else power**2,
        reading=_reading(information, float(gain_before.mean()), interval, expected, n_erase, d, p),
        notes=list(dict.fromkeys(said)),
    )


def unseen_p_value(
    data: Audited, part: Part, refit: Refit, seed: int, permutations: int = PERMUTATIONS
) -> tuple[float, float]:
    """p-value and power on the rows of one split that the eraser was not fitted on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eraser = refit(np.asarray(data.X[part.erase]), take(data.z, part.erase))
    rows = np.concatenate([part.train, part.test])
    return permutation_test(
        data.erased_by(eraser, rows), data.truth(rows), data.target.codes is not None, seed, permutations
    )


def _as_information(correlation: float) -> float:
    """Bits that a canonical correlation is worth, for normal variables."""
    return float(-0.5 * np.log2(max(1.0 - correlation**2, 1e-12)))


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
    return _Fitted((constant - own) * BITS, own, model.predict(B) == z_new, z_new == majority)


def _probe_numbers(A: Any, B: Any, z: Any, z_new: Any) -> _Fitted:
    from sklearn.linear_model import RidgeCV

    spread = np.where(z.std(axis=0) > 0, z.std(axis=0), 1.0)
    model = RidgeCV(alphas=[penalty * len(z) for penalty in PENALTIES]).fit(A, (z - z.mean(axis=0)) / spread)
    true = (z_new - z.mean(axis=0)) / spread
    said = model.predict(B).reshape(true.shape)
    gain = (true**2 - (true - said) ** 2).mean(axis=1) / np.mean(true**2)
    return _Fitted(gain, ((true - said) ** 2).mean(axis=1), np.zeros(0), np.zeros(0))


def _bootstrap(gain: Any, seed: int) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    means = [gain[rng.integers(0, len(gain), len(gain))].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def permutation_test(X: Any, z: Any, classes: bool, seed: int, permutations: int = PERMUTATIONS) -> tuple[float, float]:
    """p-value and power of T = sum_i w_i |q_i^T Z|^2 / n, over the principal directions q_i of X.

    w_i = l_i / (l_i + mean l) damps directions of little variance, so T also tells something where n <= d. The p-value
    is (1 + number of permutations with T at least as great) / (1 + permutations): valid for every n and d.
    """
    n = len(X)
    Z = np.eye(int(z.max()) + 1)[z][:, np.unique(z)] if classes else z
    Z = Z - Z.mean(axis=0)
    U, s, _ = np.linalg.svd(Z, full_matrices=False)
    Z = U[:, s > 1e-10 * s[0]] * np.sqrt(n)  # (n, q) white
    Xc = X - X.mean(axis=0)
    spread = Xc.std(axis=0)
    Xc = Xc[:, spread > 0] / spread[spread > 0]
    if Xc.shape[1] == 0:
        return 1.0, 1.0
    Q, t, _ = np.linalg.svd(Xc, full_matrices=False)
    power = t**2
    Q, power = Q[:, power > 1e-12 * power[0]], power[power > 1e-12 * power[0]]
    root = np.sqrt(power / (power + power.mean()))
    Q = Q * root  # (n, r)
    rng = np.random.default_rng(seed)
    own = float(((Q.T @ Z) ** 2).sum() / n)
    null, first = [], []
    for begin in range(0, permutations, AT_ONCE):
        many = [Z[rng.permutation(n)] for _ in range(min(AT_ONCE, permutations - begin))]
        scores = (Q.T @ np.concatenate(many, axis=1)).reshape(len(root), len(many), -1) / np.sqrt(n)  # (r, b, q)
        null.append((scores**2).sum(axis=(0, 2)))
        if begin < 200:
            first.append(scores.transpose(1, 0, 2))
    draws = np.concatenate(null)
    p = (1 + int((draws >= own * (1 - 1e-12)).sum())) / (1 + permutations)
    return float(p), _smallest_effect(np.concatenate(first), root, float(np.quantile(draws, 0.95)), rng)


def _smallest_effect(null: Any, root: Any, critical: float, rng: Any) -> float:
    """The canonical correlation, in a random direction, that would exceed the 5% limit four times in five."""
    direction = rng.standard_normal((len(null), len(root)))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)

    def power(rho: float) -> float:
        planted = np.sqrt(1 - rho**2) * null
        planted[:, :, 0] += rho * direction * root
        return float(((planted**2).sum(axis=(1, 2)) > critical).mean())

    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= 0.8 else (middle, high)
    return high
