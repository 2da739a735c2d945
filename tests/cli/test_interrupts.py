"""Ctrl-C: exit status 130, and one line that says what is kept and how to continue."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import excise

# Small batches with a pause between them, so that the signal arrives while the command works.
SLOW = """
import pathlib, sys, time
import excise.data.gathering as gathering, excise.data.table as table
table.BATCH_BYTES = 1000
real = gathering.Gathered.add_batch
def slow(self, batch):
    pathlib.Path("begun").touch()
    time.sleep(0.01)
    real(self, batch)
gathering.Gathered.add_batch = slow
from excise.cli import main
sys.argv = ["excise", *sys.argv[1:]]
main()
"""


@pytest.fixture
def folder(tmp_path, rng):
    z = rng.integers(0, 2, 100_000)
    np.save(tmp_path / "x.npy", (rng.standard_normal((100_000, 4)) + z[:, None]).astype(np.float32))
    np.save(tmp_path / "z.npy", z)
    return tmp_path


def interrupted(folder, arguments, ready):
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    try:
        end = time.monotonic() + 60
        while not ready() and child.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        assert child.poll() is None, child.communicate()[1]
        os.kill(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    return err.strip().splitlines()[-1]


def test_fit_with_a_checkpoint_continues(folder):
    given = ["fit", "x.npy", "z.npy", "-o", "e", "--checkpoint", "c", "--checkpoint-every", "0"]
    said = interrupted(folder, given, (folder / "c").exists)
    assert said == "interrupted: c holds what was read; run the same command again to continue from there"
    assert sorted(os.listdir(folder)) == ["begun", "c", "x.npy", "z.npy"]
    command = [sys.executable, "-c", SLOW, *given]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=True, encoding="utf-8")
    assert "rows had been read before this run" in done.stdout
    X, z = np.load(folder / "x.npy"), np.load(folder / "z.npy")
    assert np.abs(excise.load(folder / "e")(X) - excise.fit(X, z)(X)).max() < 1e-5


def test_fit_without_a_checkpoint_says_how_to_have_one(folder):
    said = interrupted(folder, ["fit", "x.npy", "z.npy", "-o", "e"], (folder / "begun").exists)
    assert said.startswith("interrupted: nothing was written; with --checkpoint FILE")
    assert sorted(os.listdir(folder)) == ["begun", "x.npy", "z.npy"]


def test_as_a_module():
    command = [sys.executable, "-m", "excise", "--version"]
    done = subprocess.run(command, capture_output=True, check=True, encoding="utf-8")
    assert done.stdout == f"excise {excise.__version__}\n"
