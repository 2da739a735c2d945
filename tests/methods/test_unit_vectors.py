"""normalize=True: the concept is gone from unit vectors, whatever the scale, dtype and number of classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from measure import correlation, covariance, mean_squared_edit, one_hot
from scipy.optimize import minimize

import excise

pytestmark = pytest.mark.filterwarnings("ignore::excise.ExciseWarning")


def unit(X):
    X = np.asarray(X, dtype=np.float64)
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def problem(seed):
    """Mixed scales, offsets and class distances; at least two dimensions are left."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(4, 30))
    k = int(rng.integers(2, min(6, d - 1)))
    n = int(rng.integers(20, 80) * d)
    z = np.concatenate([np.arange(k), rng.integers(0, k, n - k)])
    spread, gap = 10 ** rng.uniform(-1.5, 1.5, (2, d))
    X = rng.standard_normal((n, d)) * spread + rng.choice([0.3, 1, 3]) * (rng.standard_normal((k, d)) * gap)[z]
    return X @ rng.standard_normal((d, d)) + rng.choice([0, 1, 10]) * rng.standard_normal(d), z


@pytest.mark.parametrize("block", range(4))
def test_one_hundred_random_problems(block):
    brought_back = []
    for seed in range(25 * block, 25 * block + 25):
        X, z = problem(seed)
        eraser = excise.fit(X, z, normalize=True, shrinkage="none")
        u = eraser(X)
        assert np.abs(np.linalg.norm(u, axis=1) - 1).max() < 1e-12
        assert eraser.info["residual"] < 1e-10
        assert correlation(u, one_hot(z)) < 1e-10
        brought_back.append(correlation(unit(excise.erase(X, z)), one_hot(z)))
    assert np.median(brought_back) > 1e-3  # what normalising brings back after plain LEACE


def test_against_a_plain_loop_and_the_constrained_optimum(rng):
    """The fixed point of the formula, iterated naively; and no affine map with the same weights is closer."""
    z = rng.integers(0, 3, 600)
    X = rng.standard_normal((600, 5)) @ rng.standard_normal((5, 5)) + rng.standard_normal((3, 5))[z] + 1
    H, Z = np.c_[X, np.ones(600)], one_hot(z) - one_hot(z).mean(0)
    S, w = H.T @ H / 600, 1 / np.linalg.norm(X, axis=1)
    for _ in range(400):
        A = H.T @ (w[:, None] * Z[:, :2]) / 600
        M = np.eye(5, 6) - A[:5] @ np.linalg.solve(A.T @ np.linalg.solve(S, A), np.linalg.solve(S, A).T)
        w = 1 / np.linalg.norm(H @ M.T, axis=1)
    eraser = excise.fit(X, z, normalize=True)
    assert correlation(unit(H @ M.T), Z) < 1e-12
    assert np.abs(eraser(X) - unit(H @ M.T)).max() < 1e-9
    raw = X @ eraser.P.T + eraser.bias
    A = H.T @ (Z[:, :2] / np.linalg.norm(raw, axis=1)[:, None]) / 600
    found = minimize(
        lambda m: ((H @ (m.reshape(5, 6) - np.eye(5, 6)).T) ** 2).sum() / 600,
        np.c_[eraser.P, eraser.bias].ravel() * 0.5,
        jac=lambda m: (2 * (m.reshape(5, 6) - np.eye(5, 6)) @ S).ravel(),
        constraints={
            "type": "eq",
            "fun": lambda m: (m.reshape(5, 6) @ A).ravel(),
            "jac": lambda m: np.kron(np.eye(5), A.T),
        },
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-15},
    )
    assert found.fun == pytest.approx(mean_squared_edit(X, raw), rel=1e-6)
    assert np.abs(found.x.reshape(5, 6) - np.c_[eraser.P, eraser.bias]).max() < 1e-4


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    unit_of=st.sampled_from([1e-30, 1.0, 1e30]),
    offset=st.sampled_from([0.0, 3.0, 100.0]),
    k=st.integers(2, 4),
    wild=st.booleans(),
)
def test_scales_offsets_and_classes(seed, unit_of, offset, k, wild):
    rng = np.random.default_rng(seed)
    z = np.concatenate([np.arange(k), rng.integers(0, k, 400 - k)])
    X = rng.standard_normal((400, 8)) + rng.standard_normal((k, 8))[z] + offset
    X = X * (10.0 ** rng.uniform(-1.5, 1.5, 8) if wild else 1.0) * unit_of
    eraser = excise.fit(X, z, normalize=True)
    u = eraser(X)
    assert correlation(unit(X), one_hot(z)) > 0.03
    assert eraser.info["residual"] < 1e-10
    # Unit vectors of a feature that dominates are all about 1: what varies of it is judged beside its rounding.
    Z = one_hot(z)
    size = np.abs(covariance(u, Z)) / Z.std(0)
    assert (size < 1e-10 * u.std(0)[:, None] + 3e-13).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_narrow_dtypes(rng, dtype):
    z = rng.integers(0, 3, 3000)
    X = torch.from_numpy(rng.standard_normal((3000, 300)) + 0.5 * rng.standard_normal((3, 300))[z]).to(
        getattr(torch, dtype)
    )
    eraser = excise.fit(X, torch.from_numpy(z), normalize=True)
    u = eraser(X)
    assert u.dtype == X.dtype
    exact = eraser(X.double().numpy())
    assert correlation(unit(X.double().numpy()), one_hot(z)) > 0.1
    assert correlation(exact, one_hot(z)) < 1e-9
    roundings = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    assert np.abs(u.double().numpy() - exact).max() <= 2 * roundings * np.abs(exact).max()
    module = eraser.as_module()
    assert np.abs(module(X).double().numpy() - exact).max() <= 2 * roundings * np.abs(exact).max()


def test_a_rare_class_weights_and_continuous_concepts(rng):
    X = rng.standard_normal((4000, 12)) + 1
    z = (np.arange(4000) < 8).astype(int)
    X[z == 1] *= [-3, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    assert correlation(unit(X), one_hot(z)) > 0.05
    assert correlation(excise.fit(X, z, normalize=True)(X), one_hot(z)) < 1e-9
    weight = rng.integers(0, 3, 4000)
    eraser = excise.fit(X, z, normalize=True, sample_weight=weight)
    again = np.repeat(X, weight, axis=0), np.repeat(z, weight)
    assert np.allclose(eraser(X), excise.fit(*again, normalize=True)(X), atol=1e-9)
    numbers = X @ rng.standard_normal((12, 2)) + rng.standard_normal((4000, 2))
    assert correlation(unit(X), numbers) > 0.3
    assert correlation(excise.fit(X, numbers, normalize=True)(X), numbers) < 1e-10


def test_where_the_lengths_alone_know_the_concept(rng):
    """Cov(X, z) = 0 before, not so for unit vectors: LEACE would do nothing."""
    X = rng.standard_normal((300, 4)) + np.array([3, 0, 0, 0])
    X, z = np.concatenate([X, (X - X.mean(0)) * 3 + X.mean(0)]), np.repeat([0, 1], 300)
    assert correlation(X, z) < 1e-12
    assert correlation(unit(X), z) > 0.1
    u = excise.fit(X, z, normalize=True)(X)
    assert correlation(u, z) < 1e-10


def test_batches_files_and_the_estimator(rng, tmp_path):
    z = rng.integers(0, 3, 2000)
    X = rng.standard_normal((2000, 20)) + rng.standard_normal((3, 20))[z]
    eraser = excise.fit(X, z, normalize=True)
    parts = [(X[i : i + 300], z[i : i + 300]) for i in range(0, 2000, 300)]
    for source in (parts, lambda: iter(parts)):
        streamed = excise.fit_batches(source, normalize=True)
        assert np.abs(streamed(X) - eraser(X)).max() < 1e-9
        assert correlation(streamed(X), one_hot(z)) < 1e-11
    weighted = excise.fit_batches([(*part, np.full(len(part[1]), 2.0)) for part in parts], normalize=True)
    assert np.abs(weighted(X) - eraser(X)).max() < 1e-9
    with pytest.raises(excise.InputError, match="generator"):
        excise.fit_batches(iter(parts), normalize=True)
    passes = iter([parts, []])
    with pytest.raises(excise.InputError, match="2000 rows at first and 0"):
        excise.fit_batches(lambda: next(passes), normalize=True)
    eraser.save(tmp_path / "e")
    loaded = excise.load(tmp_path / "e")
    assert loaded.normalize
    assert np.array_equal(loaded(X), eraser(X))
    assert np.array_equal(excise.erase(X, z, normalize=True), eraser(X))
    routed = excise.ConceptEraser(normalize=True)
    assert np.array_equal(routed.fit_transform(X, sensitive_features=z), eraser(X))
    with pytest.raises(excise.ExciseError, match="several times"):
        routed.partial_fit(X, sensitive_features=z)


def test_bad_input_is_named(rng):
    z = rng.integers(0, 2, 100)
    X = rng.standard_normal((100, 5)) + z[:, None]
    zero = X.copy()
    zero[17] = 0
    with pytest.raises(excise.InputError, match="row 17 has zeros only"):
        excise.fit(zero, z, normalize=True)
    with pytest.raises(excise.ConceptError, match="takes 1 of 2 dimensions"):
        excise.fit(X[:, :2], z, normalize=True)
    with pytest.raises(excise.ExciseError, match="for method 'leace', not 'sal'"):
        excise.fit(X, z, "sal", normalize=True)
    with pytest.raises(excise.ExciseError, match="no option 'strength'"):
        excise.fit(X, z, normalize=True, strength=0.5)
    # The one unit vector of a class of one row cannot be the mean of the others'.
    with pytest.raises(excise.ExciseError, match=r"smallest class, 1, has 1 rows|mapped to zero"):
        excise.fit(X, (np.arange(100) == 3).astype(int), normalize=True)
