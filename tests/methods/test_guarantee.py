"""The table of what must hold, row by row, each measured independently and each "it was there before" asserted."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import numpy as np
import pytest
from measure import (
    canonical_correlation,
    class_gap,
    correlation,
    covariance,
    leace_by_definition,
    logistic_losses,
    mean_squared_edit,
    one_hot,
    tolerance,
)
from optional import optional

import excise

torch = optional("torch")


def labelled(rng, n, d, k=2, mix=True):
    z = rng.integers(0, k, n)
    X = rng.standard_normal((n, d)) + rng.standard_normal((k, d))[z]
    return (X @ rng.standard_normal((d, d)) if mix else X), z


def test_rare_class(rng):
    n = 200_000
    z = np.zeros(n, dtype=int)
    z[rng.choice(n, 20, replace=False)] = 1
    X = rng.standard_normal((n, 8))
    X[z == 1] += 40
    for method in ("leace", "sal", "oracle"):
        erased = excise.erase(X, z, method=method)
        assert class_gap(X, z) > 39
        assert class_gap(erased, z) < 1e-9 * class_gap(X, z)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_units_of_a_continuous_concept(rng, unit):
    z = rng.standard_normal(5000)
    X = rng.standard_normal((5000, 6)) + z[:, None]
    erased = excise.erase(X, z * unit)
    assert correlation(X, z) > 0.6
    assert correlation(erased, z) < 1e-9
    assert np.abs(erased - excise.erase(X, z)).max() < 1e-9
    assert np.abs(excise.erase(X, z * unit, method="oracle") - excise.erase(X, z, method="oracle")).max() < 1e-9


@pytest.mark.parametrize("method", ["leace", "oracle"])
def test_units_of_the_features(rng, method):
    X, z = labelled(rng, 4000, 12, 3)
    scale = 10 ** rng.uniform(-8, 8, 12)
    scaled = X * scale
    erased = excise.erase(scaled, z, method=method)
    assert canonical_correlation(scaled, one_hot(z)) > 0.5
    assert canonical_correlation(erased, one_hot(z)) < 1e-7
    spread = X.std(0)
    assert (np.abs(erased / scale - excise.erase(X, z, method=method)) / spread).max() < 1e-9


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("mix", [False, True])
def test_float32_with_wild_spreads(rng, offset, mix):
    n, d = 20_000, 128
    z = rng.integers(0, 2, n)
    base = rng.standard_normal((n, d)) + z[:, None] * rng.standard_normal(d)
    if mix:
        base = base @ (np.eye(d) + rng.standard_normal((d, d)) / np.sqrt(d))
    spread = np.logspace(0, -5, d)
    X = (base * spread + offset * spread * rng.standard_normal(d)).astype(np.float32)
    Z = one_hot(z)
    eraser = excise.fit(X, z)
    exact = np.asarray(X, float) @ eraser.P.T + eraser.bias  # float64 apply
    erased = eraser(X)
    assert erased.dtype == np.float32
    assert canonical_correlation(X, Z) > 0.86
    # Directions above the floor of float32's rounding, in units of a feature's spread: half a unit in the last place of
    # the largest values, times a margin for the sum over features.
    floor = 20 * 2.0**-24 * max(1.0, 4 * offset)
    assert canonical_correlation(X, Z, floor=floor) > 0.86
    assert canonical_correlation(erased, Z, floor=floor) <= 1e-3
    rounded = canonical_correlation(exact.astype(np.float32), Z)
    assert canonical_correlation(erased, Z) <= max(2 * rounded, 5 / np.sqrt(n))


@pytest.mark.parametrize(
    ("dtype", "offset"), [(torch.bfloat16, 3), (torch.bfloat16, 100), (torch.float16, 3), (torch.float16, 30)]
)
def test_16_bits(rng, dtype, offset):
    n, d = 20_000, 32
    z = (rng.random(n) < 0.4).astype(int)
    base = rng.standard_normal((n, d)) @ (np.eye(d) + 0.5 * rng.standard_normal((d, d)) / np.sqrt(d))
    base = base + 0.8 * z[:, None] * rng.standard_normal(d) + offset
    base[:, :3] *= 1000
    X = torch.from_numpy(base).to(dtype)
    assert bool(torch.isfinite(X).all())
    seen = X.double().numpy()
    eraser = excise.fit(X, torch.from_numpy(z))
    exact = torch.from_numpy(seen @ eraser.P.numpy().T + eraser.bias.numpy())
    nearest, best = eraser(X), exact.to(dtype)
    assert nearest.dtype == dtype
    before, trivial, _ = logistic_losses(seen, z)
    assert before < trivial - 0.2
    leak = [trivial - logistic_losses(x.double().numpy(), z)[0] for x in (nearest, best)]
    assert leak[0] <= 2 * leak[1] + 1e-12
    if offset == 100:
        assert leak[1] > 0.03  # rounding to nearest brings the concept back, even after an exact erasure
    random = eraser(X, rounding="stochastic", seed=1)
    loss, trivial, error = logistic_losses(random.double().numpy(), z)
    assert trivial - loss <= 3 * error
    assert torch.equal(random, eraser(X, rounding="stochastic", seed=1))
    assert not torch.equal(random, eraser(X, rounding="stochastic", seed=2))


@pytest.mark.parametrize(
    "case", ["collinear", "constant", "few rows", "many classes", "one feature", "one numeric label", "layer norm"]
)
@pytest.mark.filterwarnings("ignore:.*rows for.*:excise.ExciseWarning")
def test_degenerate(rng, case):
    n, d, k = {"few rows": (20, 50, 3), "many classes": (500, 4, 12), "one feature": (300, 1, 2)}.get(case, (400, 8, 3))
    X, z = labelled(rng, n, d, k)
    if case == "collinear":
        X[:, 3] = X[:, 0] - 2 * X[:, 1]
        X[:, 7] = X[:, 0]
    if case == "constant":
        X[:, 2] = 1 / 3
        X[:, 5] = 0
    if case == "layer norm":
        X = (X - X.mean(1, keepdims=True)) / X.std(1, keepdims=True)
    Z = one_hot(z)
    if case == "one numeric label":
        z = rng.standard_normal(n)
        X = X + z[:, None]
        Z = z[:, None]
    all_gone = case in ("many classes", "one feature")  # every dimension belongs to the concept, and fitting says so
    with pytest.warns(excise.ExciseWarning, match="everything was erased") if all_gone else nullcontext():
        eraser = excise.fit(X, z, shrinkage="none")
    erased = eraser(X)
    assert np.isfinite(erased).all()
    gap = np.abs(covariance(erased, Z)).max() / np.abs(covariance(X, Z)).max()
    assert correlation(X, Z) > 0.1
    assert gap < 1e-10
    assert eraser.rank <= max(1, min(d, Z.shape[1] - 1))
    if case == "constant":
        assert (erased[:, [2, 5]] == X[:, [2, 5]]).all()
        assert (eraser.P[[2, 5]] == np.eye(d)[[2, 5]]).all()
        assert (eraser.P[:, [2, 5]] == np.eye(d)[:, [2, 5]]).all()
    # The same edit as the paper's formula on these rows, also where the covariance is singular.
    P, mean = leace_by_definition(X, Z)
    assert np.abs((X - mean) @ P.T + mean - erased).max() < 1e-7 * np.abs(X).max()


def test_directions_without_variance_get_a_bounded_weight(rng):
    X, z = labelled(rng, 500, 6, 3)
    X = X @ np.linalg.qr(rng.standard_normal((6, 6)))[0][:, :4] @ rng.standard_normal((4, 6))  # rank 4
    eraser = excise.fit(X, z)
    scale = X.std(0)
    # In standardised units, so that the answer does not depend on the units of the features.
    null = np.linalg.svd((X - X.mean(0)) / scale)[2][4:] * scale
    # A direction without variance gets a weight of at most rounding over the ridge.
    assert np.abs((eraser.P @ null.T - null.T) / scale[:, None]).max() < 1
    units = 10 ** rng.uniform(-4, 4, 6)
    rescaled = excise.fit(X * units, z)
    assert np.abs(rescaled(X * units) / units - eraser(X)).max() < 1e-9


def test_paper_example():
    X = np.array([[1.0, 2.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, -2.0]])
    z = np.array([1, -1, 1, -1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", excise.ExciseWarning)
        m = excise.Moments().update(X, z)
        oblique, orthogonal = excise.leace(m, shrinkage="none"), excise.sal(m)
    assert np.allclose(oblique.P, [[1, 0], [1, 0]], atol=1e-12)
    assert np.allclose(orthogonal.P, [[1, 0], [0, 0]], atol=1e-12)
    assert mean_squared_edit(X, oblique(X)) == pytest.approx(1)
    assert mean_squared_edit(X, orthogonal(X)) == pytest.approx(2)


def test_label_types_of_the_same_classes_give_the_same_eraser(rng):
    import pandas as pd
    import polars as pl

    X, z = labelled(rng, 1000, 5, 2)
    names = np.where(z == 1, "yes", "no")
    same = [z, z.astype(bool), z.astype(float), z.astype(np.int8), names, list(names), names.astype(object), z[:, None]]
    same += [
        pd.Series(names, dtype="category"),
        pl.Series(names),
        pl.Series(names, dtype=pl.Categorical),
        torch.tensor(z),
    ]
    first = excise.erase(X, z)
    assert class_gap(first, z) < 1e-12 < 0.5 < class_gap(X, z)
    for labels in same:
        assert np.array_equal(excise.erase(X, labels), first)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_reference_agrees_where_its_assumptions_hold(rng):
    LeaceFitter = optional("concept_erasure").LeaceFitter
    X, z = labelled(rng, 5000, 20, 4)
    X = X / X.std(0)
    fitter = LeaceFitter.fit(torch.from_numpy(X), torch.from_numpy(one_hot(z)), shrinkage=False)
    theirs = fitter.eraser(torch.from_numpy(X)).numpy()
    assert class_gap(X, z) > 0.5
    assert np.abs(theirs - excise.erase(X, z)).max() < 1e-6


def test_cutoffs_survive_the_reference_failures(rng):
    """The mean 1000 times the spread in float32, where the reference leaves more than half of the gap."""
    n = 20_000
    z = rng.integers(0, 2, n)
    X = (1000 + rng.standard_normal((n, 16)) + 2.4 * z[:, None]).astype(np.float32)
    erased = excise.erase(X, z)
    assert class_gap(X, z) > 2.3
    assert class_gap(erased, z) < 1000 * tolerance("float32")


@pytest.mark.parametrize("held_as", ["float32", "float64"])
@pytest.mark.parametrize("bias", [1.0, 20.0])
@pytest.mark.parametrize("d", [24, 256])
def test_the_constant_direction_of_a_norm_is_left_alone(rng, d, bias, held_as):
    """The output of a LayerNorm in float32 varies by rounding errors alone in one direction: no eraser may lean on it."""
    n = 20 * d
    z = rng.integers(0, 3, n)
    H = (rng.standard_normal((n, d)) + rng.standard_normal((3, d))[z]).astype(np.float32)
    gain, offset = rng.uniform(0.2, 2, d).astype(np.float32), (bias * rng.standard_normal(d)).astype(np.float32)
    X = (H - H.mean(1, keepdims=True)) / np.sqrt(H.var(1, keepdims=True) + np.float32(1e-5)) * gain + offset
    assert X.dtype == np.float32
    X = X.astype(held_as)
    spreads = np.sqrt(np.abs(np.linalg.eigvalsh(np.corrcoef(X.T.astype(float)))[:2]))
    assert spreads[0] < 1e-5 < 1e-3 < spreads[1]
    eraser = excise.fit(X, z)
    erased = eraser(X)
    assert class_gap(X, z) > 0.3
    assert class_gap(erased, z) < tolerance("float32") * 10 * (1 + bias)
    assert eraser.spectral_norm < 10
    P, mean = leace_by_definition(X.astype(float)[:, :-1], one_hot(z))  # without a feature there is no such direction
    least = np.mean(((X[:, :-1] - mean) @ (np.eye(d - 1) - P).T) ** 2)
    assert np.mean((erased - X)[:, :-1].astype(float) ** 2) < least * (1 + 1e-4)
    half = eraser(X.astype(np.float16)).astype(float)
    assert np.abs(half - erased).max() < 0.02 * np.abs(X).max()


@pytest.mark.parametrize("d", [2, 8, 32])
def test_what_an_erasure_emptied_is_no_reason_to_move_anything_else(rng, d):
    """Float32 rows that were erased before hold rounding errors in the emptied direction: erasing again must read it there."""
    n = 2000
    z, y = rng.standard_normal((2, n))
    X = rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) + np.outer(z, rng.standard_normal(d))
    X = (X + np.outer(y, rng.standard_normal(d))).astype(np.float32)
    once = excise.erase(X, y)
    variance = once.astype(float).var(axis=0).sum()
    assert mean_squared_edit(X, once) > 1e-3 * variance
    assert mean_squared_edit(once, excise.erase(once, y)) < 1e-9 * variance
    if d > 2:
        alone, both = excise.erase(once, z), excise.erase(once, np.c_[z, y])
        assert mean_squared_edit(once, both) == pytest.approx(mean_squared_edit(once, alone), rel=1e-4)


@pytest.mark.parametrize("difference", [1e-9, 4e-9, 1e-6])
def test_a_concept_in_the_small_difference_of_two_copies(rng, difference):
    n = 1000
    z1, z2 = rng.standard_normal((2, n))
    C = np.c_[np.ones(n), z1, z2]
    B = rng.standard_normal((n, 4))
    B -= C @ np.linalg.lstsq(C, B, rcond=None)[0]
    X = np.c_[B[:, 0] + z1, B[:, 0] + z1 + difference * (z2 + B[:, 1]), B[:, 1:]]
    erased = excise.erase(X, np.c_[z1, z2])
    assert correlation(X, z1) > 0.5
    assert np.abs(covariance(erased, np.c_[z1, z2]) / X.std(0)[:, None]).max() < 1e-7
    assert (erased.std(0) < 1.1 * X.std(0)).all()
