"""Guarded or not: on the fitting rows, to rounding, by conditions that do not share their computation."""

from __future__ import annotations

import numpy as np
import pytest
from measure import canonical_correlation, class_gap, correlation, one_hot
from scipy.optimize import minimize

import excise
from excise.auditing.audit_data import read_audit_data
from excise.auditing.guardedness import gather, guardedness
from excise.auditing.linear import best_logistic, constant_loss, least_squares_r2, whitened

pytestmark = pytest.mark.filterwarnings("ignore::excise.ExciseWarning")


def guards(X, z, eraser=None, X_erased=None, kind=None):
    data = read_audit_data(X, z, eraser, X_erased, kind)
    return guardedness(data, gather(data), quick=False, seed=0)


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
    data = read_audit_data(X, z, None, None, None)
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
    assert least_squares_r2(data.before, [slice(0, 700), slice(700, 2000)], Z, X.std(0))[0] == pytest.approx(
        shares.mean()
    )


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
    assert found.constant_loss == pytest.approx(trivial, abs=1e-9)
    assert found.v_information == pytest.approx((trivial - best) / np.log(2), abs=1e-6)
    assert (found.v_information > 0.05) == (strength < 1)


def test_streaming_logistic_equals_the_one_in_memory(people, monkeypatch):
    X, z = people
    data = read_audit_data(X, z, None, None, None)
    g = gather(data)
    white = whitened(g.before, g.scale)
    parts = [slice(0, 900), slice(900, 2000)]
    whole = best_logistic(data.before, parts, z, 3, white)
    monkeypatch.setattr("excise.auditing.linear.IN_MEMORY", 0)
    monkeypatch.setattr("excise.auditing.linear.PASSES", 500)
    streamed = best_logistic(data.before, parts, z, 3, white)
    assert streamed.loss == pytest.approx(whole.loss, abs=1e-8)
    assert whole.converged
    monkeypatch.setattr("excise.auditing.linear.PASSES", 3)
    cut = best_logistic(data.before, parts, z, 3, white)
    assert not cut.converged
    assert whole.loss < cut.loss < constant_loss(z)


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
    """A concept in the difference of two columns, a hundred times what float32 rounds to: the covariance cannot show
    it, the rows can."""
    n = 3000
    z = rng.integers(0, 2, n)
    X = rng.standard_normal((n, 6)).astype(np.float32)
    hidden = np.c_[X, X[:, 0] + np.float32(1e-5) * z].astype(np.float32)
    found = guards(np.c_[X, X[:, 0] + z].astype(np.float32), z, X_erased=hidden)
    assert not found.guarded
    assert next(c.after for c in found.conditions if c.name == "least squares") > 0.9


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
    monkeypatch.setattr("excise.auditing.guardedness.least_squares_r2", lambda *a: (0.5, 12))
    found = guards(X, z, excise.fit(X, z))
    assert not found.guarded
    assert "least squares does not" in found.disagreement
