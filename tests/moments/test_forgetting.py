"""Moments that forget (`decay`) and parts that are taken out again (`a - b`), against NumPy on the rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import excise


def batch(seed, n=200, d=4, k=3, offset=0.0):
    rng = np.random.default_rng(seed)
    z = np.concatenate([np.arange(k), rng.integers(0, k, n - k)])
    return rng.standard_normal((n, d)) + z[:, None] + offset, z


def same(a, b, tolerance=1e-9):
    assert a.n == pytest.approx(b.n)
    for name in ("mean_x", "mean_z", "cov_xx", "cov_xz"):
        assert np.allclose(getattr(a, name), getattr(b, name), atol=tolerance), name


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), factor=st.floats(0.05, 1.0), offset=st.sampled_from([0.0, 1e4]))
def test_decay_is_a_smaller_weight_of_the_old_rows(seed, factor, offset):
    (X1, z1), (X2, z2) = batch(seed, offset=offset), batch(seed + 1, offset=offset + 1)
    faded = excise.Moments().update(X1, z1).decay(factor).update(X2, z2)
    weighted = excise.Moments().update(
        np.concatenate([X1, X2]), np.concatenate([z1, z2]), np.r_[np.full(200, factor), np.ones(200)]
    )
    same(faded, weighted, 1e-6 if offset else 1e-9)
    assert np.abs(faded.mean_x - excise.Moments().update(X1, z1).update(X2, z2).mean_x).max() > 0 or factor == 1.0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), track=st.booleans())
def test_a_part_is_taken_out_again(seed, track):
    (X1, z1), (X2, z2) = batch(seed), batch(seed + 1)
    whole, part, rest = (excise.Moments(track_xx=track) for _ in range(3))
    whole.update(X1, z1).update(X2, z2)
    part.update(X2, z2)
    rest.update(X1, z1)
    left = whole - part
    assert left.rows == 200
    assert np.allclose(left.cov_xz, rest.cov_xz, atol=1e-9)
    assert np.allclose(left.var_x, rest.var_x, atol=1e-9)
    if track:
        same(left, rest)
        X = X1
        assert np.allclose(excise.leace(left)(X), excise.leace(rest)(X), atol=1e-7)


@pytest.mark.parametrize("factor", [0, -1, 1.5, True, "half"])
def test_bad_factors(factor):
    with pytest.raises(excise.InputError, match="factor must be"):
        excise.Moments().update(*batch(0)).decay(factor)


def test_what_is_no_part_is_refused():
    whole = excise.Moments().update(*batch(0))
    X, z = batch(1, 100)
    with pytest.raises(excise.InputError, match="negative variance"):
        whole - excise.Moments().update(10 * X, z)
    with pytest.raises(excise.InputError, match="nothing would be left"):
        whole - whole
    with pytest.raises(excise.ConceptError, match="classes that the first lack"):
        whole - excise.Moments().update(X, z + 5)
