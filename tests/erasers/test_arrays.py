"""One code path for all array libraries: the same kind comes back, the input is never changed."""

from __future__ import annotations

import array_api_strict
import ml_dtypes
import numpy as np
import pytest
from optional import optional

import excise

torch = optional("torch")


def frozen(X: np.ndarray) -> np.ndarray:
    X = X.copy()
    X.flags.writeable = False
    return X


LIBRARIES = {
    "numpy": np.asarray,
    "read-only numpy": frozen,
    "fortran numpy": np.asfortranarray,
    "strided numpy": lambda X: np.repeat(X, 2, axis=0)[::2],
    "torch": lambda X: torch.from_numpy(np.array(X)),
    "torch transposed": lambda X: torch.from_numpy(np.asfortranarray(X)),
    "array-api-strict": array_api_strict.asarray,
}


@pytest.fixture
def data(rng):
    z = rng.integers(0, 3, 700)
    return rng.standard_normal((700, 6)) + rng.standard_normal((3, 6))[z], z


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("method", ["leace", "oracle", "sal", "random"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_same_answer_and_same_kind(data, library, method, dtype):
    X, z = data[0].astype(dtype), data[1]
    expected = excise.erase(X, z, method=method)
    given = LIBRARIES[library](X)
    labels = LIBRARIES[library](z) if "numpy" not in library else z
    out = excise.erase(given, labels, method=method)
    assert type(out) is type(given)
    assert out.dtype == given.dtype
    assert tuple(out.shape) == X.shape
    assert np.abs(np.asarray(out) - expected).max() < (1e-12 if dtype == "float64" else 1e-6)
    assert np.array_equal(np.asarray(given), X)  # not changed
    assert np.abs(expected - X).max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_every_dtype_comes_back(data, dtype, rounding):
    X, z = torch.from_numpy(data[0]).to(dtype), torch.from_numpy(data[1])
    eraser = excise.fit(X, z)
    exact = X.double().numpy() @ eraser.P.numpy().T + eraser.bias.numpy()
    if rounding == "stochastic" and dtype == torch.float64:
        with pytest.raises(excise.ExciseError, match="stochastic rounding is for"):
            eraser(X, rounding=rounding)
        return
    out = eraser(X, rounding=rounding, seed=0)
    assert out.dtype == dtype
    arithmetic = 1e-13 if dtype in (torch.float64, torch.float32) else 1e-5
    ulp = torch.finfo(dtype).eps * np.abs(exact) * (1 if rounding == "stochastic" else 0.51)
    assert (np.abs(out.double().numpy() - exact) <= ulp + arithmetic).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_numpy(data, dtype):
    X, z = data[0].astype(dtype), data[1]
    for rounding in ("nearest", "stochastic"):
        out = excise.fit(X, z)(X, rounding=rounding, seed=1)
        assert out.dtype == X.dtype
        exact = X.astype(float) @ (P := excise.fit(X, z).P).T + (np.eye(6) - P) @ X.astype(float).mean(0)
        assert np.abs(out.astype(float) - exact).max() < 0.05
        assert np.abs(out.astype(float) - X.astype(float)).max() > 0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_stochastic_rounding_is_unbiased_between_the_two_neighbours(dtype):
    values = torch.tensor([0.0, 1.0, 1.0003, -1.0003, 3.1415926, -1e-3, 1e-7, -1e-7, 300.123, 0.1], dtype=torch.float64)
    identity = excise.AffineEraser(np.zeros((1, 0)), np.zeros((1, 0)), np.zeros(1))
    from excise.numerics.rounding import round_randomly

    many = values.repeat(20_000, 1)
    out = round_randomly(many, dtype, (0, 0)).double()
    near = values.to(dtype).double()
    assert (out.amax(0) >= values).all()
    assert (out.amin(0) <= values).all()
    for j in range(len(values)):
        seen = torch.unique(out[:, j])
        assert len(seen) <= 2
        assert near[j] in seen
        gap = float(seen[-1] - seen[0])
        assert abs(float(out[:, j].mean()) - float(values[j])) <= 4 * gap / np.sqrt(20_000)
    assert torch.equal(identity(values[:, None].to(dtype), rounding="stochastic", seed=1)[:, 0], values.to(dtype))


def test_shapes(data):
    X, z = data
    eraser = excise.fit(X, z)
    expected = eraser(X)
    assert np.abs(expected - X).max() > 0.1
    assert np.array_equal(eraser(X.reshape(7, 100, 6)), expected.reshape(7, 100, 6))
    assert np.allclose(eraser(X[0]), expected[0], atol=1e-14)
    assert eraser(X[:0]).shape == (0, 6)
    assert np.array_equal(excise.erase(X.reshape(7, 100, 6), z.reshape(7, 100)), expected.reshape(7, 100, 6))
    oracle = excise.fit(X, z, method="oracle")
    assert np.array_equal(oracle(X.reshape(7, 100, 6), z.reshape(7, 100)).reshape(-1, 6), oracle(X, z))


def test_gradients_flow_through_the_module_and_casting_leaves_its_factors_alone(data):
    pytest.importorskip("torch")
    X, z = data
    eraser = excise.fit(X, z)
    module = eraser.as_module()
    x = torch.from_numpy(X).requires_grad_(True)
    out = module(x)
    assert np.allclose(out.detach().numpy(), eraser(X), atol=1e-12)
    (out * torch.arange(6.0)).sum().backward()
    assert np.allclose(x.grad.numpy(), np.tile(eraser.P.T @ np.arange(6.0), (700, 1)), atol=1e-12)
    through_call = eraser(torch.from_numpy(X).requires_grad_(True))
    assert through_call.requires_grad
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), module).half()
    assert model[0].weight.dtype == torch.float16
    assert module.left.dtype == torch.float64
    assert model(torch.zeros(2, 6, dtype=torch.float16)).dtype == torch.float16
    assert set(module.state_dict()) == {"left", "right", "center"}
    with torch.no_grad():
        assert not eraser(x).requires_grad
        assert np.allclose(excise.erase(x, z).numpy(), eraser(X), atol=1e-12)
    with torch.inference_mode():
        assert np.allclose(eraser(torch.from_numpy(X)).numpy(), eraser(X))


def test_autocast_and_low_matmul_precision_do_not_touch_the_result(data):
    X, z = torch.from_numpy(data[0]).float(), torch.from_numpy(data[1])
    plain = excise.erase(X, z)
    module = excise.fit(X, z).as_module()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(excise.erase(X, z), plain)
            assert torch.allclose(module(X), plain, atol=1e-6)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_gradients_are_never_cut_silently(data):
    X, z = data
    x = torch.from_numpy(X).float().requires_grad_(True)
    affine, oracle = excise.fit(X, z), excise.fit(X, z, method="oracle")
    for out, slope in (
        (affine(x, rounding="stochastic", seed=0), affine.P.T @ np.ones(6)),
        (oracle(x, z), np.ones(6)),
    ):
        x.grad = None
        out.sum().backward()
        assert np.allclose(x.grad.numpy(), np.tile(slope, (700, 1)), atol=1e-5)
    assert torch.equal(oracle(x, z).detach(), oracle(x.detach(), z))
    broken = torch.full((3, 6), torch.nan, requires_grad=True)
    with pytest.raises(excise.InputError, match="NaN"):
        affine(broken)
    with pytest.raises(excise.InputError, match="1 features"):
        affine.as_module()(torch.zeros(5, 1))
    assert affine.as_module()(torch.zeros(5, 6, dtype=torch.int64)).dtype == torch.float64


def test_an_edit_that_leaves_the_range_of_float16_is_refused():
    eraser = excise.AffineEraser(np.array([[1.0], [0.0]]), np.array([[0.0], [1.0]]), np.zeros(2))
    edge = np.array([[-65504.0, 6.0], [65504.0, -6.0]], np.float16)  # exact: beyond the range by less than half a step
    for rounding in ("nearest", "stochastic"):
        assert np.isfinite(eraser(edge, rounding=rounding, seed=0)).all()
    with pytest.raises(excise.InputError, match="leaves the range of float16"):
        eraser(np.array([[-65504.0, 100.0]], np.float16))


def test_masked_and_ragged_features_are_refused(data):
    X, z = data
    with pytest.raises(excise.InputError, match="masked array"):
        excise.fit(np.ma.masked_greater(X, 2.0), z)
    with pytest.raises(excise.InputError, match="unequal length"):
        excise.fit([[1.0, 2.0], [3.0]], [0, 1])
    with pytest.raises(excise.InputError, match="expected Moments, got ndarray"):
        excise.leace(X)


def test_moving_erasers(data):
    pytest.importorskip("torch")
    X, z = data
    eraser = excise.fit(X, z)
    moved = eraser.to(device="cpu", dtype=torch.float32)
    assert np.abs(eraser(X) - X).max() > 0.1
    assert moved.left.dtype == torch.float32
    assert isinstance(moved.to(device="numpy").left, np.ndarray)
    assert np.abs(eraser.to(device="cpu")(X) - eraser(X)).max() == 0
    assert isinstance(excise.fit(torch.from_numpy(X), z).P, torch.Tensor)
    assert isinstance(excise.Moments().update(X, z).to("cpu").cov_xx, torch.Tensor)
    assert isinstance(excise.fit(X, z, method="oracle").to(device="cpu").coefficients, torch.Tensor)


@pytest.mark.filterwarnings("ignore:everything was erased")
def test_spectral_norm(rng):
    for d, k in ((6, 3), (3, 6), (40, 2)):
        z = rng.integers(0, k, 800)
        eraser = excise.fit((rng.standard_normal((800, d)) + z[:, None]) @ rng.standard_normal((d, d)), z)
        assert eraser.spectral_norm == pytest.approx(np.linalg.norm(eraser.P, 2), rel=1e-9)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda X: X[:, :4], r"X has 4 features \(shape \(700, 4\)\), this eraser was fitted on 6"),
        (lambda X: np.where(X[2, 5] == X, np.nan, X), "1 values that are NaN or infinite .*row 2, feature 5"),
        (lambda X: X.astype(complex), "complex"),
        (lambda X: X.astype(object), "dtype object"),
    ],
)
def test_bad_input_when_applied(data, spoil, message):
    X, z = data
    for eraser in (excise.fit(X, z), excise.fit(X, z, method="oracle")):
        with pytest.raises(excise.InputError, match=message):
            eraser(spoil(X), z) if isinstance(eraser, excise.OracleEraser) else eraser(spoil(X))


def test_oracle_refuses_classes_that_it_does_not_know(data):
    X, z = data
    eraser = excise.fit(X, z, method="oracle")
    with pytest.raises(excise.ConceptError, match="not fitted with: 7"):
        eraser(X, np.where(z == 2, 7, z))
    with pytest.raises(excise.ConceptError, match="700 rows, but there are 699 labels"):
        eraser(X, z[1:])


@pytest.mark.parametrize(("d", "dtype"), [(12, torch.float64), (300, torch.float32), (2100, torch.float32)])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_code_for_devices_gives_the_answer_of_the_code_for_the_host(rng, monkeypatch, d, dtype, weighted):
    """Run on the CPU: there is no device where most tests run."""
    from excise.erasers import apply as _apply
    from excise.moments import statistics as _statistics

    z = rng.integers(0, 4, 1500)
    X = torch.from_numpy(rng.standard_normal((1500, d)) + z[:, None]).to(dtype)
    w = rng.integers(1, 4, 1500) if weighted else None
    eraser = excise.AffineEraser(*rng.standard_normal((2, d, 3)), rng.standard_normal(d))
    oracle = excise.fit(X, z, method="oracle")
    here = excise.Moments().update(X, z, w), eraser(X), oracle(X, z)
    monkeypatch.setattr(_statistics, "on_host", lambda x: False)
    monkeypatch.setattr(_apply, "on_host", lambda x: False)
    there = excise.Moments().update(X, z, w), eraser(X), oracle(X, z)
    for name in ("mean_x", "mean_z", "cov_xz", "cov_zz"):
        assert (getattr(here[0], name) - getattr(there[0], name)).abs().max() < 1e-12
    assert (here[0].cov_xx - there[0].cov_xx).abs().max() < (1e-11 if d <= 256 else 1e-5)
    for a, b in zip(here[1:], there[1:], strict=True):
        assert (a - b).abs().max() < (1e-11 if dtype == torch.float64 else 1e-4)
    with pytest.raises(excise.InputError, match="row 3, feature 1"):
        eraser(torch.where(X[3, 1] == X, torch.nan, X))


def test_threads_and_chunks_do_not_change_the_answer(rng):
    """Large enough for several workers; each row is erased as if it were alone."""
    z = rng.integers(0, 2, 30_000)
    X = (rng.standard_normal((30_000, 40)) + z[:, None]).astype(np.float32)
    eraser = excise.fit(X, z)
    assert np.abs(eraser(X) - X).max() > 0.1
    assert np.array_equal(eraser(X)[12_345:12_400], eraser(X[12_345:12_400]))
    again = excise.fit(X, z)
    assert np.array_equal(eraser.left, again.left)
    assert np.array_equal(eraser.right, again.right)
