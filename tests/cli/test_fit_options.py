"""`excise fit --normalize` and `--condition-on`, called as a user calls them."""

from __future__ import annotations

import numpy as np
import pytest
from commands import excise_command
from measure import class_gap

import excise


@pytest.fixture
def files(rng, tmp_path):
    z, y = rng.choice(["f", "m"], 3000), rng.integers(0, 2, 3000)
    X = rng.standard_normal((3000, 6)) * np.where(z == "m", 2, 1)[:, None] + (z == "m")[:, None] + y[:, None]
    for name, values in (("x", X), ("z", z), ("y", y)):
        np.save(tmp_path / f"{name}.npy", values)
    return tmp_path, X, z, y


def test_normalize(files):
    folder, X, z, _ = files
    said = excise_command("fit", folder / "x.npy", folder / "z.npy", "--normalize", "-o", folder / "e")
    assert "rounds" in said
    u = excise.load(folder / "e")(X)
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    assert class_gap(unit, z) > 0.01
    assert class_gap(u, z) < 1e-10
    assert np.allclose(u, excise.erase(X, z, normalize=True), atol=1e-8)


def test_condition_on(files):
    folder, X, z, y = files
    excise_command(
        "fit", folder / "x.npy", folder / "z.npy", "--condition-on", folder / "y.npy", "-o", folder / "e"
    )  # fmt: skip
    out = excise.load(folder / "e")(X)
    for c in (0, 1):
        assert class_gap(X[y == c], z[y == c]) > 0.3
        assert class_gap(out[y == c], z[y == c]) < 1e-10
    np.save(folder / "short.npy", y[:-1])
    with pytest.raises(excise.ConceptError, match=r"has shape \(2999,\), expected \(3000,\)"):
        excise_command("fit", folder / "x.npy", folder / "z.npy", "--condition-on", folder / "short.npy")
