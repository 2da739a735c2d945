"""Names that people look for: difference in means, a reference class, transport, the strength of a switch; and alf."""

from __future__ import annotations

import numpy as np
import ot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measure import class_gap, covariance, mean_squared_edit, one_hot

import excise

pytestmark = pytest.mark.filterwarnings("ignore::excise.ExciseWarning")


def two_classes(seed=0, n=600, d=5):
    rng = np.random.default_rng(seed)
    z = rng.integers(0, 2, n)
    mix = np.stack([np.eye(d), rng.standard_normal((d, d)) / np.sqrt(d)])
    X = np.einsum("nij,nj->ni", mix[z], rng.standard_normal((n, d))) + rng.standard_normal((2, d))[z] + 2
    return X, z


def test_difference_in_means_is_directional_ablation():
    X, z = two_classes()
    v = X[z == 1].mean(0) - X[z == 0].mean(0)
    v /= np.linalg.norm(v)
    assert np.allclose(excise.erase(X, z, "diff_in_means"), X - np.outer(X @ v, v), atol=1e-12)
    assert excise.fit(X, z, "diff_in_means").info["method"] == "diff_in_means"
    for method in ("sal", "mean_projection", "diff_in_means"):  # affine concept editing
        eraser = excise.fit(X, z, method, reference=0)
        expected = X - np.outer((X - X[z == 0].mean(0)) @ v, v)
        assert np.allclose(eraser(X), expected, atol=1e-12)
        assert np.allclose(eraser(X)[z == 0].mean(0), X[z == 0].mean(0), atol=1e-12)
    with pytest.raises(excise.ConceptError, match="reference 7 is not a class"):
        excise.fit(X, z, "sal", reference=7)
    with pytest.raises(excise.ConceptError, match="names a class"):
        excise.fit(X, X[:, 0] + 0.1, "sal", reference=0)


def test_transport_against_pot(tmp_path):
    X, z = two_classes(1)
    D = X.std(0)
    m = excise.ClassMoments().update(X, z)
    eraser = excise.transport(m, 1, 0)
    moved = eraser(X, z)
    # POT divides by n - 1 and adds a regulariser; both off here.
    A, b = ot.gaussian.bures_wasserstein_mapping(
        X[z == 1].mean(0) / D,
        X[z == 0].mean(0) / D,
        np.cov((X[z == 1] / D).T, bias=True),
        np.cov((X[z == 0] / D).T, bias=True),
    )
    assert np.allclose(moved[z == 1], (X[z == 1] / D @ A + b) * D, atol=1e-8)
    assert np.array_equal(moved[z == 0], X[z == 0])
    assert np.abs(moved[z == 1].mean(0) - X[z == 0].mean(0)).max() < 1e-10
    assert np.allclose(np.cov(moved[z == 1].T, bias=True), np.cov(X[z == 0].T, bias=True), atol=1e-9)
    assert np.abs(np.cov(X[z == 1].T) - np.cov(X[z == 0].T)).max() > 0.1
    assert np.allclose(excise.quadratic(m).edit(X[z == 1], 1, 0), moved[z == 1], atol=1e-9)
    eraser.save(tmp_path / "e")
    assert np.array_equal(excise.load(tmp_path / "e")(X, z), moved)
    for source, target, message in ((1, 1, "same class"), (1, 5, "no class 5")):
        with pytest.raises(excise.ConceptError, match=message):
            excise.transport(m, source, target)


def test_strength_of_a_switch():
    rng = np.random.default_rng(2)
    a, b = rng.integers(0, 2, (2, 500))
    X = rng.standard_normal((500, 4)) + np.outer(a, [2, 0, 0, 0]) + np.outer(b, [0, 2, 0, 0])
    one, two = (excise.Moments().update(X, z) for z in (a, b))
    for beta in (0.0, 0.5, 1.0):
        left = covariance(excise.switch(one, two, strength=beta)(X), one_hot(a))
        expected = (1 - beta) * covariance(X, one_hot(a)) + beta * covariance(X, one_hot(b))
        assert np.allclose(left, expected, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6), k=st.integers(2, 4), scale=st.sampled_from([1e-20, 1.0, 1e20]), rank=st.integers(0, 5)
)
def test_alf_guards_and_is_the_projection_of_a_plain_loop(seed, k, scale, rank):
    rng = np.random.default_rng(seed)
    d, n = 9, 900
    z = np.concatenate([np.arange(k), np.arange(k), rng.integers(0, k, n - 2 * k)])
    X = rng.standard_normal((n, d)) * np.exp(rng.standard_normal((k, d)))[z] + rng.standard_normal((k, d))[z]
    X = X @ rng.standard_normal((d, d))
    eraser = excise.fit(X * scale, z, "alf", rank=rank)
    erased = eraser(X * scale) / scale
    assert class_gap(X, z) > 1e-2
    assert class_gap(erased, z) < 1e-9 * class_gap(X, z)
    assert eraser.rank == k - 1 + rank
    assert np.abs(eraser(erased * scale) / scale - erased).max() < 1e-7 * np.abs(X).max()
    # By definition: whiten, project off the means' span, then off the leading eigenvectors.
    values, vectors = np.linalg.eigh(np.corrcoef(X.T))
    W = (vectors / np.sqrt(values)).T / X.std(0)
    U = np.linalg.svd(W @ covariance(X, one_hot(z)), full_matrices=False)[0][:, : k - 1]
    Pi = np.eye(d) - U @ U.T
    p = np.bincount(z) / n
    C = [W @ np.cov(X[z == c].T, bias=True) @ W.T for c in range(k)]
    mean = sum(a * b for a, b in zip(p, C, strict=True))
    M = sum(a * np.linalg.matrix_power(Pi @ (b - mean) @ Pi, 2) for a, b in zip(p, C, strict=True))
    Q = np.c_[U, np.linalg.eigh(M)[1][:, ::-1][:, :rank]]
    expected = X - (X - X.mean(0)) @ W.T @ Q @ Q.T @ np.linalg.inv(W).T
    assert np.abs(erased - expected).max() < 1e-6 * np.abs(X).max()


def test_alf_brings_covariances_together_and_target_is_the_share():
    X, z = two_classes(4, 4000, 8)
    edits, gaps = [], []
    for target in (0.3, 0.6, 0.95, 1.0):
        eraser = excise.fit(X, z, "alf", target=target)
        assert eraser.info["difference_removed_beyond_chance"] >= target - 1e-9
        erased = eraser(X)
        edits.append(mean_squared_edit(X, erased))
        gaps.append(np.linalg.norm(np.cov(erased[z == 1].T) - np.cov(erased[z == 0].T)))
    assert edits == sorted(edits)
    after_leace = excise.erase(X, z)
    assert gaps[-1] < 0.3 * np.linalg.norm(np.cov(after_leace[z == 1].T) - np.cov(after_leace[z == 0].T))


@pytest.mark.parametrize("target", [0, -1, 1.5, "all", True, None])
def test_alf_refuses_a_bad_target(target):
    X, z = two_classes(5)
    with pytest.raises(excise.ExciseError, match="target must be"):
        excise.fit(X, z, "alf", target=target)


def test_alf_refuses_too_many_directions_and_a_class_of_one_row():
    X, z = two_classes(6)
    with pytest.raises(excise.ExciseError, match="rank must be at most 4"):
        excise.fit(X, z, "alf", rank=5)
    with pytest.raises(excise.InputError, match="has 1 row"):
        excise.fit(X, np.where(np.arange(len(z)) == 0, 2, z), "alf")
    with pytest.raises(excise.InputError, match="needs ClassMoments"):
        excise.alf(excise.Moments().update(X, z))


def test_one_after_the_other_guards_both_and_edits_more_than_jointly():
    rng = np.random.default_rng(7)
    a, b = rng.integers(0, 2, (2, 2000))
    a = np.where(rng.random(2000) < 0.4, b, a)
    X = rng.standard_normal((2000, 6)) @ rng.standard_normal((6, 6)) + np.outer(a, rng.standard_normal(6))
    X += np.outer(b, 2 * rng.standard_normal(6))
    joint = excise.erase(X, {"a": a, "b": b})
    edits = [mean_squared_edit(X, joint)]
    for first, second in ((a, b), (b, a)):
        step = excise.erase(X, first)
        both = excise.erase(step, second)
        assert max(class_gap(both, a), class_gap(both, b)) < 1e-9
        edits.append(mean_squared_edit(X, both))
    assert max(class_gap(joint, a), class_gap(joint, b)) < 1e-9
    assert edits[0] <= min(edits[1:]) + 1e-9
