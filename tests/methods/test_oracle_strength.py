"""The oracle with a strength is fairlearn's CorrelationRemover with that alpha."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from commands import excise_command
from optional import optional

import excise


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1.0])
def test_through_every_entry_point(rng, alpha, tmp_path):
    age = rng.standard_normal(600)
    X = rng.standard_normal((600, 4)) @ rng.standard_normal((4, 4)) + age[:, None]
    frame = pd.DataFrame(X, columns=list("abcd")).assign(age=age)
    theirs = optional("fairlearn.preprocessing").CorrelationRemover(sensitive_feature_ids=["age"], alpha=alpha)
    expected = theirs.fit_transform(frame)
    kept = np.cov(expected.T, age)[-1, :-1] / np.cov(X.T, age)[-1, :-1]
    assert kept == pytest.approx(1 - alpha, abs=1e-10)

    m = excise.Moments(track_xx=False).update(X, age)
    eraser = excise.ConceptEraser("oracle", concept_columns="age", method_options={"strength": alpha})
    frame.to_parquet(tmp_path / "x.parquet")
    options = ["-m", "oracle", "-c", "age", "--option", f"strength={alpha}", "-o", tmp_path / "e"]
    excise_command("fit", tmp_path / "x.parquet", *options)
    found = {
        "oracle": excise.oracle(m, strength=alpha)(X, age),
        "fit": excise.fit(X, age, "oracle", strength=alpha)(X, age),
        "erase": excise.erase(X, age, "oracle", strength=alpha),
        "ConceptEraser": eraser.fit_transform(frame),
        "command": excise.load(tmp_path / "e")(frame[list("abcd")], age).to_numpy(),
    }
    for name, erased in found.items():
        assert np.abs(np.asarray(erased) - expected).max() < 1e-12 * np.abs(X).max(), name


def test_leace_with_less_strength_leaves_all_information(rng):
    """It scales what was removed, and a linear model scales it back."""
    z = rng.standard_normal(2000)
    X = rng.standard_normal((2000, 5)) + z[:, None]

    def r2(X):
        residual = z - np.c_[X, np.ones(len(z))] @ np.linalg.lstsq(np.c_[X, np.ones(len(z))], z, rcond=None)[0]
        return 1 - residual.var() / z.var()

    assert r2(excise.erase(X, z, strength=0.5)) == pytest.approx(r2(X), abs=1e-9)
    assert r2(excise.erase(X, z)) < 1e-12 < 0.5 < r2(X)
