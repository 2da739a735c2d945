"""The likeliest first mistakes on the command line: the message tells what to do, in one line, without a traceback."""

from __future__ import annotations

import re
import sys

import numpy as np
import pandas as pd
import pytest

from excise.cli import main

pytest.importorskip("typer")

MISTAKES = {
    "misspelt command": (["fti", "X.npy", "z.npy", "-o", "e"], "fit"),
    "misspelt option": (["fit", "X.npy", "z.npy", "--outptu", "e"], "--output|-o"),
    "value of an option forgotten": (["fit", "X.npy", "z.npy", "-o"], "-o.* requires an argument"),
    "labels forgotten": (["fit", "X.npy", "-o", "e"], "label|concept|Z"),
    "file that is not there": (["fit", "nothing.npy", "z.npy", "-o", "e"], "nothing.npy"),
    "labels of another length": (["fit", "X.npy", "short.npy", "-o", "e"], "200|199"),
    "features and labels swapped": (["fit", "z.npy", "X.npy", "-o", "e"], "z.npy|two dimensions|shape"),
    "misspelt method": (["fit", "X.npy", "z.npy", "-m", "leece", "-o", "e"], "leace"),
    "unknown format": (["fit", "X.xlsx", "z.npy", "-o", "e"], r"\.npy|\.parquet|ends in"),
    "folder that does not exist": (["fit", "X.npy", "z.npy", "-o", "no/such/e.safetensors"], "folder|directory"),
    "an array in place of an eraser": (["apply", "X.npy", "X.npy", "-o", "out.npy"], "safetensors|excise"),
    "eraser of other features": (["apply", "e.safetensors", "narrow.npy", "-o", "out.npy"], "3 features.*4|4.*3"),
    "eraser that is not there": (["apply", "nothing.safetensors", "X.npy", "-o", "out.npy"], "nothing.safetensors"),
    "one class only": (["fit", "X.npy", "ones.npy", "-o", "e"], "one class|constant"),
    "an unquoted glob": (["fit", "s0.npy", "s1.npy", "-o", "e"], r"quote the glob.*folder.*--labels s1\.npy"),
    "an unquoted glob of other lengths": (["fit", "s0.npy", "X.npy", "-o", "e"], "quote the glob"),
    "an unquoted glob of tables": (["fit", "p0.parquet", "p1.parquet", "-c", "sex", "-o", "e"], "quote the glob"),
    "an unquoted glob of text": (["fit", "c0.csv", "c1.csv", "-o", "e"], "quote the glob"),
    "an unquoted glob, in an audit": (["audit", "s0.npy", "s1.npy"], "quote the glob"),
    "an unquoted glob, and labels": (["fit", "s0.npy", "s1.npy", "--labels", "z.npy"], "given twice.*quote the glob"),
    "swapped": (["fit", "z.npy", "X.npy", "-o", "e"], "did you swap them"),
    "swapped, a table": (["fit", "names.parquet", "p0.parquet", "-o", "e"], "did you swap them"),
    "everything erased": (["fit", "s0.npy", "--labels", "s1.npy", "-o", "e"], "everything would be erased"),
    "everything erased, by classes": (["fit", "narrow.npy", "four.npy", "-o", "e"], "everything would be erased"),
    "strings of pandas": (["fit", "X.npy", "object.npy", "-o", "e"], r"pickled Python objects.*\.astype\(str\)"),
    "a task of one class": (
        ["fit", "p0.parquet", "-f", "a,b", "-c", "sex", "--task", "one", "-m", "splince", "-o", "e"],
        r"y \(the task\) has one class",
    ),
    "missing labels": (["fit", "gaps.parquet", "-f", "a,b", "-c", "sex", "-o", "e"], "--skip-bad"),
    "classes or numbers?": (["fit", "X.npy", "whole.npy", "-o", "e"], "categorical.*continuous|--kind"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import excise

    path = tmp_path_factory.mktemp("mistakes")
    rng = np.random.default_rng(0)
    z = rng.integers(0, 2, 200)
    X = rng.standard_normal((200, 4)) + z[:, None]
    for name, array in {
        "X": X,
        "z": z,
        "short": z[1:],
        "narrow": X[:, :3],
        "ones": np.ones(200, dtype=int),
        "whole": rng.integers(1, 6, 200) * 1.0,
        "s0": X[:100],
        "s1": X[100:],
        "four": np.arange(200) % 4,
    }.items():
        np.save(path / f"{name}.npy", array)
    np.save(path / "object.npy", np.array(["f", "m"] * 100, dtype=object), allow_pickle=True)
    frame = pd.DataFrame(X, columns=list("abcd")).assign(sex=np.where(z, "f", "m"), one=1)
    frame.to_parquet(path / "p0.parquet")
    frame.to_parquet(path / "p1.parquet")
    frame[["sex"]].to_parquet(path / "names.parquet")
    frame.assign(sex=frame["sex"].where(frame.index % 7 > 0)).to_parquet(path / "gaps.parquet")
    frame[list("abcd")].to_csv(path / "c0.csv", index=False)
    frame[list("abcd")].to_csv(path / "c1.csv", index=False)
    (path / "X.xlsx").write_bytes(b"PK")
    excise.fit(X, z).save(path / "e.safetensors")
    return path


@pytest.fixture
def said(folder, monkeypatch, capsys):
    """Call the entry point as the shell does: exit status and output."""

    def call(*arguments):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["excise", *arguments])
        for name, value in {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main()
        words = ended.value.code if isinstance(ended.value.code, str) else ""
        shown = capsys.readouterr()
        return ended.value.code, shown.out + shown.err + words

    return call


@pytest.mark.parametrize("name", MISTAKES)
def test_message(said, name):
    arguments, expected = MISTAKES[name]
    status, output = said(*arguments)
    assert status not in (0, None), output
    assert re.search(expected, output, re.DOTALL), output


def test_without_a_mistake(said, folder):
    status, output = said("fit", "X.npy", "z.npy", "-o", "fine.safetensors")
    assert status == 0, output
    assert (folder / "fine.safetensors").exists()


def test_labels_in_other_files_are_no_mistake(said, folder):
    """Labels from a table that has the features too, and numbers as the concept."""
    status, output = said("fit", "X.npy", "p0.parquet", "-c", "sex", "-o", "table.safetensors")
    assert status == 0, output
    np.save(folder / "wide.npy", np.random.default_rng(0).standard_normal((200, 2)).repeat(2, axis=1))  # rank 2 of 4
    status, output = said("fit", "X.npy", "--labels", "wide.npy", "-o", "numbers.safetensors")
    assert status == 0, output
    assert "rank 2" in output


def test_what_is_left_alone_is_named(said, folder):
    frame = pd.read_parquet(folder / "p0.parquet").assign(job="clerk", town="Oslo")
    frame.to_parquet(folder / "mixed.parquet")
    status, output = said("fit", "mixed.parquet", "-c", "sex", "-o", "mixed.safetensors")
    assert status == 0, output
    assert "note: 2 column(s) are not numbers, so nothing is erased from them" in output
    assert "'job', 'town'" in output
    frame.assign(new=1.0).to_parquet(folder / "later.parquet")
    status, output = said("apply", "mixed.safetensors", "later.parquet", "-o", "out.parquet")
    assert status == 0, output
    assert "note: 1 column(s) of numbers are unknown to the eraser and stay as they are: 'new'" in output
    assert "note: 2 column(s) are not numbers and stay as they are: 'job', 'town'" in output
    after = pd.read_parquet(folder / "out.parquet")
    assert (after["job"] == "clerk").all()
    assert after["sex"].equals(frame["sex"])
