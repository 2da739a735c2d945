"""Moments: batches, merges, weights, classes that come late; against NumPy on the whole data."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measure import covariance, one_hot
from optional import optional

import excise
from excise import ClassMoments, Concept, ConceptError, InputError, Moments

torch = optional("torch")

NAMES = ("mean_x", "mean_z", "cov_xx", "cov_xz", "cov_zz")


def close(a: Moments, b: Moments, rtol: float = 1e-12) -> None:
    assert a.n == pytest.approx(b.n, rel=1e-12)
    assert a.concept.names == b.concept.names
    sx, sz = np.sqrt(np.diag(b.cov_xx)), np.sqrt(np.diag(b.cov_zz))
    scale = {"mean_x": np.abs(b.mean_x) + sx, "mean_z": 1 + 0 * sz, "cov_xx": np.outer(sx, sx)}
    scale |= {"cov_xz": np.outer(sx, sz), "cov_zz": np.outer(sz, sz)}
    for name in NAMES:
        assert (np.abs(getattr(a, name) - getattr(b, name)) <= rtol * scale[name] + 1e-300).all(), name


def sample(seed: int, n: int, d: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.integers(0, k, n)
    X = (rng.standard_normal((n, d)) + z[:, None]) @ rng.standard_normal((d, d)) * 10 ** rng.uniform(-3, 3, d)
    return X + 100 * X.std(0), z


def test_against_numpy_on_the_whole_data():
    X, z = sample(0, 3000, 7, 4)
    m = Moments().update(X, z)
    Z = one_hot(z)
    assert np.allclose(m.mean_x, X.mean(0), rtol=1e-13)
    for got, expected in ((m.cov_xx, covariance(X, X)), (m.cov_xz, covariance(X, Z)), (m.cov_zz, covariance(Z, Z))):
        assert np.abs(got - expected).max() < 1e-12 * np.abs(expected).max()
    assert m.cov_xx.dtype == np.float64


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    cuts=st.lists(st.integers(1, 399), max_size=6, unique=True),
    order=st.randoms(use_true_random=False),
    continuous=st.booleans(),
)
def test_batches_of_any_size_and_order_and_merges_in_any_tree(seed, cuts, order, continuous):
    X, z = sample(seed, 400, 5, 3)
    labels = np.random.default_rng(seed).standard_normal((400, 2)) + z[:, None] if continuous else z
    concept = Concept.of(labels)
    whole = Moments().update(X, labels)
    bounds = [0, *sorted(cuts), 400]
    parts = list(pairwise(bounds))
    order.shuffle(parts)
    streamed = Moments(concept=concept)
    trees = [Moments(concept=concept).update(X[a:b], labels[a:b]) for a, b in parts]
    for a, b in parts:
        streamed.update(X[a:b], labels[a:b])
    while len(trees) > 1:
        i = order.randrange(len(trees) - 1)
        trees[i : i + 2] = [trees[i] + trees[i + 1]]
    close(streamed, whole)
    close(trees[0], whole)
    # ... and the edit, at this condition of the correlation matrix.
    condition = np.linalg.cond(np.corrcoef(X.T))
    erased = excise.leace(whole)(X)
    limit = 1e-10 * max(1.0, condition / 1e4) * X.std(0).max()
    assert np.abs(excise.leace(trees[0])(X) - erased).max() < limit + 1e-13 * np.abs(X).max()


def test_merge_is_commutative_to_the_bit():
    X, z = sample(1, 300, 4, 3)
    a, b = Moments().update(X[:120], z[:120]), Moments().update(X[120:], z[120:])
    ab, ba = a + b, b + a
    for name in NAMES:
        assert np.array_equal(getattr(ab, name), getattr(ba, name))


def test_classes_that_appear_late_and_join_by_name():
    X, z = sample(2, 300, 4, 3)
    z = np.sort(z)  # class 0 first, class 2 last
    words = np.array(["pear", "apple", "fig"])[z]
    streamed = Moments()
    for i in range(0, 300, 50):
        streamed.update(X[i : i + 50], words[i : i + 50])
    close(streamed, Moments().update(X, words))
    assert streamed.concept.names == ("apple", "fig", "pear")
    parts = [Moments().update(X[i : i + 50], words[i : i + 50]) for i in range(0, 300, 50)]
    close(sum(parts[::-1], Moments()), streamed)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), zero=st.booleans(), track=st.booleans())
def test_integer_weights_are_repetition(seed, zero, track):
    X, z = sample(seed, 120, 4, 3)
    w = np.random.default_rng(seed).integers(0 if zero else 1, 5, 120)
    weighted = Moments(concept=Concept.of(z)).update(X, z, sample_weight=w)
    repeated = Moments(concept=Concept.of(z)).update(np.repeat(X, w, axis=0), np.repeat(z, w))
    close(weighted, repeated)
    edit = excise.leace(weighted)(X) - excise.leace(repeated)(X)
    condition = np.linalg.cond(np.corrcoef(X.T))
    assert np.abs(edit).max() < (1e-10 * max(1.0, condition / 1e4) + 1e-12) * np.abs(X).max()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_narrow_dtypes_accumulate_what_carries_the_guarantee_in_float64(dtype):
    rng = np.random.default_rng(0)
    z = rng.integers(0, 2, 50_000)
    X = (8 + rng.standard_normal((50_000, 6)) + z[:, None]).astype(dtype)
    m = Moments().update(X, z)
    exact = np.asarray(X, np.float64)
    assert np.abs(m.mean_x - exact.mean(0)).max() < 1e-12
    assert np.abs(m.cov_xz - covariance(exact, one_hot(z))).max() < 1e-12
    assert np.abs(m.cov_xx - covariance(exact, exact)).max() < 1e-11


def test_wide_float32_products_know_their_precision():
    rng = np.random.default_rng(0)
    z = rng.integers(0, 2, 4000)
    X = rng.standard_normal((4000, 300)).astype(np.float32) + z[:, None].astype(np.float32)
    scale = 10 ** rng.uniform(-25, 25, 300)  # squares of these overflow and underflow float32
    exact = np.asarray(X, np.float64)
    m = Moments().update(X, z)
    assert m.eps_xx == 2.0**-23
    assert np.abs(m.cov_xx - covariance(exact, exact)).max() < 1e-6
    assert np.abs(m.cov_xz - covariance(exact, one_hot(z))).max() < 1e-12
    scaled = (X * scale).astype(np.float32)
    m = Moments().update(scaled, z)
    exact = np.asarray(scaled, np.float64)
    sd = exact.std(0)
    assert np.abs(m.cov_xx / np.outer(sd, sd) - np.corrcoef(exact.T)).max() < 1e-5


def test_leading_dimensions_are_rows():
    X, z = sample(3, 240, 4, 3)
    flat = Moments().update(X, z)
    close(Moments().update(X.reshape(4, 60, 4), z.reshape(4, 60)), flat)
    close(Moments().update(X.reshape(4, 60, 4), z), flat)
    Z = one_hot(z)
    close(Moments().update(X.reshape(4, 60, 4), Z.reshape(4, 60, 3)), Moments().update(X, Z))


def test_track_xx_false_keeps_variances_only():
    X, z = sample(4, 200, 5, 3)
    small, full = Moments(track_xx=False).update(X, z), Moments().update(X, z)
    assert np.allclose(small.var_x, np.diag(full.cov_xx), rtol=1e-12)
    assert np.allclose(small.cov_xz, full.cov_xz, rtol=1e-9)
    with pytest.raises(InputError, match="track_xx"):
        _ = small.cov_xx
    with pytest.raises(InputError, match="track_xx"):
        excise.leace(small)
    with pytest.raises(InputError, match="track_xx"):
        small.merge(full)
    halves = Moments(track_xx=False).update(X[:90], z[:90]) + Moments(track_xx=False).update(X[90:], z[90:])
    assert np.allclose(halves.var_x, full.var_x, rtol=1e-12)


def test_class_moments_are_the_classes_moments():
    X, z = sample(5, 400, 3, 3)
    c = ClassMoments()
    for i in range(0, 400, 70):
        c.update(X[i : i + 70], z[i : i + 70])
    for j in range(3):
        assert c.n[j] == (z == j).sum()
        assert np.allclose(c.means[j], X[z == j].mean(0), rtol=1e-12)
        assert np.allclose(c.covs[j], covariance(X[z == j], X[z == j]), rtol=1e-9)
    close(c.to_moments(), Moments().update(X, z), rtol=1e-11)
    halves = ClassMoments().update(X[:50], z[:50]) + ClassMoments().update(X[50:], z[50:])
    close(halves.to_moments(), c.to_moments(), rtol=1e-11)
    w = np.random.default_rng(0).integers(0, 3, 400)
    weighted, repeated = ClassMoments().update(X, z, w), ClassMoments().update(np.repeat(X, w, 0), np.repeat(z, w))
    assert np.allclose(weighted.covs, repeated.covs, rtol=1e-9)
    with pytest.raises(ConceptError, match="one column of classes"):
        ClassMoments().update(X, X[:, :2])


BAD = {
    "NaN": (lambda X, z: (np.where(X[3, 1] == X, np.nan, X), z), r"1 values that are NaN .*row 3, feature 1: nan"),
    "infinity": (lambda X, z: (np.where(X > 1e30, 0, np.where(X[5, 0] == X, np.inf, X)), z), "row 5, feature 0: inf"),
    "overflow": (lambda X, z: (X * 1e200, z), r"squares of X \(times weights\) overflow"),
    "lengths": (lambda X, z: (X, z[:-1]), "20 rows, but there are 19 labels"),
    "width": (lambda X, z: (X[:, :2], z), "X has 2 features, expected 3"),
    "complex": (lambda X, z: (X + 1j, z), "X is complex"),
    "objects": (lambda X, z: (X.astype(object), z), "dtype object"),
    "strings": (lambda X, z: (X.astype(str), z), "expected float64"),
    "one dimension": (lambda X, z: (X[:, 0], z), "at least two dimensions"),
    "missing label": (lambda X, z: (X, [None, *z[1:]]), "1 of 20 labels are missing"),
    "no features": (lambda X, z: (X[:, :0], z), "X has 0 features, expected 3"),
    "text": (lambda X, z: ("abc", z), "got str"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_refused_batch_changes_nothing(case):
    X, z = sample(6, 20, 3, 2)
    m = Moments().update(X, z)
    before = {name: getattr(m, name).copy() for name in NAMES}
    spoil, message = BAD[case]
    bad_X, bad_z = spoil(X, z)
    with pytest.raises(excise.ExciseError, match=message):
        m.update(bad_X, bad_z)
    assert m.n == 20
    assert all(np.array_equal(getattr(m, name), before[name]) for name in NAMES)
    with pytest.raises(excise.ExciseError):
        m.update(X, ["late class", *z[1:].tolist()][:-1])
    assert m.concept.names == (0, 1)


def test_bad_weights_and_sparse_and_frames():
    import pandas as pd
    from scipy.sparse import csr_array

    X, z = sample(7, 20, 3, 2)
    for w, message in (
        (-np.ones(20), "negative"),
        (np.zeros(20), "all 20 weights are zero"),
        (np.ones(3), "3 weights"),
    ):
        with pytest.raises(InputError, match=message):
            Moments().update(X, z, sample_weight=w)
    with pytest.raises(InputError, match=r"sparse.*toarray"):
        Moments().update(csr_array(X), z)
    named = Moments().update(pd.DataFrame(X, columns=["a", "b", "c"]), z)
    assert named.feature_names == ("a", "b", "c")
    assert np.array_equal(named.cov_xz, Moments().update(X, z).cov_xz)
    with pytest.raises(InputError, match=r"lacks 1 of the 3 features.*'b'"):
        named.update(pd.DataFrame(X, columns=["a", "x", "c"]), z)
    with pytest.raises(InputError, match="empty"):
        _ = Moments().mean_x
    with pytest.raises(InputError, match="0 sample"):
        excise.leace(Moments())


def test_extreme_scales_are_exact_or_refused():
    X, z = sample(9, 400, 3, 2)
    X = X / X.std(0)
    order = np.argsort(z)
    X, z = X[order], z[order]
    streamed = Moments()
    for i in range(0, 400, 100):
        streamed.update(X[i : i + 100] * 1e-140, z[i : i + 100], np.full(100, 1e150))
    whole = Moments().update(X, z)
    assert np.allclose(streamed.cov_xz * 1e140, whole.cov_xz, rtol=1e-9, atol=1e-12)
    with pytest.raises(InputError, match="underflow"):
        Moments().update(X * 1e-170, z)
    with pytest.raises(InputError, match="underflow"):
        Moments().update(X, X[:, 0] * 1e-170)
    with pytest.raises(InputError, match="underflow"):
        Moments().update(X, z, np.full(400, 1e-300))
    m = Moments().update(X, z)
    with pytest.raises(InputError, match="overflow float64 when joined"):
        m.update(X + 1e155, z)
    assert np.array_equal(m.cov_xx, whole.cov_xx)


def test_errors_name_the_rows_of_the_caller():
    X, z = sample(10, 40, 3, 2)
    X[7, 1] = np.nan
    w = np.ones(40)
    w[:5] = 0
    with pytest.raises(InputError, match="row 7, feature 1"):
        Moments().update(X, z, w)
    with pytest.raises(InputError, match="row 7, feature 1"):
        ClassMoments().update(X, z)


def test_class_moments_of_frames_widths_and_libraries():
    import pandas as pd

    X, z = sample(11, 60, 4, 2)
    named = ClassMoments().update(X, pd.DataFrame({"b": np.where(z == 1, "x", "y")}))
    assert named.to_moments().cov_xz.shape == (4, 2)
    with pytest.raises(InputError, match="X has 3 features, expected 4"):
        named.update(X[:, :3], pd.DataFrame({"b": z}))
    mixed = ClassMoments().update(torch.from_numpy(X[z == 0]), z[z == 0]).update(X[z == 1], z[z == 1])
    assert mixed.means.shape == (2, 4)
    assert isinstance(sum([Moments().update(X[:30], z[:30]), Moments().update(X[30:], z[30:])]), Moments)


def test_integers_are_read_as_float64():
    X, z = sample(8, 50, 3, 2)
    whole = np.round(X / X.std(0) * 10).astype(np.int32)
    close(Moments().update(whole, z), Moments().update(whole.astype(float), z))
    assert excise.erase(whole, z, method="sal").dtype == np.float64
    assert excise.erase(torch.from_numpy(whole), z, method="sal").dtype == torch.float64
