"""CUDA: statistics, solve and edit on the device, with the answers of the host. Skipped where there is no device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from measure import canonical_correlation, class_gap, one_hot

import excise
from excise.methods.table import METHODS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::excise.ExciseWarning"),
]


def data(n=20_000, d=300, k=5, dtype=np.float32):
    rng = np.random.default_rng(0)
    z = rng.integers(0, k, n)
    return (rng.standard_normal((n, d)) + rng.standard_normal((k, d))[z]).astype(dtype), z


@pytest.mark.parametrize("method", ["leace", "oracle", "sal", "random"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_same_as_on_the_host(method, dtype):
    X, z = data(dtype=dtype)
    x, labels = torch.from_numpy(X).cuda(), torch.from_numpy(z).cuda()
    before = x.clone()
    out = excise.erase(x, labels, method=method)
    assert out.is_cuda
    assert out.dtype == x.dtype
    assert torch.equal(x, before)
    host = excise.erase(X, z, method=method)
    assert np.abs(out.cpu().numpy() - host).max() < (1e-10 if dtype == np.float64 else 1e-4)
    if method != "random":
        assert class_gap(X, z) > 1
        assert class_gap(out.cpu().numpy(), z) < 1e-6


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("leace", "oracle", "sal", "random")])
def test_rivals_on_the_device(method):
    X, z = data(3000, 20, dtype=np.float64)
    y = np.random.default_rng(5).integers(0, 2, 3000)
    X = X + y[:, None] * np.linspace(-1, 1, 20)
    more = {"y": y} if method == "splince" else {}
    options = {"steps": 300, "rank": 4} if method == "rlace" else {}
    out = excise.erase(torch.from_numpy(X).cuda(), torch.from_numpy(z).cuda(), method, **more, **options)
    assert out.is_cuda
    host = excise.erase(X, z, method, **more, **options)
    limit = 0.5 if method == "rlace" else 1e-7  # a game of many steps drifts apart by rounding
    assert np.abs(out.cpu().numpy() - host).max() < limit * np.abs(X).max()


def test_statistics_and_solve_stay_on_the_device_and_merge_with_the_host():
    X, z = data()
    on_device = excise.Moments().update(torch.from_numpy(X[:9000]).cuda(), torch.from_numpy(z[:9000]).cuda())
    assert on_device.cov_xx.is_cuda
    assert excise.leace(on_device).left.is_cuda
    both = on_device + excise.Moments().update(X[9000:], z[9000:])
    whole = excise.Moments().update(X, z)
    assert np.abs(both.cov_xz.cpu().numpy() - whole.cov_xz).max() < 1e-12
    assert isinstance(both.to("numpy").cov_xx, np.ndarray)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("continuous", [False, True])
def test_moments_on_the_device(weighted, continuous):
    X, z = data(5000, 20, dtype=np.float64)
    labels = X[:, :2] + np.random.default_rng(1).standard_normal((5000, 2)) if continuous else z
    w = np.random.default_rng(2).integers(0, 4, 5000) if weighted else None
    here = excise.Moments().update(X, labels, w)
    there = excise.Moments().update(torch.from_numpy(X).cuda(), torch.from_numpy(labels).cuda(), w)
    for name in ("mean_x", "mean_z", "cov_xx", "cov_xz", "cov_zz"):
        assert np.abs(getattr(there, name).cpu().numpy() - getattr(here, name)).max() < 1e-12


def test_float32_wild_spreads_and_tf32_switched_on():
    rng = np.random.default_rng(0)
    n, d = 20_000, 300
    z = rng.integers(0, 2, n)
    X = ((rng.standard_normal((n, d)) + z[:, None] * rng.standard_normal(d)) * np.logspace(0, -5, d)).astype(np.float32)
    x = torch.from_numpy(X).cuda()
    plain = excise.erase(x, z)
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert torch.equal(excise.erase(x, z), plain)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert canonical_correlation(X, one_hot(z)) > 0.8
    assert canonical_correlation(plain.cpu().numpy(), one_hot(z)) < 5 / np.sqrt(n)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_and_repeatable_stochastic_rounding(dtype):
    X, z = data(30_000, 64)
    x = torch.from_numpy(X + 30).cuda().to(dtype)
    eraser = excise.fit(x, z)
    a, b = (eraser(x, rounding="stochastic", seed=7) for _ in range(2))
    assert a.dtype == dtype
    assert torch.equal(a, b)
    assert class_gap(x.double().cpu().numpy(), z) > 1
    assert class_gap(a.double().cpu().numpy(), z) < 0.02


def test_singular_covariance_on_the_device():
    X, z = data(3000, 40, dtype=np.float64)
    X[:, 7] = X[:, 3] - X[:, 5]
    X[:, 9] = 0.25
    eraser = excise.fit(torch.from_numpy(X).cuda(), z)
    assert eraser.info["ridge_multiplier"] == 1.0
    assert class_gap(eraser(torch.from_numpy(X).cuda()).cpu().numpy(), z) < 1e-10


def test_module_moves_with_its_model():
    X, z = data(3000, 16)
    eraser = excise.fit(X, z)
    module = eraser.as_module().cuda().half()
    assert module.left.is_cuda
    assert module.left.dtype == torch.float64
    x = torch.from_numpy(X).cuda()
    assert torch.allclose(module(x).cpu(), torch.from_numpy(eraser(X)), atol=1e-6)


def test_cupy_and_jax_are_given_back_their_own_kind():
    X, z = data(3000, 16)
    host = excise.erase(X, z)
    cupy = pytest.importorskip("cupy")
    out = excise.erase(cupy.asarray(X), cupy.asarray(z))
    assert isinstance(out, cupy.ndarray)
    assert np.abs(out.get() - host).max() < 1e-5
    jax = pytest.importorskip("jax")
    for dtype in ("float32", "bfloat16"):
        out = excise.erase(jax.numpy.asarray(X, dtype=dtype), jax.numpy.asarray(z))
        assert isinstance(out, jax.Array)
        assert out.dtype == dtype
        assert np.abs(np.asarray(out, dtype=np.float32) - host).max() < (1e-5 if dtype == "float32" else 0.1)
