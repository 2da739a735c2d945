"""ConceptEraser keeps scikit-learn's contract."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from measure import class_gap, covariance
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator

import excise
from excise import ConceptEraser
from excise.methods.table import METHODS

CHECKS = list(estimator_checks_generator(ConceptEraser(concept="y"), legacy=True))


@pytest.mark.parametrize(
    ("estimator", "check"), CHECKS, ids=[getattr(c, "func", c).__name__ + str(i) for i, (_, c) in enumerate(CHECKS)]
)
@pytest.mark.filterwarnings("ignore")
def test_check_estimator(estimator, check):
    check(estimator)


@pytest.fixture
def people(rng):
    n = 600
    sex = rng.choice(["f", "m"], n)
    X = rng.standard_normal((n, 4)) + 1.0 * (sex == "m")[:, None]
    y = (X[:, 0] + rng.standard_normal(n) > 0.5).astype(int)
    return X, sex, y


def test_three_ways_to_name_the_concept(people):
    X, sex, _ = people
    by_features = ConceptEraser().fit_transform(X, sensitive_features=sex)
    assert class_gap(X, sex) > 0.8
    assert class_gap(by_features, sex) < 1e-12
    assert np.array_equal(ConceptEraser(concept="y").fit_transform(X, sex), by_features)
    with pytest.raises(excise.ConceptError, match=r"sensitive_features=.*concept_columns=.*concept='y'"):
        ConceptEraser().fit(X, sex)
    frame = pd.DataFrame(X, columns=list("abcd")).assign(sex=sex)[["a", "sex", "b", "c", "d"]]
    by_columns = ConceptEraser(concept_columns="sex").fit(frame)
    assert np.allclose(by_columns.transform(frame), by_features, atol=1e-13)
    assert by_columns.get_feature_names_out().tolist() == list("abcd")
    numbers = np.column_stack([(sex == "m").astype(float), X])
    assert np.allclose(ConceptEraser(concept_columns=[0]).fit_transform(numbers), by_features, atol=1e-13)
    assert np.allclose(ConceptEraser(concept_columns=0).fit_transform(numbers.astype(object)), by_features, atol=1e-13)


def test_the_docstring_opens_with_the_warning_about_y():
    assert "**In a Pipeline, y is the task, not the concept.**" in ConceptEraser.__doc__[:200]


def test_in_a_pipeline_with_routing_and_grid_search(people):
    X, sex, y = people
    with config_context(enable_metadata_routing=True):
        eraser = ConceptEraser()
        search = GridSearchCV(
            make_pipeline(eraser, LogisticRegression()),
            {"concepteraser__method": ["leace", "sal", "mean_projection", "random"]},
            cv=3,
            error_score="raise",
        )
        search.fit(X, y, sensitive_features=sex)
        assert set(search.cv_results_["param_concepteraser__method"]) == {"leace", "sal", "mean_projection", "random"}
        pipe = make_pipeline(eraser, LogisticRegression()).fit(X, y, sensitive_features=sex)
        assert class_gap(pipe[0].transform(X), sex) < 1e-12


def test_in_a_pipeline_by_columns(people):
    X, sex, y = people
    frame = pl.DataFrame({"a": X[:, 0], "b": X[:, 1], "sex": sex})
    pipe = make_pipeline(ConceptEraser(concept_columns=["sex"]), LogisticRegression()).fit(frame, y)
    assert class_gap(pipe[0].transform(frame), sex) < 1e-12
    assert pipe[-1].n_features_in_ == 2


@pytest.mark.parametrize("container", ["pandas", "polars"])
def test_set_output(people, container):
    X, sex, _ = people
    frame = pd.DataFrame(X, columns=list("abcd"))
    out = ConceptEraser().set_output(transform=container).fit(frame, sensitive_features=sex).transform(frame)
    assert list(out.columns) == list("abcd")
    assert np.allclose(out.to_numpy(), excise.erase(X, sex))
    assert class_gap(out.to_numpy(), sex) < 1e-12


def test_several_columns_and_their_intersections(rng):
    n = 4000
    frame = pd.DataFrame({"sex": rng.choice(["f", "m"], n), "old": rng.choice([True, False], n)})
    X = rng.standard_normal((n, 5)) + (frame["sex"] == "f").to_numpy()[:, None]
    X[:, 0] += 2 * ((frame["sex"] == "f") == frame["old"])  # seen in neither of them alone
    plain = ConceptEraser().fit_transform(X, sensitive_features=frame)
    crossed = ConceptEraser(cross=True).fit_transform(X, sensitive_features=frame)
    cells = (frame["sex"] + frame["old"].astype(str)).to_numpy()
    assert class_gap(plain, frame["sex"].to_numpy()) < 1e-12
    assert class_gap(plain, frame["old"].to_numpy()) < 1e-12
    assert class_gap(plain, cells) > 0.3  # the intersection is still there
    assert class_gap(crossed, cells) < 1e-12
    assert class_gap(crossed, frame["sex"].to_numpy()) < 1e-12


def test_partial_fit_is_fit(people):
    X, sex, _ = people
    eraser = ConceptEraser()
    order = np.argsort(sex)  # the second class comes late
    for i in range(0, 600, 100):
        eraser.partial_fit(X[order][i : i + 100], sensitive_features=sex[order][i : i + 100])
    assert np.allclose(eraser.transform(X), ConceptEraser(concept="y").fit(X, sex).transform(X), atol=1e-12)
    assert eraser.eraser_.info["rows"] == 600
    assert class_gap(eraser.transform(X), sex) < 1e-12


def test_a_refused_batch_or_fit_leaves_nothing_half_done(people):
    X, sex, y = people
    for options in ({"kind": "categorical"}, {"method": "splince"}):
        eraser = ConceptEraser(**options)
        with pytest.raises(excise.ConceptError, match="10 rows, but there are 9 labels"):
            eraser.partial_fit(X[:10], y[:10], sensitive_features=list("abcdefghi"))
        with pytest.raises(NotFittedError):
            eraser.transform(X)
        eraser.partial_fit(X[:, :3], y, sensitive_features=sex)
        assert eraser.moments_.concept.names == ("f", "m")
    with pytest.raises(excise.ConceptError, match="one class only"):
        eraser.fit(X, y, sensitive_features=["a"] * 600)
    with pytest.raises(NotFittedError):
        eraser.transform(X)


def test_frames_whose_columns_are_not_strings(people):
    X, sex, _ = people
    expected = excise.erase(X, sex)
    assert class_gap(expected, sex) < 1e-12
    frame = pd.DataFrame(X).assign(**{"4": sex}).rename(columns={"4": 4})
    assert np.allclose(ConceptEraser(concept_columns=[4]).fit_transform(frame), expected, atol=1e-12)
    labels = pd.DataFrame({0: sex})
    assert np.allclose(ConceptEraser().fit_transform(X, sensitive_features=labels), expected, atol=1e-12)
    named = pd.DataFrame(X, columns=list("abcd")).assign(sex=sex)
    for columns in (["sex", "sex"], pd.Index(["sex"])):
        assert np.allclose(ConceptEraser(concept_columns=columns).fit_transform(named), expected, atol=1e-12)


def test_every_method_by_name(people):
    X, sex, y = people
    for method in METHODS:
        eraser = ConceptEraser(method=method, method_options={"steps": 200} if method == "rlace" else None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", excise.ExciseWarning)
            out = eraser.fit_transform(X, y if method == "splince" else None, sensitive_features=sex)
        assert out.shape == X.shape
        if method not in ("random", "inlp", "rlace"):
            assert class_gap(out, sex) < 1e-9
    with pytest.raises(excise.ExciseError, match="trains on all rows at once"):
        ConceptEraser(method="inlp").partial_fit(X, sensitive_features=sex)
    with pytest.raises(excise.ConceptError, match="both the concept and the task"):
        ConceptEraser(method="splince", concept="y").fit(X, y)


def test_sample_weight(people):
    X, sex, _ = people
    w = np.arange(600) % 4
    a = ConceptEraser().fit(X, sensitive_features=sex, sample_weight=w)
    b = ConceptEraser().fit(np.repeat(X, w, axis=0), sensitive_features=np.repeat(sex, w))
    assert np.allclose(a.transform(X), b.transform(X), atol=1e-12)
    assert (
        np.abs(a.transform(X) - ConceptEraser(concept="y").fit(X, sex).transform(X)).max() > 1e-6
    )  # the weights matter
    assert class_gap(np.repeat(a.transform(X), w, axis=0), np.repeat(sex, w)) < 1e-12


def test_oracle_takes_labels_in_transform_or_refuses(people):
    X, sex, y = people
    oracle = ConceptEraser(method="oracle")
    assert class_gap(oracle.fit_transform(X, sensitive_features=sex), sex) < 1e-12
    assert class_gap(oracle.transform(X, sensitive_features=sex), sex) < 1e-12
    with pytest.raises(excise.ConceptError, match="pass sensitive_features="):
        oracle.transform(X)
    with pytest.raises(excise.ConceptError, match="y is not there in transform"):
        ConceptEraser(method="oracle", concept="y").fit(X, y)
    frame = pd.DataFrame({"a": X[:, 0], "sex": sex})
    assert class_gap(ConceptEraser(method="oracle", concept_columns="sex").fit_transform(frame), sex) < 1e-12
    with config_context(enable_metadata_routing=True):
        pipe = make_pipeline(ConceptEraser(method="oracle"), LogisticRegression()).fit(X, y, sensitive_features=sex)
        assert pipe.predict(X, sensitive_features=sex).shape == (600,)


def test_options_kind_and_clone(people):
    X, _, _ = people
    age = np.arange(600) % 7.0
    eraser = clone(ConceptEraser(kind="continuous", method_options={"shrinkage": "oas"}))
    out = eraser.fit(X, sensitive_features=age).transform(X)
    assert np.abs(covariance(out, age)).max() < 1e-12
    assert eraser.eraser_.info["shrinkage"] == "oas"
    with pytest.raises(excise.ConceptError, match="kind="):
        ConceptEraser().fit(X, sensitive_features=age)
    with pytest.raises(excise.ExciseError, match="no option 'shrink'"):
        ConceptEraser(method_options={"shrink": 1}).fit(X, sensitive_features=age > 3)


def test_errors(people):
    X, sex, _ = people
    frame = pd.DataFrame(X, columns=list("abcd"))
    for columns, message in (("e", "columns are a, b, c, d"), (9, "X has 4 columns"), (list("abcd"), "every column")):
        with pytest.raises(excise.ExciseError, match=message):
            ConceptEraser(concept_columns=columns).fit(frame)
    with pytest.raises(excise.ConceptError, match="given twice"):
        ConceptEraser(concept_columns="a").fit(frame, sensitive_features=sex)
    with pytest.raises(excise.ConceptError, match="Pass the concept as"):
        ConceptEraser().fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="NaN"):
            ConceptEraser(concept="y").fit(np.full((20, 2), np.nan), np.arange(20) % 2)
