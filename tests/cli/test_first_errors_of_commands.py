"""The likeliest first mistakes on the command line: the message tells what to do, in one line, without a traceback."""

from __future__ import annotations

import re
import sys

import numpy as np
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
    }.items():
        np.save(path / f"{name}.npy", array)
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
