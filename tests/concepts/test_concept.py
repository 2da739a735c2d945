"""Labels of every kind, by the rules of the design."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from optional import optional

from excise import Concept, ConceptError, ExciseWarning

torch = optional("torch")


@pytest.mark.parametrize(
    ("z", "kind", "names"),
    [
        ([3, 1, 1], "categorical", (1, 3)),
        (np.array([3, 1, 1], dtype=np.uint8), "categorical", (1, 3)),
        ([True, False], "categorical", (False, True)),
        (["b", "a"], "categorical", ("a", "b")),
        ([0.0, 1.0, 0.0], "categorical", (0, 1)),
        ([0.25, 0.5, 0.25], "categorical", (0.25, 0.5)),
        ([0.1, 0.2, 0.3], "continuous", (0,)),
        (np.arange(60.0), "continuous", (0,)),
        (np.array([[3], [1]]), "categorical", (1, 3)),
        (np.array([[0, 1], [1, 0]]), "continuous", (0, 1)),
        (np.array([[0.5, 1], [1, 0]]), "continuous", (0, 1)),
        ([1, "1", True], "categorical", (True, 1, "1")),
        (pd.Series(["x", "y"], dtype="category"), "categorical", ("x", "y")),
        (pd.Series([0.5, 1.5, 2.5], dtype="category"), "categorical", (0.5, 1.5, 2.5)),
        (pd.Categorical([0.0, 1.0, 2.0]), "categorical", (0, 1, 2)),
        (pd.DataFrame([["f", 2], ["m", 4]]), "categorical", ((0, "f"), (0, "m"), (1, 2), (1, 4))),
        ({"s": ["f", "m"], 7: [True, False]}, "categorical", (("s", "f"), ("s", "m"), (7, False), (7, True))),
        ([[1, "a"], [2, "b"]], "categorical", ((0, 1), (0, 2), (1, "a"), (1, "b"))),
        (np.array([2**63 + 1, 2], dtype=np.uint64), "categorical", (2, 2**63 + 1)),
        ([2**70, 1], "categorical", (1, 2**70)),
        (pl.Series([2, 1]), "categorical", (1, 2)),
        (pa.chunked_array([["x", "y"]]), "categorical", ("x", "y")),
        (lambda: torch.tensor([2, 0]), "categorical", (0, 2)),
        (np.array([10**12, -5]), "categorical", (-5, 10**12)),
        (
            pd.DataFrame({"s": ["f", "m"], "a": [0.5, 0.75]}),
            "categorical",
            (("s", "f"), ("s", "m"), ("a", 0.5), ("a", 0.75)),
        ),
        (pl.DataFrame({"s": ["f", "m", "f"], "a": [0.1, 0.2, 0.3]}), "mixed", (("s", "f"), ("s", "m"), ("a",))),
        (np.array([["f", "x"], ["m", "x"]]), "categorical", ((0, "f"), (0, "m"), (1, "x"))),
    ],
)
def test_kind_and_names(z, kind, names):
    c = Concept.of(z() if callable(z) else z)
    assert (c.kind, c.names, c.k) == (kind, names, len(names))
    assert [type(n) for n in c.names] == [type(n) for n in names]
    assert Concept.from_dict(json.loads(json.dumps(c.to_dict()))) == c


def test_encode():
    c = Concept.of(["b", "a", "b"])
    assert c.encode(["a", "b"]).tolist() == [[1, 0], [0, 1]]
    assert Concept.of([0.5, 1.5, 2.5]).encode([3.0]).tolist() == [[3.0]]
    frame = pd.DataFrame({"s": ["f", "m", "f"], "a": [0.1, 0.2, 0.3]})
    assert Concept.of(frame).encode(frame[["a", "s"]]).tolist() == [[1, 0, 0.1], [0, 1, 0.2], [1, 0, 0.3]]


def test_cross_has_the_cells_that_occur():
    frame = pl.DataFrame({"s": ["f", "m", "f"], "r": [1, 1, 2], "a": [0.1, 0.2, 0.3]})
    c = Concept.of(frame, cross=True)
    assert c.names == (("f", 1), ("f", 2), ("m", 1), ("a",))
    # Each single class is a sum of cells, so it is erased too.
    cells, single = c.encode(frame)[:, :3], Concept.of(frame).encode(frame)[:, :4]
    assert np.linalg.matrix_rank(np.hstack([cells, single])) == np.linalg.matrix_rank(cells)
    with pytest.raises(ConceptError, match="at least two categorical"):
        Concept.of(["a", "b"], cross=True)


@pytest.mark.parametrize(
    ("z", "kind", "message"),
    [
        ([0.0, 1.0, 2.0], None, r"3 distinct whole values .* kind='categorical' or kind='continuous'\?"),
        (np.array([[1, 2], [3, 4]]), None, r"2-D array of integers.*kind='categorical' or"),
        ([0.5, np.nan, np.nan], None, r"2 of 3 labels are missing \(first at row 1\)"),
        (["a", None], None, r"1 of 2 labels are missing"),
        (pd.Series(["a", None, "b"]), None, "1 of 3 labels are missing"),
        (pd.Series([1, None, 2], dtype="Int64"), None, "1 of 3 labels are missing"),
        (pl.DataFrame({"s": ["a", None], "t": [1, 2]}), None, "1 of 2 labels are missing in column 's'"),
        ([0.5, np.inf, 1.5], None, "infinite"),
        (["a", "b"], "continuous", "needs numbers"),
        ([], None, "empty"),
        ("abc", None, "must be an array"),
        (3, None, "must be an array"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), None, "dtype datetime64"),
        (np.zeros((2, 2, 2)), None, r"shape \(2, 2, 2\)"),
        ([b"a", b"b"], None, "bytes"),
        ([1, 2], "ordinal", "kind must be"),
        (np.ma.masked_equal([0, 1, -1], -1), None, r"masked array \(1 masked\)"),
        ([["a", np.nan], ["b", "c"]], None, "1 of 2 labels are missing"),
        ([["a"], ["b", "c"]], None, "unequal length"),
        (np.zeros((5, 0)), None, r"shape \(5, 0\)"),
    ],
)
def test_refused(z, kind, message):
    with pytest.raises(ConceptError, match=message):
        Concept.of(z, kind=kind)


def test_kind_settles_what_is_ambiguous():
    assert Concept.of([0.0, 1.0, 2.0], kind="categorical").names == (0, 1, 2)
    assert Concept.of([0.0, 1.0, 2.0], kind="continuous").k == 1
    assert Concept.of(np.array([[1, 2], [3, 4]]), kind="continuous").k == 2
    assert Concept.of(np.array([[1, 2], [3, 4]]), kind="categorical").names == ((0, 1), (0, 3), (1, 2), (1, 4))
    assert Concept.of([3, 1, 2], kind="continuous").kind == "continuous"


def test_new_classes_join_sorted_unless_closed():
    c, encoded = Concept.of(["m", "b"]).extend(["a", "m"])
    assert c.names == ("a", "b", "m")
    assert encoded.codes.tolist() == [0, 2]
    with pytest.raises(ConceptError, match=r"1 class.* not fitted with: 'q'"):
        c.encode(["q"])
    closed = Concept.of(["m"], classes=["m", "f"])
    assert closed.names == ("f", "m")
    with pytest.raises(ConceptError, match="outside the given classes: 'x'"):
        closed.extend(["x"])


def test_the_first_batch_fixes_the_kind():
    with pytest.raises(ConceptError, match="were taken as classes"):
        Concept.of([0.5, 1.5]).extend([0.5, 2.5])
    with pytest.raises(ConceptError, match=r"one or two distinct values \(1\).*now there are others \(2, 3\)"):
        Concept.of([1.0, 1.0]).extend([1.0, 2.0, 3.0])
    with pytest.raises(ConceptError, match="continuous, got labels such as 'a'"):
        Concept.of([0.1, 0.2, 0.3]).extend(["a"])
    with pytest.raises(ConceptError, match=r"3 numeric columns, the concept has 2"):
        Concept.of(np.zeros((2, 2))).extend(np.zeros((2, 3)))
    with pytest.raises(ConceptError, match="cannot join a continuous concept"):
        Concept.of([0.1, 0.2, 0.3]).join(Concept.of([1, 2]))


def test_float_labels_in_a_sorted_stream_are_never_an_ordinal_number_by_accident():
    """The whole data would be refused with the question; so must be the same data in batches of one class each."""
    z = np.repeat([0.0, 1.0, 2.0], 4)
    concept = Concept.of(z[:4])
    concept, _ = concept.extend(z[4:8])
    with pytest.raises(ConceptError, match="kind='categorical' or kind='continuous'"):
        concept.extend(z[8:])
    halves = Concept.of([0.0, 0.0]), Concept.of([0.0, 1.0]), Concept.of([1.0])
    assert halves[0].join(halves[1]).join(halves[2]) == Concept.of([0.0, 1.0]) == halves[2].join(halves[0])


def test_many_classes_warn():
    with pytest.warns(ExciseWarning, match="101 classes"):
        Concept.of(np.arange(101), kind="categorical")
