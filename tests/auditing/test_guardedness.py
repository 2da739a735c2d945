"""Guarded or not: on the fitting rows, to rounding, by conditions that do not share their computation."""

from __future__ import annotations

import numpy as np
import pytest
from measure import canonical_correlation, class_gap, correlation, one_hot
from scipy.optimize import minimize

import excise
from excise.auditing.audit_data import read_audit_data
from excise.auditing.guardedness import gather_evidence, guardedness
from excise.auditing.linear import LeastSquares

pytestmark = pytest.mark.filterwarnings("ignore::excise.ExciseWarning")


def guards(X, z, eraser=None, X_erased=None, kind=None):
    data = read_audit_data(X, z, eraser, X_erased, kind)
    return guardedness(data, gather_evidence(data, quick=False, seed=0))


@pytest.fixture
def people(rng):
    n = 2000
    z = rng.integers(0, 3, n)
    X = rng.standard_normal((n, 12)) @ rng.standard_normal((12, 12)) + 2 * rng.standard_normal((3, 12))[z]
    return X, z


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("method", ["leace", "oracle", "sal", "mean_projection", "quadratic"])
def test_true_on_the_fitting_rows(people, method, dtype):
    X, z = people[0].astype(dtype), people[1]
    found = guards(X, z, excise.fit(X, z, method=method))
    assert found.guarded, found
    assert found.disagreement is None
    assert len(found.conditions) == 6
    assert all(c.before > 0.1 for c in found.conditions)  # it was there before


def test_false_where_it_is_not_erased(people, rng):
    X, z = people
    half = excise.fit(X, z, strength=1 - 1e-6)
    for eraser in (None, lambda X: X, excise.fit(X, z, method="sal", rank=1), half, excise.fit(X, z, method="random")):
        found = guards(X, z, eraser)
        assert not found.guarded
        assert found.conditions[0].holds is False
    other = rng.permutation(z)
    assert not guards(X, other).guarded  # independent labels still have covariance by chance
    unseen = excise.fit(X[:1000], z[:1000])
    assert not guards(X[1000:], z[1000:], unseen).guarded


def test_values_against_plain_numpy(people):
    X, z = people
    found = {c.name: c.after for c in guards(X, z).conditions}
    spread = X / X.std(0)
    assert found["cross-covariance"] == pytest.approx(correlation(X, one_hot(z)), rel=1e-10)
    assert found["class means"] == pytest.approx(class_gap(spread, z), rel=1e-10)
    assert found["canonical correlation"] == pytest.approx(canonical_correlation(X, one_hot(z)), rel=1e-8)
    design = np.column_stack([np.ones(len(X)), X])
    Z = one_hot(z)
    fitted = design @ np.linalg.lstsq(design, Z, rcond=None)[0]
    shares = ((fitted - Z.mean(0)) ** 2).sum(0) / ((Z - Z.mean(0)) ** 2).sum(0)
    assert found["least squares"] == pytest.approx(shares.mean(), rel=1e-8)


@pytest.mark.parametrize("strength", [0.0, 0.7, 1.0])
def test_information_against_an_independent_optimisation(rng, strength):
    """V-information and the trivial loss, by scipy's own minimiser on the raw features, to 1e-6."""
    n = 600
    z = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    X = rng.standard_normal((n, 4)) * [1, 5, 0.1, 30] + rng.standard_normal((3, 4))[z]
    Xe = excise.fit(X, z, strength=strength)(X)
    found = guards(X, z, X_erased=Xe)

    def loss(theta, features):
        W, b = theta[: features * 3].reshape(features, 3), theta[features * 3 :]
        scores = (Xe[:, :features] - X.mean(0)[:features]) / X.std(0)[:features] @ W + b
        return float((np.logaddexp.reduce(scores, axis=1) - scores[np.arange(n), z]).mean())

    best = minimize(loss, np.zeros(15), args=(4,), method="BFGS", options={"gtol": 1e-7}).fun
    trivial = minimize(loss, np.zeros(3), args=(0,), method="BFGS", options={"gtol": 1e-9}).fun
    assert found.constant_loss == pytest.approx(trivial / np.log(2), abs=1e-9)
    assert found.v_information == pytest.approx((trivial - best) / np.log(2), abs=1e-6)
    assert (found.v_information > 0.05) == (strength < 1)


def test_rows_that_do_not_fit_into_memory(people, monkeypatch):
    """Batch by batch, with a logistic regression on a sample before and its gradient over all rows after."""
    X, z = people
    eraser = excise.fit(X, z)
    half = excise.fit(X, z, strength=0.999)
    whole, near = guards(X, z, eraser), guards(X, z, half)
    monkeypatch.setattr("excise.auditing.linear.IN_MEMORY", 1500 * 8 * 12)
    monkeypatch.setattr("excise.auditing.audit_data.HELD_BYTES", 0)
    monkeypatch.setattr("excise.auditing.audit_data.BATCH_BYTES", 1)
    streamed, leaking = guards(X, z, eraser), guards(X, z, half)
    assert streamed.guarded
    assert not leaking.guarded
    by_name = [{c.name: c for c in found.conditions} for found in (whole, streamed, near, leaking)]
    for name in ("cross-covariance", "class means", "canonical correlation", "least squares"):
        assert by_name[1][name].before == pytest.approx(by_name[0][name].before, rel=0.05)
        assert by_name[3][name].after == pytest.approx(by_name[2][name].after, rel=1e-6)
    assert by_name[1]["logistic loss"].before == pytest.approx(by_name[0]["logistic loss"].before, rel=0.1)
    assert by_name[3]["logistic loss"].after == pytest.approx(by_name[2]["logistic loss"].after, rel=0.02)
    assert "drawn at random" in by_name[1]["logistic loss"].note


def test_hard_data(rng):
    z = np.zeros(50_000, dtype=int)
    z[:20] = 1
    X = rng.standard_normal((50_000, 6))
    X[:20] += 40
    assert not guards(X, z).guarded
    assert guards(X, z, excise.fit(X, z)).guarded  # 20 rows in 50,000
    n = 1000
    y = rng.integers(0, 2, n)
    A = rng.standard_normal((n, 8)) + y[:, None]
    wild = A * 10.0 ** rng.uniform(-8, 8, 8) + 1e3
    assert guards(wild, y, excise.fit(wild, y)).guarded
    collinear = np.hstack([A, A[:, :3] * 2, np.ones((n, 1))])
    assert guards(collinear, y, excise.fit(collinear, y)).guarded
    wide = rng.standard_normal((60, 200))
    assert not guards(wide, y[:60]).guarded
    assert guards(wide, y[:60], excise.fit(wide, y[:60])).guarded
    mixed = {"a": y, "b": A[:, 0] + rng.standard_normal(n)}
    assert not guards(A, mixed).guarded
    assert guards(A, mixed, excise.fit(A, mixed)).guarded
    number = A[:, 0] + rng.standard_normal(n)
    found = guards(A, number, excise.fit(A, number))
    assert found.guarded
    assert [c.name for c in found.conditions] == ["cross-covariance", "canonical correlation", "least squares"]


@pytest.mark.parametrize("n", [60, 4000])
@pytest.mark.parametrize("method", ["leace", "sal", "oracle"])
def test_float32_embeddings(method, n, rng):
    """The output of a LayerNorm: collinear up to rounding, gains from 1e-33 to 1, one feature far from zero. With n < d,
    rounding fills the one direction that the erasure emptied, and that direction is z."""
    z = rng.integers(0, 2, n)
    H = rng.standard_normal((n, 100))
    H[:, :10] += 2 * z[:, None]
    H = (H - H.mean(axis=1, keepdims=True)) / H.std(axis=1, keepdims=True)
    gains = np.r_[rng.uniform(0.1, 1, 97), 1e-33, 1e-33, 1e-9]
    X = (H * gains + np.r_[np.zeros(99), 7e-8]).astype(np.float32)
    assert not guards(X, z).guarded
    found = guards(X, z, excise.fit(X, z, method))
    assert found.guarded, found.disagreement
    assert next(c.tolerance for c in found.conditions if c.name == "least squares") < 1e-3


def test_a_small_direction_is_no_rounding(rng):
    """A concept in the difference of two columns, a hundred times what float32 rounds to: it shows in a covariance."""
    n = 3000
    z = rng.integers(0, 2, n)
    X = rng.standard_normal((n, 6)).astype(np.float32)
    X -= X[z == 1].mean(0) * z[:, None] + X[z == 0].mean(0) * (1 - z)[:, None]
    hidden = np.c_[X, X[:, 0] + np.float32(1e-5) * z].astype(np.float32)
    found = guards(np.c_[X, X[:, 0] + z].astype(np.float32), z, X_erased=hidden)
    assert not found.guarded
    assert guards(np.c_[X, X[:, 0] + z].astype(np.float32), z, X_erased=np.c_[X, X[:, 0]]).guarded


@pytest.mark.parametrize("shrink", [3e-6, 1e-6])
def test_a_feature_that_was_all_but_emptied_is_read_by_whoever_standardises(shrink, rng):
    from sklearn.linear_model import LogisticRegression

    n = 1000
    z = rng.integers(0, 2, n)
    X = (rng.standard_normal((n, 5)) + 20).astype(np.float32)
    X[:, 0] += 4 * z
    eraser = excise.fit(X, z)
    shrunk = eraser(X)
    middle = X[:, 0].mean()
    shrunk[:, 0] = middle + np.float32(shrink) * (X[:, 0] - middle)
    own = (shrunk - shrunk.mean(0, dtype=float)) / shrunk.std(0, dtype=float)
    assert LogisticRegression().fit(own, z).score(own, z) > 0.9
    assert not guards(X, z, X_erased=shrunk).guarded
    assert guards(X, z, eraser).guarded


def test_a_regression_in_float32_leaves_what_its_rounding_makes():
    """The user's own residuals of a column that is the label: one digit in the last place per class."""
    found = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        z = (rng.random(600) < 0.3).astype(int)
        centred = (z - z.mean()).astype(np.float32)
        X = (rng.standard_normal((600, 5)) + 3).astype(np.float32)
        X[:, 0] = np.float32(1.3) + np.float32(0.7) * z.astype(np.float32)
        slope = ((X.astype(float).T @ centred) / (centred @ centred)).astype(np.float32)
        erased = X - np.outer(centred, slope)
        leaks = len(np.unique(erased[:, 0])) > 1  # then each class has its own number
        found.append((leaks, guards(X, z, X_erased=erased).guarded))
    assert any(leaks for leaks, _ in found)
    assert not any(leaks and guarded for leaks, guarded in found)


def test_sixteen_bits_leak_when_rounded_to_nearest(rng):
    torch = pytest.importorskip("torch")
    z = rng.integers(0, 3, 10_000)
    X = rng.standard_normal((10_000, 12)) @ rng.standard_normal((12, 12)) + 2 * rng.standard_normal((3, 12))[z]
    T = torch.tensor(X + 100, dtype=torch.bfloat16)
    eraser = excise.fit(T, z)
    nearest, stochastic = guards(T, z, eraser), guards(T, z, X_erased=eraser(T, rounding="stochastic", seed=0))
    assert not nearest.guarded  # an exact erasure, but the digits do not hold it
    assert stochastic.guarded
    assert stochastic.resolution > 1e-3  # and says how little that means


def test_conditions_that_disagree_are_said(people, monkeypatch):
    X, z = people
    monkeypatch.setattr(
        "excise.auditing.guardedness.least_squares",
        lambda *a: LeastSquares(0.5, 12),
    )
    found = guards(X, z, excise.fit(X, z))
    assert not found.guarded
    assert "least squares does not" in found.disagreement


@pytest.mark.parametrize("method", ["leace", "oracle"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("seed", range(5))
def test_features_that_contain_the_concept(seed, dtype, method):
    """One-hot columns of z among the features come out as constants, so that even a naive standardising probe finds
    nothing in them."""
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(seed)
    n = 700
    z = rng.choice(3, n, p=[0.7, 0.2, 0.1])
    X = np.column_stack([rng.standard_normal((n, 4)) + z[:, None], one_hot(z) * [1, 3, 0.2], 5 - 2.0 * (z == 1)])
    X = X.astype(dtype)
    eraser = excise.fit(X, z, method)
    erased = eraser(X, z)
    assert np.flatnonzero(np.ptp(erased, axis=0) == 0).tolist() == [4, 5, 6, 7]
    spread = erased.std(0, dtype=float)
    own = (erased - erased.mean(0, dtype=float)) / np.where(spread > 0, spread, 1)
    before = (X - X.mean(0)) / X.std(0)
    majority = np.bincount(z).max() / n
    assert LogisticRegression().fit(before, z).score(before, z) > 0.99
    assert LogisticRegression().fit(own, z).score(own, z) <= majority + 1e-9
    found = guards(X, z, eraser)
    assert found.guarded, found.conditions
    assert (found.emptied, found.nothing_left) == (4, False)
    again = excise.fit(X, z, method, **({"strength": 0.5} if method == "leace" else {}))
    assert (again.emptied is None) == (method == "leace")


def test_what_rows_clearly_hold_is_not_excused_as_rounding(rng):
    """float32: the difference of two columns is z at 16 units in the last place, with a correlation of 0.998."""
    n = 4000
    z = rng.integers(0, 2, n)
    b = rng.standard_normal((n, 4)).astype(np.float32)
    for size, least in ((1e-6, 0.9), (6e-7, 0.8)):
        hidden = np.c_[b, b[:, 0] + np.float32(size) * z.astype(np.float32)]
        difference = hidden[:, 4].astype(float) - hidden[:, 0]
        assert abs(np.corrcoef(difference, z)[0, 1]) > least
        found = guards(np.c_[b, b[:, 0] + z.astype(np.float32)], z, X_erased=hidden)
        assert not found.guarded
    noise = np.c_[b, b[:, 0] + np.float32(1e-7) * rng.standard_normal(n).astype(np.float32)]
    eraser = excise.fit(np.c_[b + z[:, None].astype(np.float32), noise[:, 4]], z)
    assert guards(np.c_[b + z[:, None].astype(np.float32), noise[:, 4]], z, eraser).guarded


def test_nothing_left_of_the_features(rng):
    z = rng.integers(0, 8, 800)
    X = rng.standard_normal((800, 3)) + rng.standard_normal((8, 3))[z]
    with pytest.warns(excise.ExciseWarning, match=r"everything was erased.*8 classes.*all 3 dimensions"):
        eraser = excise.fit(X, z)
    found = guards(X, z, eraser)
    assert found.guarded
    assert found.nothing_left
    assert (np.ptp(eraser(X), axis=0) == 0).all()
