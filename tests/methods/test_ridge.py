"""The guarantee on degenerate but ordinary inputs: no leak, a bounded and stable map, the least edit, one answer.

Each case is a family of features, a shape, a dtype and an entry point. The least edit comes from an SVD of the rows, the
norm from the eraser's factors, the leak from plain NumPy: nothing is compared with excise's own figures.
"""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from commands import excise_command
from language_data import DATA, needs_shared
from measure import one_hot
from optional import optional

import excise
from excise.numerics.precision import LEAK, LEAK_OF_SUMS

pytestmark = pytest.mark.filterwarnings("ignore::excise.ExciseWarning")
torch = optional("torch")


def to_bfloat16(X):
    bits = X.astype(np.float32).view(np.uint32)
    return ((bits + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)


DTYPES = {
    "float64": lambda X: X,
    "float32": lambda X: X.astype(np.float32),
    "float32 in float64": lambda X: X.astype(np.float32).astype(np.float64),
    "bfloat16 in float32": to_bfloat16,
}
FAMILIES = {
    "plain": lambda X: X,
    "LayerNorm": lambda X: (X - X.mean(1, keepdims=True)) / X.std(1, keepdims=True),
    "RMSNorm": lambda X: X / np.sqrt((X**2).mean(1, keepdims=True)),
    "softmax": lambda X: np.exp(X) / np.exp(X).sum(1, keepdims=True),
    "centred rows": lambda X: X - X.mean(1, keepdims=True),
    "unit length": lambda X: X / np.linalg.norm(X, axis=1, keepdims=True),
    "collinear": lambda X: np.c_[X[:, :3], X[:, 0] - 2 * X[:, 1], X[:, 4:]],
    "total": lambda X: np.c_[X[:, :-1], X[:, :-1].sum(1)],
    "copy": lambda X: np.c_[X[:, :-1], 3 * X[:, 0]],
    "constant": lambda X: np.c_[X[:, :2], np.full(len(X), 7.0), X[:, 3:]],
    "one offset": lambda X: np.c_[X[:, :1] + 5000, X[:, 1:]],
    "one-hot, standardised": lambda X: standardised(np.c_[X[:, 8:], np.eye(8)[X[:, :8].argmax(1)]]),
}
SHAPES = [(3000, 32), (3000, 200), (60, 60), (60, 150)]


def standardised(X):
    return (X - X.mean(0)) / np.where(X.std(0) > 0, X.std(0), 1)


@cache
def example(family, n, d, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    mixed = rng.standard_normal((n, d)) @ (np.eye(d) + rng.standard_normal((d, d)) / np.sqrt(d))
    return FAMILIES[family](mixed + rng.standard_normal((3, d))[y] * rng.choice([0.03, 0.3, 3])), y


def spread(X):
    X = X.astype(float)
    return np.where(X.std(0) > 1e-13 * np.abs(X).max(0), X.std(0), np.inf)


def leak(X, Y, Z):
    """Largest covariance that is left of a feature, in parts of its size; numbers below the normal ones have no digits."""
    least = np.finfo(X.dtype).tiny
    X, Y = X.astype(float), Y.astype(float)
    cov = (Y - Y.mean(0)).T @ (Z - Z.mean(0)) / len(X)
    return (np.abs(cov).max(1) / (np.abs(X).max(0) + X.std(0) + least)).max()


def least_edit(X, Z):
    """In standard deviations, from an SVD of the rows."""
    X, s = X.astype(float), spread(X)
    u, t, _ = np.linalg.svd(((X - X.mean(0)) / s)[:, np.isfinite(s)], full_matrices=False)
    u = u[:, t > 1e-11 * t[0]]
    q, t, _ = np.linalg.svd(Z - Z.mean(0), full_matrices=False)
    a, b, _ = np.linalg.svd(u @ (u.T @ q[:, t > 1e-9 * t[0]]), full_matrices=False)
    a = a[:, b > 1e-9]
    return ((a @ (a.T @ ((X - X.mean(0)) / s))) ** 2).sum() / len(X)


def standard_norm(eraser, X):
    s = np.where(np.isfinite(spread(X)), spread(X), 1.0)
    left, right = np.asarray(eraser.left) / s[:, None], np.asarray(eraser.right) * s[:, None]
    return np.linalg.norm(np.linalg.qr(left)[1] @ np.linalg.qr(right)[1].T, 2)


def bound(X, norm):
    """What rounding may leave, as the audit has it."""
    eps = 2.0**-24 if X.dtype == np.float32 else 2.0**-53
    return 2 * (LEAK * eps * max(1.0, norm) + LEAK_OF_SUMS * 2.0**-53)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_bounded_map_guards_by_the_least_edit(family, shape, dtype):
    X, y = example(family, *shape)
    X = DTYPES[dtype](X)
    Z = one_hot(y)
    eraser = excise.fit(X, y, shrinkage="none")
    erased = eraser(X)
    norm = standard_norm(eraser, X)
    assert leak(X, X, Z) > 1e-4
    assert leak(X, erased, Z) < bound(X, norm)
    if shape[0] < 20 * shape[1] / 3:  # so few rows that the concept is a function of noise
        return
    assert norm < 200
    noise = np.random.default_rng(1).standard_normal(X.shape) * np.where(np.isfinite(spread(X)), spread(X), 0)
    moved = (X + 1e-3 * noise).astype(X.dtype)
    assert (np.abs(eraser(moved).astype(float) - erased) / spread(X)).max() < 0.5
    by_one_digit = np.nextafter(X, np.inf, dtype=X.dtype)
    digits = np.abs(by_one_digit.astype(float) - X).max(0) / spread(X)
    assert (np.abs(eraser(by_one_digit).astype(float) - erased) / spread(X)).max() < 4 * max(norm, 1) * np.linalg.norm(
        digits
    )
    if dtype.startswith("float64"):
        edit = (((erased.astype(float) - X) / spread(X)) ** 2).sum() / len(X)
        assert edit < 1.1 * least_edit(X, Z)


DOORS = ["Moments", "merged", "ConceptEraser", "torch", "saved", "command", "Dask"]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("family", FAMILIES)
def test_one_answer_through_every_entry_point(family, door, tmp_path):
    X, y = example(family, 3000, 32)
    eraser = excise.fit(X, y)
    through = fitted_through(door, X, y, tmp_path)
    assert (np.abs(np.asarray(through(X)) - eraser(X)) / spread(X)).max() < 1e-6


def fitted_through(door, X, y, folder):
    if door == "Moments":
        m = excise.Moments()
        for begin, end in ((0, 1), (1, 8), (8, 700), (700, 3000)):
            m.update(X[begin:end], y[begin:end])
        return excise.leace(m)
    if door == "merged":
        return excise.leace(sum(excise.Moments().update(X[i::7], y[i::7]) for i in reversed(range(7))))
    if door == "ConceptEraser":
        return excise.ConceptEraser().fit(X, sensitive_features=y).transform
    if door == "torch":
        eraser = excise.fit(torch.from_numpy(X), torch.from_numpy(y))
        return lambda rows: eraser.as_module()(torch.from_numpy(rows)).detach().numpy()
    if door == "saved":
        excise.fit(X, y).save(folder / "e")
        return excise.load(folder / "e")
    if door == "command":
        np.save(folder / "x.npy", X)
        np.save(folder / "y.npy", y)
        excise_command("fit", folder / "x.npy", folder / "y.npy", "-o", folder / "e")
        return excise.load(folder / "e")
    da, dask = optional("dask.array"), optional("dask")
    from excise import distributed

    with dask.config.set(scheduler="synchronous"):
        return distributed.fit(da.from_array(X, chunks=(700, X.shape[1])), da.from_array(y, chunks=700))


def test_a_float32_batch_among_float64_ones():
    X, y = example("LayerNorm", 3000, 32)
    parts = [X[:1000].astype(np.float32), X[1000:]]
    orders = [(0, 1), (1, 0)]
    labels = [y[:1000], y[1000:]]
    erasers = []
    for order in orders:
        m = excise.Moments()
        for i in order:
            m.update(parts[i], labels[i])
        erasers.append(excise.leace(m))
    merged = excise.leace(excise.Moments().update(parts[1], labels[1]) + excise.Moments().update(parts[0], labels[0]))
    rows = np.concatenate([parts[0].astype(float), parts[1]])
    for other in (erasers[1], merged):
        assert (np.abs(other(rows) - erasers[0](rows)) / spread(rows)).max() < 1e-6


METHODS = {
    "leace": lambda X, y: excise.fit(X, y),
    "splince": lambda X, y: excise.fit(X, y, "splince", y=np.arange(len(y)) // 5 % 2),
    "alf": lambda X, y: excise.fit(X, y, "alf"),
    "sal": lambda X, y: excise.fit(X, y, "sal"),
    "condition_on": lambda X, y: excise.fit(X, y, condition_on=np.arange(len(y)) // 7 % 2),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", FAMILIES)
def test_methods_that_share_the_geometry(family, method, dtype):
    X, y = example(family, 3000, 32)
    X = DTYPES[dtype](X)
    eraser = METHODS[method](X, y)
    norm = standard_norm(eraser, X)
    assert norm < 500
    tolerance = bound(X, norm)
    if method == "sal":  # its basis is orthonormal in the units of X
        tolerance *= 10 * np.linalg.norm(X.astype(float).std(0)) / X.astype(float).std(0)[np.isfinite(spread(X))].min()
    for part in (np.arange(len(y)) // 7 % 2 == c for c in (0, 1)) if method == "condition_on" else [slice(None)]:
        assert leak(X[part], eraser(X)[part], one_hot(y[part])) < tolerance


def smooth(kind, rng, n=2000):
    t = np.sort(rng.uniform(-1, 1, n))
    y = (t + 0.5 * rng.standard_normal(n) > 0).astype(int)
    if kind == "RBF":
        return np.exp(-((t[:, None] - np.linspace(-1, 1, 40)) ** 2) / 0.5), y
    if kind == "monomials":
        return t[:, None] ** np.arange(1, 16), y
    copies = rng.standard_normal((n, 6)) + y[:, None]
    return np.c_[copies, copies + float(kind) * rng.standard_normal((n, 6))], y


@pytest.mark.parametrize("kind", ["RBF", "monomials", "1e-4", "1e-6", "1e-8"])
def test_an_exact_fit_is_never_reported_as_not_guarded(rng, kind):
    X, y = smooth(kind, rng)
    eraser = excise.fit(X, y)
    assert leak(X, eraser(X), one_hot(y)) < bound(X, standard_norm(eraser, X))
    assert excise.audit(X, y, eraser=eraser, quick=True).guarded
    assert not excise.audit(X, y, quick=True).guarded


@needs_shared
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("prepared", ["raw", "standardised"])
@pytest.mark.parametrize("concept", ["sex", "race"])
def test_adult(concept, prepared, dtype):
    import pandas as pd

    table = pd.read_parquet(Path(DATA) / "adult.parquet").dropna().iloc[:10_000]
    frame = pd.get_dummies(table.drop(columns=[concept, "income", "split", "fnlwgt"])).astype(float)
    X = frame.loc[:, frame.std() > 0].to_numpy()
    X = DTYPES[dtype](standardised(X) if prepared == "standardised" else X)
    y = table[concept].astype("category").cat.codes.to_numpy().astype(int)
    eraser = excise.fit(X, y)
    norm = standard_norm(eraser, X)
    assert norm < 20
    assert leak(X, X, one_hot(y)) > 0.01
    assert leak(X, eraser(X), one_hot(y)) < bound(X, norm)
    if dtype == "float64":
        edit = (((eraser(X) - X) / spread(X)) ** 2).sum() / len(X)
        assert edit < 1.1 * least_edit(X, one_hot(y))
        assert excise.audit(X, y, eraser=eraser, quick=True).guarded


def test_a_linear_function_of_few_rows_is_erased_on_new_rows(rng):
    """With shrinkage 24 of 60.8 standard deviations were left."""
    X, new = rng.standard_normal((2, 200, 40))
    w = rng.standard_normal(40)
    eraser = excise.fit(X, X @ w)
    assert eraser.info["shrinkage"] == "none"
    assert eraser.info["exact_directions"] == 1
    assert np.std(eraser(new) @ w) < 1e-6 < 1 < np.std(new @ w)
    noisy = excise.fit(X, X @ w + rng.standard_normal(200))
    assert noisy.info["shrinkage"] == "oas"
    assert "exact_directions" not in noisy.info


@pytest.mark.parametrize("shrinkage", ["oas", "optimal", "none"])
def test_canonical_correlations_are_those_of_the_sample_or_absent(rng, shrinkage):
    X = rng.standard_normal((80, 40)) + (np.arange(80) % 2)[:, None]
    found = excise.fit(X, np.arange(80) % 2, shrinkage=shrinkage).info["canonical_correlations"]
    assert (found is None) if shrinkage != "none" else (0 < max(found) <= 1)


def test_products_that_are_not_positive_definite_grow_the_ridge(rng):
    """float32 products of heavy-tailed low-rank data have negative eigenvalues beyond what the ridge allows for."""
    n, d = 3000, 300
    y = np.arange(n) % 2
    X = (rng.standard_cauchy((n, 4)) @ rng.standard_normal((4, d)) * 10 + y[:, None]).astype(np.float32)
    eraser = excise.fit(X, y, shrinkage="none")
    assert eraser.info["ridge_multiplier"] in 8.0 ** np.arange(8)
    assert leak(X, eraser(X), one_hot(y)) < bound(X, standard_norm(eraser, X))
    damaged = excise.Moments().update(rng.standard_normal((500, 40)), np.arange(500) % 2)
    indefinite = damaged.statistics.s_xx.matrix()
    indefinite[0, 1] = indefinite[1, 0] = 1.01 * np.sqrt(indefinite[0, 0] * indefinite[1, 1])
    assert excise.leace(damaged).info["ridge_multiplier"] > 1


def test_subtracted_moments():
    X, y = example("LayerNorm", 3000, 32)
    rest = excise.Moments().update(X, y) - excise.Moments().update(X[:2500], y[:2500])
    eraser = excise.leace(rest, shrinkage="none")
    assert leak(X[2500:], eraser(X[2500:]), one_hot(y[2500:])) < 1e-12
    alone = excise.fit(X[2500:], y[2500:], shrinkage="none")
    assert (np.abs(eraser(X[2500:]) - alone(X[2500:])) / spread(X)).max() < 1e-6


def test_weights_that_sum_to_one(rng):
    X, y = example("LayerNorm", 3000, 32)
    w = rng.uniform(0.5, 2, 3000)
    erasers = [excise.fit(X, y, sample_weight=weight) for weight in (w, w / w.sum())]
    assert (np.abs(erasers[0](X) - erasers[1](X)) / spread(X)).max() < 1e-9


@pytest.mark.slow
def test_fuzz_of_small_inputs():
    """20,000 inputs of few rows, features and classes, of every family and dtype."""
    rng = np.random.default_rng(0)
    names, dtypes = list(FAMILIES), list(DTYPES)
    failed = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(20_000):
            n, d, k = int(rng.integers(6, 120)), int(rng.integers(9, 40)), int(rng.integers(2, 5))
            y = rng.permutation(np.arange(n) % k)
            X = rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-3, 3, d) + rng.standard_normal((k, d))[y]
            family, dtype = names[i % len(names)], dtypes[i // len(names) % len(dtypes)]
            with np.errstate(all="ignore"):
                X = DTYPES[dtype](FAMILIES[family](X / 3 if family == "softmax" else X))
            if not np.isfinite(X).all():
                continue
            for shrinkage in ("auto", "none"):
                eraser = excise.fit(X, y, shrinkage=shrinkage)
                norm = standard_norm(eraser, X)
                left = leak(X, eraser(X), one_hot(y))
                if not left < bound(X, norm):
                    failed.append((i, family, dtype, (n, d, k), shrinkage, f"{left:.1e}", f"{norm:.1e}"))
    assert not failed, f"{len(failed)} of 20,000: {failed[:10]}"
