"""The whole report: what it says, how it is written, and what it does with bad input."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import app, excise_command, runner
from measure import leace_by_definition, mean_squared_edit, one_hot

import excise

pytestmark = pytest.mark.filterwarnings("ignore::excise.ExciseWarning")
NASTY = "<script>alert('x')</script> & $\\frac{"


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    n = 900
    z = rng.choice(["f", NASTY], n)
    y = np.where(rng.random(n) < 0.3, (z == "f").astype(int), rng.integers(0, 4, n))
    X = rng.standard_normal((n, 6)) + (z == "f")[:, None] * [2, 0, 0, 0, 0, 0] + rng.standard_normal((4, 6))[y]
    return X, z, y


@pytest.fixture(scope="module")
def report(people):
    X, z, y = people
    with _quiet():
        return excise.audit(X, z, eraser=excise.fit(X, z), y=y, refit="leace")


def _quiet():
    import warnings

    return warnings.catch_warnings(action="ignore")


def test_every_section_is_there(report):
    assert report.guarded
    assert report.absent == {}
    assert {p.name for p in report.probes if p.linear} == {
        "logistic regression",
        "least squares",
        "linear support vectors",
    }
    assert len(report.probes) == 9
    for probe in report.probes:
        assert probe.interval[0] <= probe.information <= probe.interval[1]
        if probe.name != "classifier on a softmax":  # it reads the task's softmax
            assert probe.information_before > 0.15
            assert probe.information < 0.05
    text = str(report)
    assert text.startswith("GUARDED")
    assert "logistic loss" in text
    assert "re-fitted" in text


def test_cost_against_plain_numpy(report, people):
    X, z, _ = people
    P, mean = leace_by_definition(X, one_hot(z))
    erased = (X - mean) @ P.T + mean
    cost, covariance = report.cost, np.cov(X.T, bias=True)
    edit = mean_squared_edit(X, erased)
    assert cost.mean_squared_edit == pytest.approx(edit)
    assert cost.relative == pytest.approx(edit / np.trace(covariance))
    assert cost.mahalanobis == pytest.approx(mean_squared_edit(X, erased, np.linalg.inv(covariance)))
    assert cost.leace == pytest.approx(edit)
    means = np.stack([X[z == c].mean(0) for c in np.unique(z)])
    share = [np.mean(z == c) for c in np.unique(z)]
    assert cost.oracle == pytest.approx((share * ((means - X.mean(0)) ** 2).sum(1)).sum())
    assert cost.over_oracle >= 1
    assert cost.spectral_norm == pytest.approx(np.linalg.norm(P, 2))
    sizes = np.linalg.norm(erased - X, axis=1) / np.sqrt(np.trace(covariance))
    assert cost.sizes["95%"] == pytest.approx(np.quantile(sizes, 0.95))
    cosine = (X * erased).sum(1) / np.linalg.norm(X, axis=1) / np.linalg.norm(erased, axis=1)
    assert cost.cosines["50%"] == pytest.approx(np.median(cosine))
    given = excise.audit(X, z, X_erased=erased, quick=True)
    assert given.cost.rank == report.cost.rank == 1  # found from the edit itself
    sal = excise.audit(X, z, eraser=excise.fit(X, z, method="sal"), quick=True)
    assert sal.guarded
    assert sal.cost.over_leace > 1.001


def test_json_holds_everything_and_repeats(report, people, tmp_path):
    X, z, y = people
    report.to_json(tmp_path / "r.json")
    stored = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert stored["guarded"] is True
    assert stored["settings"]["seed"] == 0
    assert {"excise", "numpy", "scikit-learn"} <= set(stored["settings"]["versions"])
    assert stored["data"]["classes"][0] == [NASTY, int((z == NASTY).sum())]
    with _quiet():
        again = excise.audit(X, z, eraser=excise.fit(X, z), y=y, refit="leace").to_dict()
    for fresh in (stored, again):
        fresh["settings"].pop("seconds")
        for probe in fresh["probes"]:
            probe.pop("seconds")
    assert again == stored


class Page(HTMLParser):
    """What a page holds: tags, links to elsewhere, text by id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in ("meta", "link", "br", "!doctype"):
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href") and not value.startswith(("#", "data:")):
                self.links.append(value)
            assert not name.startswith("on")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in ("meta", "link", "br"):
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_page_is_whole_self_contained_and_escaped(report, tmp_path):
    report.to_html(tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []  # every tag is closed, in order
    assert "script" not in page.tags
    assert page.links == []
    assert page.tags.count("svg") == 5
    assert len(page.ids) == len(set(page.ids))
    assert {"verdict", "conditions", "held-out", "probes", "cost", "fairness", "settings"} <= set(page.ids)
    words = " ".join(page.words)
    assert "✓ Guarded" in words
    assert "no linear model can predict the concept better than a constant" in words
    assert NASTY in words
    assert "<script" not in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    frame = report._repr_html_()
    assert frame.startswith("<iframe srcdoc=")
    assert "<script" not in frame


def test_what_is_missing_is_said(people, tmp_path):
    X, z, _ = people
    plain = excise.audit(X, z, quick=True)
    assert not plain.guarded
    assert plain.held_out is None
    assert plain.cost is None
    assert set(plain.absent) == {"held out", "fairness", "cost"}
    assert "refit=" in plain.absent["held out"]
    plain.to_html(tmp_path / "p.html")
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "✗ Not guarded" in text
    assert text.count("Absent:") == 3
    assert str(plain).startswith("NOT GUARDED")


def test_stated_smaller_analyses(rng):
    X = rng.standard_normal((100, 3))
    rare = ["a"] * 60 + ["b"] * 37 + ["c"] * 3  # a class smaller than the folds
    found = excise.audit(X, rare, eraser=excise.fit(X, rare), refit="leace", quick=True)
    assert found.guarded
    assert any("'c' (3)" in note for note in found.held_out.notes)
    many = [f"class {i // 2}" for i in range(100)]  # more classes than rows in a fold
    found = excise.audit(X, many, y=rng.integers(0, 2, 100), quick=True)
    assert found.probes == []
    assert "fewer than two classes" in found.absent["probes"]
    one = np.array(["a"] * 99 + ["b"])
    found = excise.audit(X, one, refit="leace", quick=True)
    assert found.held_out is None
    assert not found.guarded
    number = X[:, 0] + rng.standard_normal(100)
    found = excise.audit(X, number, eraser=excise.fit(X, number), y=rng.integers(0, 2, 100), quick=True)
    assert found.guarded
    assert "not groups" in found.absent["fairness"]
    assert found.probes[0].loss is None
    two = {"a": rng.integers(0, 2, 100), "b": rng.choice(["x", "y"], 100)}
    found = excise.audit(X, two, eraser=excise.fit(X, two), refit="leace", quick=True)
    assert found.guarded
    assert found.held_out.measure == "R^2"  # of the 0/1 columns


def test_bad_input(people):
    X, z, y = people
    holes = X.copy()
    holes[3, 2] = np.nan
    for arguments, message in (
        ({"z": ["a"] * 900}, "one class only"),
        ({"y": np.zeros(900, dtype=int)}, r"y \(the task\) has one class only"),
        ({"X": holes}, "row 3, feature 2"),
        ({"X_erased": X[:10]}, "must be the same rows"),
        ({"X_erased": X, "eraser": lambda X: X}, "not both"),
        ({"eraser": 3}, "must be callable"),
        ({"eraser": excise.fit(X[:, :5], z)}, "the eraser was fitted on 5"),
        ({"z": z[:10]}, "there are 10 labels"),
        ({"y": y[:10]}, "there are 10 labels"),
        ({"groups": [1, 2]}, "2 groups"),
        ({"groups": np.zeros(900)}, "at least 5 are needed"),
        ({"seed": -1}, "seed must be"),
        ({"X": X[:, 0]}, "at least two dimensions"),
        ({"X": X[:1], "z": z[:1]}, "at least two are needed"),
        ({"eraser": lambda X: X[:, :2]}, "the same number is needed"),
        ({"z": np.full(900, 1.5), "kind": "continuous"}, "constant over all"),
    ):
        with pytest.raises(excise.ExciseError, match=message):
            excise.audit(**{"X": X, "z": z, "quick": True, **arguments})


def test_the_callers_memory_map_is_left_alone(people, tmp_path):
    X, z, _ = people
    np.save(tmp_path / "x.npy", X)
    mine = np.load(tmp_path / "x.npy", mmap_mode="c")
    mine[:] = excise.fit(X, z)(X)
    assert excise.audit(mine, z, quick=True).guarded
    assert np.abs(mine - X).max() > 0.1  # what was written is still there


def test_what_cannot_be_measured_is_not_zero(people):
    X, z, _ = people
    report = excise.audit(X, z, eraser=excise.fit(X, z), y=z, quick=True)  # the task is the concept
    assert report.fairness.before.rms_tpr_gap is None
    assert "no gap to measure" in " ".join(report.verdict)
    other = excise.fit(X, z, method="random")
    with pytest.raises(excise.InputError, match="pass refit='random'"):
        excise.audit(X, z, eraser=other, refit="leace")
    half = X.astype(np.float16)
    assert not excise.audit(half, np.random.default_rng(1).permutation(z), quick=True).guarded  # nobody edited it


def test_command(people, tmp_path):
    X, z, y = people
    for name, array in (("x", X.astype(np.float32)), ("z", z), ("y", y), ("g", np.arange(900) // 2)):
        np.save(tmp_path / f"{name}.npy", array)
    excise_command("fit", tmp_path / "x.npy", tmp_path / "z.npy", "-o", tmp_path / "e.safetensors")
    said = excise_command(
        "audit", tmp_path / "x.npy", tmp_path / "z.npy", "-e", tmp_path / "e.safetensors", "--y", tmp_path / "y.npy",
        "--refit", "leace", "--groups", tmp_path / "g.npy", "--quick", "--html", tmp_path / "a.html", "--json", tmp_path / "a.json",
    )  # fmt: skip
    assert said.startswith("GUARDED")
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["data"]["dtype"] == "float32"
    assert "✓ Guarded" in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_command_says_no_by_its_status(people, tmp_path):
    X, z, _ = people
    table = pa.table({"a": X[:, 0], "b": X[:, 1], "sex": list(z)})
    pq.write_table(table, tmp_path / "p.parquet")
    command = ["audit", str(tmp_path / "p.parquet"), "-c", "sex", "--quick"]
    done = runner.invoke(app, command)
    assert done.exit_code == 1
    assert done.output.startswith("NOT GUARDED")
    with pytest.raises(excise.ExciseError, match="does not exist"):
        excise_command(*command, "--html", tmp_path / "no" / "a.html")


def test_an_oracle_that_moves_all_rows_by_one_length(rng):
    z = np.tile([0, 1], 100)
    X = rng.standard_normal((200, 5)) + z[:, None]
    report = excise.audit(X, z, eraser=excise.fit(X, z, "oracle"), quick=True)
    assert report.guarded
    assert sum(report.cost.histogram["counts"]) == 200


def test_groups_of_mixed_types_are_refused(rng):
    X, z = rng.standard_normal((20, 2)), np.tile([0, 1], 10)
    with pytest.raises(excise.InputError, match="groups mixes values"):
        excise.audit(X, z, groups=np.array([None, "a"] * 10, dtype=object))
