"""The Triton kernels against plain float64: on a CUDA device, or in Triton's interpreter.

`test_kernels.py` runs this file: Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import excise
from excise.concepts.encoded import Encoded

triton = pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter works on garbage in masked places.
quiet = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:overflow:RuntimeWarning")
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
EPS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24, torch.float64: 2.0**-53}


def example(n, d, r, dtype, offset=3.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(d, r, generator=generator, dtype=torch.float64) for _ in range(2))
    center = torch.randn(d, generator=generator, dtype=torch.float64)
    x = (torch.randn(n, d, generator=generator) + offset).to(dtype)
    return x.to(DEVICE), (0.3 * left).to(DEVICE), (right / d**0.5).to(DEVICE), center.to(DEVICE)


def exact(x, left, right, center):
    wide = x.double()
    return wide - ((wide - center) @ right) @ left.T


@quiet
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "d", "r"), [(70, 40, 1), (33, 130, 17), (5, 16, 3), (64, 64, 16), (1, 7, 1), (40, 100, 33), (3, 70, 70)]
)
def test_projection_is_the_exact_one_rounded_once(n, d, r, dtype):
    from excise.numerics.kernels.projection import Factors, project

    x, left, right, center = example(n, d, r, dtype)
    before = x.clone()
    out, flag = project(x, Factors.of(left, right, center, dtype))
    expected = exact(x, left, right, center)
    assert torch.equal(x, before)
    assert int(flag) == 0
    assert (out - x).abs().max() > 0.1
    size = expected.abs().max()
    assert (out.double() - expected).abs().max() <= (4 if dtype != torch.float64 else 4 * d**0.5) * EPS[dtype] * size
    if dtype != torch.float64:  # seldom another neighbour than the exact result has
        assert (out != expected.to(dtype)).sum() <= max(2, 0.01 * out.numel())


@quiet
def test_strides_leading_shapes_in_place_and_nothing_at_all():
    from excise.numerics.kernels.projection import Factors, project

    x, left, right, center = example(24, 48, 2, torch.float32)
    eraser = excise.AffineEraser(left, right, center)
    wide = torch.zeros(24, 100, device=DEVICE)
    wide[:, 3:51] = x
    expected = exact(x, left, right, center).float()
    for rows in (wide[:, 3:51], x.T.contiguous().T, x.reshape(2, 3, 4, 48)):
        assert torch.equal(eraser(rows).reshape(24, 48), expected)
    assert eraser(x[:0]).shape == (0, 48)
    own = x.clone()
    project(own, Factors.of(left, right, center, x.dtype), out=own)
    assert torch.equal(own, expected)
    assert torch.equal(eraser.erase_(x), expected)
    assert torch.equal(x, expected)


@quiet
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("r", [1, 5])
def test_what_is_not_finite_is_refused(bad, r):
    x, left, right, center = example(40, 30, r, torch.bfloat16)
    eraser = excise.AffineEraser(left, right, center)
    assert torch.isfinite(eraser(x)).all()
    x[17, 4] = bad
    with pytest.raises(excise.InputError, match="row 17, feature 4"):
        eraser(x)
    with pytest.raises(excise.InputError, match="leaves the range of float16"):
        excise.AffineEraser(1000 * left, 1000 * right, center)(torch.full((4, 30), 6e4, device=DEVICE).half())


@quiet
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("r", [1, 3])
def test_stochastic_rounding_is_right_on_average_and_repeats(dtype, r):
    x, left, right, center = example(1, 16, r, dtype)
    x = x.expand(2000, 16).contiguous()
    eraser = excise.AffineEraser(left, right, center)
    out = eraser(x, rounding="stochastic", rounding_seed=3)
    expected = exact(x[:1], left, right, center)
    assert torch.equal(out, eraser(x, rounding="stochastic", rounding_seed=3))
    assert not torch.equal(out, eraser(x, rounding="stochastic", rounding_seed=4))
    unit = 2 * EPS[dtype] * expected.abs().max()
    assert (out.double() - expected).abs().max() <= unit
    assert (out.double().mean(0) - expected[0]).abs().max() < 5 * 0.5 * unit / 2000**0.5
    nearest = (eraser(x[:1]).double() - expected).abs().max()
    assert nearest > 0.1 * unit  # which rounding to nearest is not


@quiet
@pytest.mark.parametrize("r", [1, 4])
def test_gradient_and_compiled_graphs(r):
    x, left, right, center = example(6, 20, r, torch.float32)
    module = excise.AffineEraser(left, right, center).as_module().to(DEVICE)
    a, b = x.clone().requires_grad_(), x.double().requires_grad_()
    weights = torch.randn_like(x)
    (module(a) * weights).sum().backward()
    (exact(b, left, right, center) * weights).sum().backward()
    assert torch.allclose(module(x), exact(x, left, right, center).float())
    assert (a.grad.double() - b.grad).abs().max() < 1e-5
    assert (a.grad - weights).abs().max() > 1e-2
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), module(x))


@quiet
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("offset", [3.0, 100.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_on_tensor_cores(dtype, offset, weighted, monkeypatch):
    """Products to float32's accuracy whatever the offset; class sums and squares to float64's for float32 rows."""
    from excise.moments import statistics

    monkeypatch.setattr(statistics, "on_host", lambda x: False)
    generator = torch.Generator().manual_seed(0)
    n, d, k = 700, 270, 5
    mixing = torch.randn(d, d, generator=generator) / d**0.5
    X = torch.randn(n, d, generator=generator) @ (torch.eye(d) + mixing)
    X = (X + offset * (torch.arange(d) % 9 == 0)).to(dtype).to(DEVICE)
    codes = np.random.default_rng(0).integers(0, k, n)
    weight = np.random.default_rng(1).random(n) if weighted else None
    shift = statistics._shift(X, statistics._few_rows(X))
    sums = statistics._sum_by_kernels(X, shift, Encoded(n, k, codes=codes), weight)
    if weighted and dtype != torch.float32:
        assert sums is None
        return
    x = X.double() - shift
    w = torch.ones(n) if weight is None else torch.from_numpy(weight)
    w = w.double().to(DEVICE)
    Z = torch.nn.functional.one_hot(torch.from_numpy(codes), k).double().to(DEVICE)
    S = (x * w[:, None]).T @ x
    unit = S.diagonal().sqrt()
    assert ((sums.products - S) / unit[:, None] / unit[None, :]).abs().max() < 1e-5
    assert (sums.squares / S.diagonal() - 1).abs().max() < 1e-12
    assert ((sums.cross - (Z * w[:, None]).T @ x) / unit).abs().max() < (1e-12 if dtype == torch.float32 else 1e-6)


@quiet
def test_numbers_beyond_the_range_of_float32_squares_are_left_to_float64(monkeypatch):
    from excise.moments import statistics

    monkeypatch.setattr(statistics, "on_host", lambda x: False)
    X = torch.randn(400, 300, generator=torch.Generator().manual_seed(0)).to(DEVICE) * 1e25
    z = np.arange(400) % 2
    shift = statistics._shift(X, X[:5])
    assert bool(statistics._sum_by_kernels(X, shift, Encoded(400, 2, codes=z), None).doubtful)
    good = X * 1e-25
    good[:, 3] = 7.0  # a constant is no reason to doubt
    found = statistics._sum_by_kernels(good, statistics._shift(good, good[:5]), Encoded(400, 2, codes=z), None)
    assert not bool(found.doubtful)
    good[5, 2] = float("nan")
    with pytest.raises(excise.InputError, match="row 5, feature 2"):
        excise.Moments().update(good, z)
    m = excise.Moments().update(X, z)
    assert torch.allclose(m.cov_xx, torch.cov(X.double().T, correction=0), rtol=1e-5, atol=1e44)
