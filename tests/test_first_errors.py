"""The likeliest first mistakes of each interface, and what the message must say: what was found, and what to do."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pandas as pd
import pytest

import excise

RNG = np.random.default_rng(0)
Z = RNG.integers(0, 2, 200)
X = RNG.standard_normal((200, 4)) + Z[:, None]
Y = RNG.integers(0, 2, 200)
NAN = X.copy()
NAN[3, 1] = np.nan


def erased():
    return excise.fit(X, Z)


FUNCTIONS = {
    "labels and features swapped": (lambda: excise.fit(Z, X), r"X has shape \(200,\).*two dimensions"),
    "labels forgotten": (lambda: excise.fit(X, None), "label"),
    "float labels that are classes": (
        lambda: excise.fit(X, RNG.integers(1, 5, 200) * 1.0),
        "kind='categorical' or kind='cont",
    ),
    "identifiers as labels": (lambda: excise.fit(X, np.arange(200)), "kind='categorical' or kind='continuous'"),
    "one label too few": (lambda: excise.fit(X, Z[:-1]), "X has 200 rows, but there are 199 labels"),
    "transposed features": (lambda: excise.fit(X.T, Z), "X has 4 rows, but there are 200 labels"),
    "one class only": (lambda: excise.fit(X, np.zeros(200, dtype=int)), "one class only.*at least two classes"),
    "NaN in the features": (lambda: excise.fit(NAN, Z), "NaN.*row 3, feature 1.*impute"),
    "missing labels": (lambda: excise.fit(X, [None, *Z[1:].tolist()]), "1 of 200 labels are missing.*drop those rows"),
    "misspelt method": (lambda: excise.fit(X, Z, method="leece"), "did you mean 'leace'"),
    "misspelt option": (lambda: excise.fit(X, Z, shrinkag="oas"), "no option 'shrinkag'; it has .*shrinkage"),
    "unknown value of an option": (lambda: excise.fit(X, Z, shrinkage="ledoit"), "shrinkage must be .*'ledoit'"),
    "splince without the task": (lambda: excise.fit(X, Z, method="splince"), "needs the task: pass y="),
    "task where none is used": (lambda: excise.fit(X, Z, y=Y), "no use for y"),
    "other number of features when applied": (lambda: erased()(X[:, :3]), "X has 3 features .*fitted on 4"),
    "oracle called without labels": (
        lambda: excise.fit(X, Z, method="oracle")(X),
        r"needs the label of every row: eraser\(X, z\)",
    ),
    "text among the columns": (
        lambda: excise.fit(pd.DataFrame(X).assign(name="a"), Z),
        "not numbers: .*name.*Drop them",
    ),
    "strings as an array": (lambda: excise.fit(X.astype(str), Z), "dtype .*convert it"),
    "no rows": (lambda: excise.fit(X[:0], Z[:0]), "empty"),
    "file that is not there": (lambda: excise.load("nothing.safetensors"), "no such file"),
}
AUDIT = {
    "labels and features swapped": (lambda: excise.audit(Z, X), r"\(200,\)"),
    "both an eraser and erased rows": (lambda: excise.audit(X, Z, eraser=erased(), X_erased=X), "eraser.*X_erased"),
    "erased rows of another shape": (
        lambda: excise.audit(X, Z, X_erased=X[:9]),
        r"X_erased has shape \(9, 4\).*same rows",
    ),
    "eraser of other features": (lambda: excise.audit(X[:, :3], Z, eraser=erased()), "X has 3 features.*fitted on 4"),
    "misspelt refit": (lambda: excise.audit(X, Z, refit="laece", quick=True), "leace"),
    "one label too few": (lambda: excise.audit(X, Z[1:], quick=True), "199"),
    "one class only": (lambda: excise.audit(X, np.ones(200), quick=True), "one class|constant"),
    "NaN in the features": (lambda: excise.audit(NAN, Z, quick=True), "NaN|finite"),
    "task of another length": (lambda: excise.audit(X, Z, eraser=erased(), y=Y[:7], quick=True), "7"),
    "groups of another length": (lambda: excise.audit(X, Z, refit="leace", groups=Y[:7], quick=True), "groups"),
    "unknown method in compare": (lambda: excise.compare(X, Z, methods=["lease"]), "lease.*leace"),
}
ESTIMATOR = {
    "y taken for the concept": (
        lambda: excise.ConceptEraser().fit(X, Z),
        "sensitive_features=.*concept_columns=.*concept='y'",
    ),
    "concept named twice": (
        lambda: excise.ConceptEraser(concept="y").fit(X, Z, sensitive_features=Z),
        "given twice: use one of",
    ),
    "labels as the concept argument": (
        lambda: excise.ConceptEraser(concept="sex").fit(X, Z),
        "concept must be 'y'.*concept_columns",
    ),
    "column that is not there": (
        lambda: excise.ConceptEraser(concept_columns="Sex").fit(pd.DataFrame(X, columns=list("abcd")), Z),
        "names 'Sex', but columns are a, b, c, d",
    ),
    "column names on an array": (
        lambda: excise.ConceptEraser(concept_columns="sex").fit(X, Z),
        "X has no column names",
    ),
    "column number that is not there": (
        lambda: excise.ConceptEraser(concept_columns=9).fit(X),
        "column 9, but X has 4 columns",
    ),
    "every column is the concept": (
        lambda: excise.ConceptEraser(concept_columns=[0, 1, 2, 3]).fit(X),
        "no features left",
    ),
    "misspelt method": (lambda: excise.ConceptEraser("leece").fit(X, sensitive_features=Z), "did you mean 'leace'"),
    "option outside method_options": (
        lambda: excise.ConceptEraser(method_options={"shrink": 1}).fit(X, sensitive_features=Z),
        "no option 'shrink'",
    ),
    "splince without the task": (
        lambda: excise.ConceptEraser("splince").fit(X, sensitive_features=Z),
        "pass the task as y",
    ),
    "oracle without labels in transform": (
        lambda: excise.ConceptEraser("oracle").fit(X, sensitive_features=Z).transform(X),
        "needs the labels in transform: pass sensitive_features=",
    ),
    "oracle with y as the concept": (
        lambda: excise.ConceptEraser("oracle", concept="y").fit(X, Z),
        "needs the labels when",
    ),
    "concept is y, and there is none": (lambda: excise.ConceptEraser(concept="y").fit(X), "y to be passed"),
    "batches for a method that needs all rows": (
        lambda: excise.ConceptEraser("inlp").partial_fit(X, sensitive_features=Z),
        "all rows at once: use fit",
    ),
    "transform before fit": (lambda: excise.ConceptEraser().transform(X), "not fitted"),
    "eraser before fit": (lambda: excise.ConceptEraser().eraser_, "after fit"),
    "other number of features in transform": (
        lambda: excise.ConceptEraser().fit(X, sensitive_features=Z).transform(X[:, :2]),
        "2 features.*4 features",
    ),
}


def check(mistake, message):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", excise.ExciseWarning)
        with pytest.raises((ValueError, OSError, AttributeError)) as found:
            mistake()
    assert re.search(message, str(found.value), re.DOTALL), str(found.value)
    assert "Traceback" not in str(found.value)
    assert len(str(found.value)) > 15


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    check(*FUNCTIONS[name])


@pytest.mark.parametrize("name", AUDIT)
def test_audit_and_compare(name):
    check(*AUDIT[name])


@pytest.mark.parametrize("name", ESTIMATOR)
def test_estimator(name):
    check(*ESTIMATOR[name])


NEW_USER = {
    "features as labels": (
        lambda: excise.fit(X, X + 1),
        "4 columns of numbers, as many as there are features.*kind='cont",
    ),
    "features as labels, in an estimator": (
        lambda: excise.ConceptEraser().fit(X, sensitive_features=X + 1),
        "as many as there are features",
    ),
    "features as labels, in an audit": (lambda: excise.audit(X, X, quick=True), "as many as there are features"),
    "a frame as labels": (
        lambda: excise.fit(pd.DataFrame(X), pd.DataFrame(X)),
        "4 columns of numbers, as many as there are features",
    ),
    "swapped": (lambda: excise.fit(Z, X), "did you swap them"),
    "swapped, a column": (lambda: excise.fit(Z[:, None], X), "did you swap them"),
    "swapped strings": (lambda: excise.fit(Z.astype(str), X), "did you swap them"),
    "swapped, other methods": (lambda: excise.fit(Z, X, "inlp"), "did you swap them"),
    "a task of one class": (
        lambda: excise.fit(X, Z, "splince", y=np.zeros(200, dtype=int)),
        r"^y \(the task\) has one class only.*nothing to keep",
    ),
    "a task of 80 integers": (
        lambda: excise.fit(X, Z, "splince", y=np.arange(200) % 80),
        r"^y \(the task\): .*task_kind='categorical' or task_kind='continuous'",
    ),
    "a condition of numbers": (
        lambda: excise.fit(X, Z, condition_on=RNG.standard_normal(200)),
        "^condition_on: one column of classes is needed, got numbers such as .*cut them into classes",
    ),
    "missing labels": (
        lambda: excise.fit(X, [None] * 190 + Z[:10].tolist()),
        "drop those rows and fit on the 10 .*--skip-bad",
    ),
    "text in a frame": (
        lambda: excise.ConceptEraser().fit(pd.DataFrame(X).assign(job="x").rename(columns=str), sensitive_features=Z),
        "'job'.*make_column_transformer.*OneHotEncoder",
    ),
    "text beside the concept": (
        lambda: excise.ConceptEraser(concept_columns="sex").fit(
            pd.DataFrame(X).assign(sex=Z, job="x").rename(columns=str)
        ),
        "1 column.*'job'.*OneHotEncoder",
    ),
}


@pytest.mark.parametrize("name", NEW_USER)
def test_wrong_answers_of_a_new_user(name):
    check(*NEW_USER[name])


def test_what_is_no_mistake():
    """Numbers said to be numbers, 0/1 columns as wide as X, and many integer classes where only classes make sense."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        excise.fit(X, X + RNG.standard_normal(X.shape), kind="continuous")
        assert excise.fit(X, np.eye(4)[np.arange(200) % 4]).rank == 3
        many = np.arange(200) % 80
        twice = excise.fit(np.repeat(X, 3, axis=0), np.tile([0, 1, 1], 200), condition_on=np.repeat(many, 3))
        assert len(twice.info["condition_on"]["classes"]) == 80
        kept = excise.fit(X, Z, "splince", y=many, task_kind="continuous")
        centred = many - many.mean()
        assert np.allclose(centred @ kept(X), centred @ X)  # one number is kept, not 80 classes
        assert not np.allclose(centred @ erased()(X), centred @ X)
        table = excise.audit(X, Z, eraser=erased(), y=many % 60, quick=True)
        assert len(table.fairness.task_classes) == 60
