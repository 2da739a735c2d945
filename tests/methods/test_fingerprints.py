"""Fitting says on which features an edit leaves fingerprints."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from commands import excise_command
from sklearn.tree import DecisionTreeClassifier

import excise
from excise.fitting import fit_moments
from excise.moments.fingerprints import Fingerprints


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


def awkward(rng, n=5000):
    X = rng.standard_normal((n, 7))
    X[:, 1] = np.arange(n) < 19
    X[:, 2] = np.arange(n) < 20
    X[:, 3] = 7.0
    X[:, 4] = rng.integers(0, 3, n)
    X[:, 5] = rng.integers(0, 30, n)
    X[:, 6] = np.where(np.arange(n) % 1000 == 3, rng.standard_normal(n), 0.0)
    return X


@pytest.mark.parametrize("library", ["numpy", "float32", "torch", "bfloat16"])
def test_counts_are_those_of_a_plain_loop(rng, library):
    X = awkward(rng)
    rows = {
        "numpy": X,
        "float32": X.astype(np.float32),
        "torch": torch.from_numpy(X),
        "bfloat16": torch.from_numpy(X).bfloat16(),
    }[library]
    found = Fingerprints.of(rows)
    rare = np.flatnonzero(found.rare())
    assert (rare.tolist(), found.varying[rare].tolist()) == ([1, 6], [19, 5])
    assert np.flatnonzero(found.few_valued)[:3].tolist() == [1, 2, 4]
    assert np.flatnonzero(found.rare(21)).tolist() == [1, 2, 6]


@pytest.mark.parametrize("size", [1, 7, 64, 900])
def test_splitting_and_merging_changes_nothing(rng, size):
    X = awkward(rng)
    z = rng.integers(0, 2, len(X))
    whole = excise.Moments().update(X, z).fingerprints
    order = rng.permutation(len(X)) if size > 1 else np.arange(600)
    parts = [excise.Moments().update(X[i], z[i]) for i in np.array_split(order, max(2, len(order) // size))]
    for m in (sum(parts), sum(parts[::-1])):
        m = type(m).from_stored(*m.stored())  # as a file keeps it
        found, expected = (
            m.fingerprints,
            whole if size > 1 else excise.Moments().update(X[order], z[order]).fingerprints,
        )
        assert np.array_equal(found.rare(), expected.rare())
        assert np.array_equal(found.least_varying[found.rare()], expected.least_varying[expected.rare()])
        assert set(np.flatnonzero(expected.few_valued)) <= set(np.flatnonzero(found.few_valued)) | {6}
        assert not found.few_valued[[0, 3, 5]].any()
    taken = parts[0] + parts[1] - parts[1]
    assert np.array_equal(taken.fingerprints.varying[[1, 6]], parts[0].fingerprints.varying[[1, 6]])


def test_a_file_holds_no_row(rng):
    """Values of a feature are kept only where there are few of them."""
    m = excise.Moments().update(awkward(rng), rng.integers(0, 2, 5000))
    about = m.stored()[1]["fingerprints"]
    assert about["features"] == [1, 2, 3, 4, 6]
    assert max(len(values or []) for values in about["values"]) <= 10


DOORS = ["fit", "Moments", "ConceptEraser", "partial_fit", "saved moments", "command", "Dask"]


@pytest.mark.parametrize(
    ("method", "door"),
    [*((m, door) for m in ("leace", "oracle") for door in DOORS), ("leace", "condition_on"), ("leace", "normalize")],
)
def test_the_same_warnings_through_every_entry_point(rng, method, door, tmp_path):
    frame, sex = people(rng)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        said = fitted_through(door, frame, sex, method, tmp_path) or ""
    said += "\n".join(str(w.message) for w in caught)
    assert "1 feature(s) vary in fewer than 20 rows ('rare'; 7 to 7 rows)" in said
    assert said.count("[rare-features]") == 1
    assert ("[discrete-features]" in said) == (method == "oracle")


def fitted_through(door, frame, sex, method, folder):
    labelled = frame.assign(sex=np.where(sex, "f", "m"))
    if door == "fit":
        excise.fit(frame, sex, method)
    elif door == "Moments":
        m = excise.Moments()
        for i in range(0, len(sex), 300):
            m.update(frame[i : i + 300], sex[i : i + 300])
        fit_moments(m, method)
    elif door == "ConceptEraser":
        excise.ConceptEraser(method, concept_columns="sex").fit_transform(labelled)
    elif door == "partial_fit":
        eraser = excise.ConceptEraser(method)
        for i in range(0, len(sex), 300):
            eraser.partial_fit(frame[i : i + 300], sensitive_features=sex[i : i + 300])
        eraser.transform(frame, sex if method == "oracle" else None)
    elif door in ("command", "saved moments"):
        labelled.to_parquet(folder / "people.parquet")
        options = ["-m", method, "-o", folder / "e"]
        if door == "command":
            return excise_command("fit", folder / "people.parquet", "-c", "sex", *options)
        (excise.Moments().update(frame, sex)).save(folder / "m")
        return excise_command("fit", "--moments", folder / "m", *options)
    elif door == "Dask":
        dask = pytest.importorskip("dask")
        import dask.array as da

        from excise import distributed

        X, z = (da.from_array(values, chunks=(700, *values.shape[1:])) for values in (frame.to_numpy(), sex))
        with dask.config.set(scheduler="synchronous"):
            m = distributed.moments(X, z)
        m._feature_names = tuple(frame.columns)
        fit_moments(m, method)
    elif door == "condition_on":
        excise.fit(frame, sex, method, condition_on=np.arange(len(sex)) % 3)
    else:
        excise.fit(frame, sex, method, normalize=True)
    return None
