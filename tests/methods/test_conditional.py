"""condition_on=y: the concept is gone within every class of y, by the least affine edit, and y is kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measure import covariance, leace_by_definition, mean_squared_edit, one_hot
from scipy.optimize import minimize

import excise
from excise.methods.special import fit_conditional
from excise.moments.conditional import conditional_columns

pytestmark = pytest.mark.filterwarnings("ignore::excise.ExciseWarning")


def people(seed=0, n=900, d=6, k=2, classes=2):
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.repeat(np.arange(classes), k), rng.integers(0, classes, n - k * classes)])
    z = np.concatenate([np.tile(np.arange(k), classes), rng.integers(0, k, n - k * classes)])
    z = np.where(rng.random(n) < 0.3, y % k, z)
    X = rng.standard_normal((n, d)) + rng.standard_normal((k, d))[z] + 2 * rng.standard_normal((classes, d))[y]
    X += rng.standard_normal((classes, k, d))[y, z]  # the groups differ otherwise in every class
    return X @ rng.standard_normal((d, d)) + 3, z, y


def columns(z, y):
    """1[y = c] (z - E[z | y = c]), by a plain loop."""
    Z = one_hot(z) if z.ndim == 1 and z.dtype.kind != "f" else z.reshape(len(z), -1)
    out = []
    for c in np.unique(y):
        part = np.zeros_like(Z)
        part[y == c] = Z[y == c] - Z[y == c].mean(0)
        out.append(part)
    return np.concatenate(out, axis=1)


def within(X, z, y):
    """Largest covariance of X with the concept within a class of y."""
    Z = one_hot(z) if z.dtype.kind != "f" else z.reshape(len(z), -1)
    return max(np.abs(covariance(X[y == c], Z[y == c])).max() for c in np.unique(y))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    k=st.integers(2, 3),
    classes=st.integers(2, 3),
    numbers=st.booleans(),
    scale=st.sampled_from([1e-20, 1.0, 1e20]),
)
def test_guards_within_every_class_and_is_leace_on_the_columns(seed, k, classes, numbers, scale):
    X, z, y = people(seed, d=12, k=k, classes=classes)
    z = z + np.random.default_rng(seed).standard_normal(len(z)) if numbers else z
    X = X * scale
    eraser = excise.fit(X, z, condition_on=y)
    erased = eraser(X)
    assert within(X, z, y) > 1e-3 * X.std()
    assert within(erased, z, y) < 1e-11 * X.std()
    P, mean = leace_by_definition(X / scale, columns(z, y))
    assert np.abs(erased / scale - ((X / scale - mean) @ P.T + mean)).max() < 1e-7 * np.abs(X / scale).max()
    assert np.allclose(conditional_columns(z, y), columns(z, y))
    assert eraser.concept.k == (1 if numbers else k)
    assert eraser.rank == classes * (1 if numbers else k - 1)
    # Not owed: the concept as a whole, which y may carry.
    assert np.abs(covariance(erased, one_hot(z) if not numbers else z[:, None])).max() > 1e-6 * X.std()


def test_nothing_affine_with_that_property_is_closer():
    X, z, y = people(3, 400, 5)
    eraser = excise.fit(X, z, condition_on=y)
    C = covariance(X, columns(z, y)[:, [0, 2]])
    Xc = X - X.mean(0)
    S = Xc.T @ Xc / len(X)
    found = minimize(
        lambda p: np.trace((p.reshape(5, 5) - np.eye(5)) @ S @ (p.reshape(5, 5) - np.eye(5)).T),
        np.zeros(25),
        jac=lambda p: (2 * (p.reshape(5, 5) - np.eye(5)) @ S).ravel(),
        constraints={
            "type": "eq",
            "fun": lambda p: (p.reshape(5, 5) @ C).ravel(),
            "jac": lambda p: np.kron(np.eye(5), C.T),
        },
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-15},
    )
    assert mean_squared_edit(X, eraser(X)) == pytest.approx(found.fun, rel=1e-6)


def test_streams_merges_saves_and_goes_with_normalize(tmp_path):
    X, z, y = people(5, d=8)
    eraser = excise.fit(X, z, condition_on=y)
    parts = [slice(i, i + 123) for i in range(0, len(X), 123)]
    a, b = excise.ConditionalMoments(), excise.ConditionalMoments()
    for i, part in enumerate(parts):
        (a if i % 2 else b).update(X[part], z[part], y[part])
    for merged in (a + b, b.merge(a)):
        assert np.abs(fit_conditional(merged)(X) - eraser(X)).max() < 1e-9
    streamed = excise.fit_batches([(X[p], z[p], y[p]) for p in parts], conditional=True)
    assert np.abs(streamed(X) - eraser(X)).max() < 1e-9
    eraser.save(tmp_path / "e")
    assert np.array_equal(excise.load(tmp_path / "e")(X), eraser(X))
    assert excise.load(tmp_path / "e").info["condition_on"]["classes"] == [0, 1]
    u = excise.fit(X, z, condition_on=y, normalize=True)(X)
    assert within(u, z, y) < 1e-11
    assert within(eraser(X) / np.linalg.norm(eraser(X), axis=1, keepdims=True), z, y) > 1e-4
    weight = np.random.default_rng(0).integers(1, 3, len(X))
    weighted = excise.fit(X, z, condition_on=y, sample_weight=weight)
    repeated = excise.fit(*(np.repeat(v, weight, axis=0) for v in (X, z)), condition_on=np.repeat(y, weight))
    assert np.allclose(weighted(X), repeated(X), atol=1e-9)


def test_frames_strings_and_sal():
    X, z, y = people(6)
    names = np.array(["no", "yes"])[y]
    assert np.allclose(excise.erase(X, z, condition_on=names), excise.erase(X, z, condition_on=y))
    eraser = excise.fit(X, z, "sal", condition_on=y)
    assert within(eraser(X), z, y) < 1e-11 * X.std()
    assert np.abs(eraser.P - eraser.P.T).max() < 1e-12


def test_bad_input_is_named():
    X, z, y = people(7, 200)
    with pytest.raises(excise.ConceptError, match="200 rows, but there are 199 labels in condition_on"):
        excise.fit(X, z, condition_on=y[:-1])
    with pytest.raises(excise.ConceptError, match=r"class 1 of condition_on has one group only \(only 0\)"):
        excise.fit(X, np.where(y == 1, 0, z), condition_on=y)
    with pytest.raises(excise.ConceptError, match="condition_on: one column of classes"):
        excise.fit(X, z, condition_on=np.random.default_rng(0).standard_normal(200))
    with pytest.raises(excise.ExciseError, match="condition_on is for the methods leace, sal"):
        excise.fit(X, z, "oracle", condition_on=y)
    thin = np.where((y == 1) & (z == 1), 0, z)
    thin[np.flatnonzero(y == 1)[0]] = 1
    with pytest.warns(excise.ExciseWarning, match="have one row"):
        excise.fit(X, thin, condition_on=y)
    three = np.where((y == 0) & (np.arange(200) % 3 == 0), 2, z)
    with pytest.warns(excise.ExciseWarning, match="are empty"):
        excise.fit(X, three, condition_on=y)
