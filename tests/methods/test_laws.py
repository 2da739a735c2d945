"""The laws of each method, as properties over random rank, condition, number of classes and weights."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from measure import correlation, covariance, leace_by_definition, mean_squared_edit, one_hot
from scipy.stats import ortho_group

import excise

pytestmark = pytest.mark.filterwarnings("ignore::excise.ExciseWarning")


@dataclass(repr=False)
class Case:
    X: np.ndarray
    z: np.ndarray
    Z: np.ndarray
    rng: np.random.Generator
    condition: float

    @property
    def m(self) -> excise.Moments:
        return excise.Moments().update(self.X, self.z)

    @property
    def scale(self) -> float:
        return float(np.abs(self.X).max())


@st.composite
def cases(draw, full_rank=False):
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    d = draw(st.integers(2, 9))
    rank = d if full_rank else draw(st.integers(1, d))
    k = draw(st.integers(2, 5))
    condition = 10 ** draw(st.floats(0, 3))
    n = 40 * d
    z = np.concatenate([np.arange(k), rng.integers(0, k, n - k)])
    base = rng.standard_normal((n, rank)) + 2 * rng.standard_normal((k, rank))[z]
    spectrum = np.geomspace(1, 1 / condition, rank)
    X = base * spectrum @ ortho_group.rvs(d, random_state=rng)[:rank] if d > 1 else base
    labels = rng.standard_normal((n, k)) @ rng.standard_normal((k, k)) + base[:, :1] if draw(st.booleans()) else z
    Z = one_hot(z) if labels is z else labels
    return Case(X + 5 * rng.standard_normal(d), labels, Z, rng, condition)


def random_inner_product(case: Case, singular: bool) -> np.ndarray:
    d = case.X.shape[1]
    root = case.rng.standard_normal((max(1, d - 1) if singular else d, d))
    return root.T @ root


@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_leace_guards_keeps_the_mean_is_idempotent_and_has_small_rank(case):
    eraser = excise.leace(case.m)
    erased = eraser(case.X)
    before = np.abs(covariance(case.X, case.Z)).max()
    assume(correlation(case.X, case.Z) > 0.05)  # it was there before
    assert np.abs(covariance(erased, case.Z)).max() < 1e-10 * before * case.condition
    assert np.abs(erased.mean(0) - case.X.mean(0)).max() < 1e-12 * case.scale * case.condition
    assert np.abs(eraser(erased) - erased).max() < 1e-10 * case.scale * case.condition
    assert np.abs(eraser.P @ eraser.P - eraser.P).max() < 1e-9 * case.condition
    categorical = case.z.ndim == 1
    assert 1 <= eraser.rank <= min(case.X.shape[1], case.Z.shape[1] - (1 if categorical else 0))


@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_leace_is_the_formula_of_the_paper(case):
    P, mean = leace_by_definition(case.X, case.Z)
    expected = (case.X - mean) @ P.T + mean
    assert np.abs(excise.leace(case.m)(case.X) - expected).max() < 1e-8 * case.scale * case.condition


@settings(max_examples=40, deadline=None)
@given(case=cases(), singular=st.booleans())
def test_first_order_optimality_in_any_inner_product(case, singular):
    """Moving P inside the set of guarding maps does not lower the mean squared edit, to first order."""
    M = random_inner_product(case, singular)
    P = excise.leace(case.m).P
    Xc = case.X - case.X.mean(0)
    gradient = 2 * M @ (P - np.eye(len(P))) @ (Xc.T @ Xc) / len(Xc)
    # Feasible directions: D with D Sxz = 0.
    u, s, _ = np.linalg.svd(covariance(case.X, case.Z))
    free = u[:, int((s > 1e-9 * s[0]).sum()) :]
    assert np.abs(gradient @ free).max(initial=0) < 1e-9 * case.condition * max(1, np.abs(gradient).max())


@settings(max_examples=40, deadline=None)
@given(case=cases(), singular=st.booleans())
def test_nothing_affine_beats_leace_and_nothing_beats_the_oracle(case, singular):
    M = random_inner_product(case, singular)
    m = case.m
    leace = mean_squared_edit(case.X, excise.leace(m)(case.X), M)
    oracle = mean_squared_edit(case.X, excise.oracle(m)(case.X, case.z), M)
    slack = 1e-9 * (1 + leace) * case.condition
    for erased in (excise.leace(m)(case.X), excise.oracle(m)(case.X, case.z)):  # the identity would beat them all
        assert (
            np.abs(covariance(erased, case.Z)).max() < 1e-9 * np.abs(covariance(case.X, case.Z)).max() * case.condition
        )
    assert oracle <= leace + slack
    # Random guarding affine maps: any P with P Sxz = 0, any bias.
    u, s, _ = np.linalg.svd(covariance(case.X, case.Z))
    free = u[:, int((s > 1e-9 * s[0]).sum()) :]
    for spread in (0.01, 0.3, 2.0):
        P = excise.leace(m).P + spread * case.rng.standard_normal((len(u), free.shape[1])) @ free.T
        mean = case.X.mean(0)
        bias = mean - P @ mean + spread * case.rng.standard_normal(len(u))
        other = case.X @ P.T + bias
        assert np.abs(covariance(other, case.Z)).max() < 1e-7 * case.scale * case.condition
        assert leace <= mean_squared_edit(case.X, other, M) + slack
    # Random guarding maps that use the label.
    residual = excise.oracle(m)(case.X, case.z)
    noise = case.rng.standard_normal(case.X.shape)
    Zc = case.Z - case.Z.mean(0)
    noise -= Zc @ np.linalg.lstsq(Zc, noise, rcond=None)[0]
    assert oracle <= mean_squared_edit(case.X, residual + noise, M) + slack


@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_oracle_is_the_least_squares_residual(case):
    Zc = case.Z - case.Z.mean(0)
    expected = case.X - Zc @ np.linalg.lstsq(Zc, case.X - case.X.mean(0), rcond=1e-12)[0]
    assert np.abs(excise.oracle(case.m)(case.X, case.z) - expected).max() < 1e-9 * case.scale


@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_sal_is_an_orthogonal_projection_that_guards_and_equals_mean_projection(case):
    m = case.m
    eraser = excise.sal(m)
    P = eraser.P
    assert np.abs(P - P.T).max() < 1e-12
    assert np.abs(P @ P - P).max() < 1e-12
    before = np.abs(covariance(case.X, case.Z)).max()
    assert np.abs(covariance(eraser(case.X), case.Z)).max() < 1e-10 * before * case.condition
    assert np.array_equal(excise.mean_projection(m).P, P)
    assert excise.mean_projection(m).info["method"] == "mean_projection"
    # Independently: the span of the class means, or of the cross-covariance.
    u, s, _ = np.linalg.svd(covariance(case.X, case.Z), full_matrices=False)
    u = u[:, s > 1e-9 * s[0]]
    if s[len(u.T) - 1] > 1e-4 * s[0]:
        Xc = case.X - case.X.mean(0)  # where collinear features are off by their own rounding, P may remove that too
        assert np.abs(Xc - Xc @ u @ u.T - Xc @ P.T).max() < 1e-7 * case.scale


def test_sal_of_too_low_rank_does_not_guard(rng):
    z = rng.integers(0, 4, 2000)
    X = rng.standard_normal((2000, 6)) + 3 * rng.standard_normal((4, 6))[z]
    m = excise.Moments().update(X, z)
    low = excise.sal(m, rank=1)
    assert low.rank == 1
    assert low.info["guards"] is False
    left = np.linalg.norm(covariance(low(X), one_hot(z)))
    assert 0.01 < left < 0.9 * np.linalg.norm(covariance(X, one_hot(z)))
    u = np.linalg.svd(covariance(X, one_hot(z)))[0][:, :1]
    assert np.allclose(low.P, np.eye(6) - u @ u.T)
    with pytest.raises(excise.ExciseError, match="rank must be between 1 and 3"):
        excise.sal(m, rank=4)


@pytest.mark.parametrize("shrinkage", ["oas", "optimal"])
def test_shrinkage_guards_all_the_same_and_matches_independent_formulas(rng, shrinkage):
    from sklearn.covariance import oas

    z = rng.integers(0, 2, 60)
    X = rng.standard_normal((60, 30)) + z[:, None]
    X = (X - X.mean(0)) / X.std(0)
    eraser = excise.fit(X, z, shrinkage=shrinkage)
    assert np.abs(covariance(eraser(X), one_hot(z))).max() < 1e-13
    S = np.corrcoef(X.T)
    if shrinkage == "oas":
        _, expected = oas(X, assume_centered=True)
        shrunk = (1 - expected) * S + expected * np.eye(30)
    else:  # Bodnar et al. 2014, with the target I/d
        target = np.eye(30) / 30
        norm = (target**2).sum()
        alpha = 1 - (np.trace(S) ** 2 * norm / 60) / ((S**2).sum() * norm - (S * target).sum() ** 2)
        expected = 1 - alpha
        shrunk = alpha * S + (S * target).sum() / norm * (1 - alpha) * target
    assert eraser.info["shrinkage_intensity"] == pytest.approx(expected, rel=1e-9)
    assert 0.05 < expected < 1
    u = covariance(X, one_hot(z))[:, :1]
    v = np.linalg.solve(shrunk, u)
    assert np.allclose(eraser.P, np.eye(30) - u @ v.T / (v.T @ u), atol=1e-10)


def test_shrinkage_does_not_depend_on_units(rng):
    z = rng.integers(0, 2, 80)
    X = rng.standard_normal((80, 20)) + z[:, None]
    units = 10 ** rng.uniform(-5, 5, 20)
    a, b = excise.erase(X, z, shrinkage="oas"), excise.erase(X * units, z, shrinkage="oas") / units
    assert np.abs(a - X).max() > 0.1
    assert np.abs(a - b).max() < 1e-9


@settings(max_examples=30, deadline=None)
@given(case=cases(full_rank=True), other_data=st.booleans())
def test_limit_norm(case, other_data):
    """Total variance does not grow, the edit guards, and it is never worse than the orthogonal projector."""
    m = case.m
    stretch = case.rng.standard_normal((case.X.shape[1],) * 2)
    other = case.X @ stretch if other_data else case.X
    reference = excise.Moments().update(other, case.z) if other_data else True
    limited = excise.leace(m, limit_norm=reference)
    total = lambda X: X.var(axis=0).sum()  # noqa: E731
    assert total(other @ limited.P.T) <= total(other) * (1 + 1e-9 * case.condition)
    before = np.abs(covariance(case.X, case.Z)).max()
    assert np.abs(covariance(limited(case.X), case.Z)).max() < 1e-9 * before * case.condition
    u, s, _ = np.linalg.svd(covariance(case.X, case.Z), full_matrices=False)
    u = u[:, s > 1e-9 * s[0]]
    mean = case.X.mean(0)
    orthogonal = case.X - (case.X - mean) @ u @ u.T
    edit, worst = mean_squared_edit(case.X, limited(case.X)), mean_squared_edit(case.X, orthogonal)
    assert edit <= worst * (1 + 1e-7 * case.condition)
    mix = limited.info["limit_norm_mix"]
    if not other_data:
        assert mix == 1.0  # on the data that it was fitted on, LEACE cannot let the variance grow
    elif mix < 1.0:
        assert total(other @ excise.leace(m).P.T) > total(other)
        assert total(other @ limited.P.T) == pytest.approx(total(other), rel=1e-6 * case.condition)


def test_limit_norm_fires(rng):
    z = rng.integers(0, 2, 400)
    X = rng.standard_normal((400, 2)) @ np.array([[1.0, 0.99], [0.0, 0.1]]) + np.outer(z, [0.0, 1.0])
    other = excise.Moments().update(rng.standard_normal((400, 2)) * [20.0, 1.0], z)
    free, limited = excise.fit(X, z), excise.leace(excise.Moments().update(X, z), limit_norm=other)
    assert limited.info["limit_norm_mix"] < 1
    assert np.abs(free.P - limited.P).max() > 0.01


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0, 2.0])
def test_strength_scales_the_covariance(rng, strength):
    z = rng.integers(0, 3, 500)
    X = rng.standard_normal((500, 4)) + z[:, None]
    erased = excise.erase(X, z, strength=strength)
    assert np.allclose(covariance(erased, one_hot(z)), (1 - strength) * covariance(X, one_hot(z)), atol=1e-12)


def test_not_affine_means_no_centring(rng):
    z = rng.integers(0, 2, 500)
    X = rng.standard_normal((500, 4)) + z[:, None] + 3
    eraser = excise.fit(X, z, affine=False)
    assert np.array_equal(eraser.bias, np.zeros(4))
    assert np.allclose(eraser(X), X @ excise.fit(X, z).P.T)
    assert np.abs(covariance(eraser(X), one_hot(z))).max() < 1e-13


def test_random_projection_is_uniform_and_repeatable():
    P = excise.random_projection(5, 2, seed=3).P
    assert np.array_equal(P, excise.random_projection(5, 2, seed=3).P)
    assert not np.allclose(P, excise.random_projection(5, 2, seed=4).P)
    mean = np.mean([excise.random_projection(5, 2, seed=s).P for s in range(2000)], axis=0)
    assert np.abs(mean - 0.6 * np.eye(5)).max() < 0.03
    with pytest.raises(excise.ExciseError, match="rank must be"):
        excise.random_projection(3, 4, seed=0)


def test_nothing_to_erase_is_said():
    X = np.array([[1.0, 0.0], [-1.0, 0.0], [1.0, 1.0], [-1.0, 1.0]] * 20)
    z = np.array([0, 0, 1, 1] * 20)
    flat = np.stack([X[:, 0], X[:, 0] ** 2], axis=1)
    for method in ("leace", "sal"):
        with pytest.warns(excise.ExciseWarning, match="rank 0"):
            eraser = excise.fit(flat, z, method=method)
        assert eraser.rank == 0
        assert np.array_equal(eraser(flat), flat)
    assert excise.fit(X, z).rank == 1


def test_few_rows_are_said(rng):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(excise.ExciseWarning, match=r"30 rows for 5 features.*0\.17"):
            excise.fit(rng.standard_normal((30, 5)), np.arange(30) % 2)


def test_an_offset_of_a_continuous_concept_costs_no_digits(rng):
    zc = rng.standard_normal(2000)
    X = rng.standard_normal((2000, 5)) + zc[:, None]
    z = 1e9 + zc
    exact = z - 1e9  # what float64 kept of it
    assert correlation(X, exact) > 0.5
    assert correlation(excise.erase(X, z), exact) < 1e-12
    assert correlation(excise.erase(X, z, method="oracle"), exact) < 1e-12


def test_almost_equal_columns_of_a_concept_are_two(rng):
    zc, w = rng.standard_normal((2, 3000))
    X = rng.standard_normal((3000, 6)) + np.outer(zc, rng.standard_normal(6)) + np.outer(w, rng.standard_normal(6))
    eraser = excise.fit(X, np.stack([zc, zc + 1e-7 * w], axis=1))
    assert eraser.rank == 2
    assert correlation(X, w) > 0.2
    assert correlation(eraser(X), w) < 1e-5
    assert correlation(eraser(X), zc) < 1e-12


def test_constant_features_stay_to_the_last_bit(rng):
    for _ in range(50):
        X = rng.standard_normal((300, 4))
        X[:, 1] = rng.standard_normal()
        eraser = excise.fit(X, rng.integers(0, 5, 300))
        assert np.array_equal(eraser(X)[:, 1], X[:, 1])
        assert np.abs(eraser(X) - X).max() > 0.01


def test_wide_float32_is_close_to_optimal(rng):
    n, d = 20_000, 300
    z = rng.integers(0, 2, n)
    common = rng.standard_normal(n)[:, None]
    noise = rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-1, 1, d)
    noise[:, 0] += 3 * z
    noise = noise @ np.linalg.qr(rng.standard_normal((d, d)))[0]
    X = (common + 0.01 * noise).astype(np.float32)  # one dominant direction
    narrow, exact = excise.fit(X, z), excise.fit(X.astype(float), z)
    edits = [mean_squared_edit(X, e(X.astype(float))) for e in (narrow, exact)]
    assert edits[0] < 1.2 * edits[1]  # float32 products: directions below 1e-6 of a variance are not seen
    assert narrow.info["canonical_correlations"][0] == pytest.approx(exact.info["canonical_correlations"][0], abs=0.01)
    # Fainter: the edit is larger than the smallest, which a sum in float32 cannot find. It guards just as well.
    X = (common + 0.0005 * noise).astype(np.float32)
    for x in (X, X.astype(float)):
        eraser = excise.fit(x, z)
        assert correlation(eraser(X.astype(float)), one_hot(z)) < 1e-9 < 1e-3 < correlation(X, one_hot(z))
        assert eraser.spectral_norm < 200


def test_what_cannot_be_erased_is_refused(rng):
    X = rng.standard_normal((12, 2))
    with pytest.raises(excise.ConceptError, match=r"one class only \('yes', 12 rows\).*at least two classes"):
        excise.fit(X, ["yes"] * 12)
    with pytest.raises(excise.ConceptError, match="constant over all 12 rows"):
        excise.fit(X, np.full(12, 0.5), kind="continuous")
    with pytest.raises(excise.InputError, match=r"1 sample \(row\)"):
        excise.fit(X[:1], ["a"])
    with pytest.raises(excise.ExciseError, match="method must be one of leace"):
        excise.fit(X, np.arange(12) % 2, method="lace")
    with pytest.raises(excise.ExciseError, match="leace has no option 'shrink'; it has affine"):
        excise.fit(X, np.arange(12) % 2, shrink="oas")
    with pytest.raises(excise.ExciseError, match="shrinkage must be"):
        excise.fit(X, np.arange(12) % 2, shrinkage="lw")
    with pytest.raises(excise.ExciseError, match="strength must be"):
        excise.fit(X, np.arange(12) % 2, strength=np.nan)
    with pytest.raises(excise.ExciseError, match="limit_norm must be"):
        excise.fit(X, np.arange(12) % 2, limit_norm=excise.Moments(3))


def test_info_says_what_was_done(rng):
    z = rng.integers(0, 3, 2000)
    X = rng.standard_normal((2000, 5)) + rng.standard_normal((3, 5))[z]
    info = excise.fit(X, z).info
    assert {"method", "n", "d", "classes", "canonical_correlations", "ridge", "ridge_multiplier", "versions"} <= set(
        info
    )
    assert (info["n"], info["d"], info["classes"], info["ridge_multiplier"]) == (2000, 5, [0, 1, 2], 1.0)
    assert 0 < info["ridge"] < 1e-12
    from sklearn.cross_decomposition import CCA

    x, y = CCA(2, max_iter=20_000, tol=1e-12).fit_transform(X, one_hot(z)[:, :2])
    expected = [np.corrcoef(x[:, i], y[:, i])[0, 1] for i in range(2)]
    assert info["canonical_correlations"] == pytest.approx(expected, abs=1e-6)
