"""Fitting says on which features an edit leaves fingerprints."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier

import excise
from excise.methods.fingerprints import few_valued_features, rare_features


def people(rng, n=2000):
    sex = rng.integers(0, 2, n)
    frame = pd.DataFrame(rng.standard_normal((n, 4)) + sex[:, None], columns=list("abcd"))
    frame["job"] = (rng.random(n) < 0.3 + 0.3 * sex).astype(float)
    frame["rare"] = (np.arange(n) % 300 == 7).astype(float)
    frame["constant"] = 1.0
    return frame, sex


def codes(frame, sex, method):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        excise.fit(frame, sex, method)
    return [str(w.message) for w in caught]


def test_rare_and_discrete_features_are_named(rng):
    frame, sex = people(rng)
    said = "\n".join(codes(frame, sex, "leace"))
    assert "1 feature(s) vary in fewer than 20 rows ('rare'; 7 to 7 rows)" in said
    assert "[rare-features]" in said
    assert "discrete-features" not in said
    said = "\n".join(codes(frame, sex, "oracle"))
    assert "'job'" in said
    assert "[discrete-features]" in said
    assert not codes(frame[list("abcd")], sex, "oracle")
    assert not codes(frame[[*"abcd", "job", "constant"]], sex, "leace")


def test_the_warning_is_true(rng):
    """Trees read the class off what the oracle makes of a 0/1 feature; not before, and not after LEACE."""
    frame, sex = people(rng)
    X = frame[["job"]].to_numpy()
    X = np.c_[X, rng.standard_normal((len(X), 2))]

    def found(Y):
        return (
            DecisionTreeClassifier(min_samples_leaf=20, random_state=0)
            .fit(Y[:1000], sex[:1000])
            .score(Y[1000:], sex[1000:])
        )

    with pytest.warns(excise.ExciseWarning, match="fraction of such a value"):
        oracle = excise.fit(X, sex, "oracle")
    assert found(X) < 0.7
    assert found(oracle(X, sex)) > 0.99
    assert found(excise.fit(X, sex)(X)) < 0.7


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_counts_are_those_of_a_plain_loop(rng, library):
    X = rng.standard_normal((5000, 6))
    X[:, 1] = np.arange(5000) < 19
    X[:, 2] = np.arange(5000) < 20
    X[:, 3] = 7.0
    X[:, 4] = rng.integers(0, 3, 5000)
    rows = torch.from_numpy(X) if library == "torch" else X
    rare, varying = rare_features(rows)
    assert (rare.tolist(), varying.tolist()) == ([1], [19])
    assert few_valued_features(rows).tolist() == [1, 2, 4]
