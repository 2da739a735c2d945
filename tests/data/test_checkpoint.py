"""A fit that is killed again and again ends with the same bits as one that was left alone."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
from commands import excise_command
from data_files import list_table, rows

import excise
from excise import files as excise_files
from excise.data import Checkpoint, gather, learn_recipe, open_table

N = 40_000


@pytest.fixture
def small_batches(monkeypatch):
    import excise.data.table as module

    monkeypatch.setattr(module, "BATCH_BYTES", 1)  # 256 rows
    monkeypatch.setattr(module, "PART_BYTES", 20 * 256 * 5)


@pytest.fixture
def shards(tmp_path):
    X, z = rows(N)
    (tmp_path / "in").mkdir()
    for i, begin in enumerate(range(0, N, 15_000)):
        part = slice(begin, begin + 15_000)
        pq.write_table(list_table(X[part], z[part], begin), tmp_path / "in" / f"{i}.parquet", row_group_size=3_000)
    return tmp_path, X, z


def in_a_child(work) -> int:
    """Run `work` in a forked process; its id."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def written(path) -> int:
    """When a file was written; 0 if there is none."""
    return path.stat().st_mtime_ns if path.exists() else 0


@pytest.mark.parametrize("needs", ["moments", "class moments"])
def test_killed_twenty_times(shards, small_batches, needs):
    folder, _, _ = shards
    table = open_table(folder / "in", concept="sex")
    recipe = learn_recipe(table, needs)
    alone = gather(table, recipe)
    assert alone.rows == N
    draw = random.Random(0)
    kills, resumed, at = 0, set(), 0

    def slow(rows):
        time.sleep(0.002)  # or it would be over before it can be killed

    def work():
        gather(table, recipe, checkpoint=Checkpoint(folder / "c", every=0.0), progress=slow)

    while kills < 20:
        before = written(folder / "c")
        child = in_a_child(work)
        alive, patience = True, time.monotonic() + 2.0  # a fork of a process with threads may never start to work
        while alive and kills % 3 == 0 and written(folder / "c") == before and time.monotonic() < patience:
            alive = os.waitpid(child, os.WNOHANG)[0] == 0  # some get further, on a busy machine too
            time.sleep(0.001)
        time.sleep(draw.uniform(0.0, 0.2))
        if not alive or os.waitpid(child, os.WNOHANG)[0]:
            (folder / "c").unlink(missing_ok=True)  # it came to its end: from the start again
            at = 0
            continue
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kills += 1
        if (folder / "c").exists():
            at = excise_files.read(folder / "c")[2]["state"]["rows"]
            resumed.add(at)
    assert kills == 20
    assert len(resumed) > 3  # it was killed at several places, and went on from there
    last = Checkpoint(folder / "c")
    end = gather(table, recipe, checkpoint=last)
    assert last.resumed == at
    assert max(resumed) > 0
    assert end.rows == N
    one, other = alone.main.stored(), end.main.stored()
    assert one[1] == other[1]
    for name, array in one[0].items():
        assert np.array_equal(array, other[0][name]), name


def test_killed_command(shards, monkeypatch):
    """The same by the command line: kill -9, start again, and the moments are the same to the bit."""
    import excise.data.gathering as gathering
    import excise.data.table as module

    folder, _, _ = shards
    with monkeypatch.context() as patched:
        patched.setattr(module, "BATCH_BYTES", 1)
        patched.setattr(gathering, "SETTLE", 2)
        table = open_table(folder / "in", concept="sex")
        expected = gather(table, learn_recipe(table, "moments")).main
    code = """
import sys, time
import excise.data.table as table, excise.data.gathering as gathering
table.BATCH_BYTES, gathering.SETTLE = 1, 2
real = gathering.Gathered.add_batch
def slow(self, batch):
    time.sleep(0.004)
    real(self, batch)
gathering.Gathered.add_batch = slow
from excise.cli import run
from excise.cli.app import app
sys.exit(run(app, sys.argv[1:]))
"""
    given = [
        sys.executable,
        "-c",
        code,
        "fit",
        folder / "in",
        "-c",
        "sex",
        "-o",
        folder / "e",
        "--checkpoint-every",
        "0",
    ]
    given += ["--save-moments", folder / "m", "--json"]
    resumed = 0
    for _ in range(2):
        child = subprocess.Popen([*given, "--checkpoint", folder / "c"], stdout=subprocess.DEVNULL)
        limit = time.monotonic() + 30
        seen = resumed
        while time.monotonic() < limit and child.poll() is None:
            with contextlib.suppress(FileNotFoundError, excise.FileFormatError):
                seen = excise_files.read(folder / "c")[2]["state"]["rows"]
            if seen > resumed + 2000:
                child.send_signal(signal.SIGKILL)
                break
            time.sleep(0.01)
        child.wait()
        resumed = seen
    assert 4000 < resumed < N
    assert not (folder / "e").exists()
    done = subprocess.run(
        [*given, "--checkpoint", folder / "c"], check=True, capture_output=True, text=True, encoding="utf-8"
    )
    said = json.loads(done.stdout)
    assert said["rows"] == N
    assert said["resumed"] >= resumed
    assert not (folder / "c").exists()
    assert sorted(name for name in os.listdir(folder)) == ["e", "in", "m"]
    again = excise.load(folder / "m")
    assert np.array_equal(again.cov_xx, expected.cov_xx)
    assert np.array_equal(again.cov_xz, expected.cov_xz)
    assert again.rows == expected.rows == N


@pytest.fixture
def stopped(shards, small_batches):
    """A checkpoint of a run that was stopped in the middle."""
    folder, _X, _z = shards
    table = open_table(folder / "in", concept="sex")
    recipe = learn_recipe(table, "moments")

    class Enough(Exception):
        pass

    seen = 0

    def progress(count):
        nonlocal seen
        seen += count
        if seen > N // 2:
            raise Enough

    with pytest.raises(Enough):
        gather(table, recipe, checkpoint=Checkpoint(folder / "c", every=0.0), progress=progress)
    assert (folder / "c").exists()
    return folder, table, recipe


@pytest.mark.parametrize("change", ["content", "touched", "longer"])
def test_a_changed_input_is_refused(stopped, change):
    folder, _, recipe = stopped
    path = folder / "in" / "0.parquet"
    before = path.stat()
    if change == "content":  # same size, same time
        content = bytearray(path.read_bytes())
        content[100] ^= 1
        path.write_bytes(bytes(content))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "touched":
        os.utime(path)
    else:
        X, z = rows(15_100)
        pq.write_table(list_table(X, z), path)
    with pytest.raises(
        excise.ExciseError, match=r"0.parquet has changed since the checkpoint was written .* delete .*c to"
    ):
        gather(open_table(folder / "in", concept="sex"), recipe, checkpoint=Checkpoint(folder / "c"))


def test_another_run_is_refused(stopped):
    folder, table, _ = stopped
    with pytest.raises(excise.ExciseError, match=r"belongs to another run \(other needs\)"):
        gather(table, learn_recipe(table, "class moments"), checkpoint=Checkpoint(folder / "c"))
    other = open_table(folder / "in", concept="sex", skip_bad=True)
    with pytest.raises(excise.ExciseError, match=r"another run \(other skip bad\)"):
        gather(other, learn_recipe(other, "moments"), checkpoint=Checkpoint(folder / "c"))
    shutil.copy(folder / "in" / "0.parquet", folder / "in" / "9.parquet")
    more = open_table(folder / "in", concept="sex")
    with pytest.raises(excise.ExciseError, match="another run"):
        gather(more, learn_recipe(more, "moments"), checkpoint=Checkpoint(folder / "c"))


def test_what_is_no_checkpoint_is_refused(stopped):
    folder, table, recipe = stopped
    content = (folder / "c").read_bytes()
    (folder / "c").write_bytes(content[: len(content) // 2])
    with pytest.raises(excise.FileFormatError, match="not a whole safetensors file"):
        gather(table, recipe, checkpoint=Checkpoint(folder / "c"))
    gather(table, recipe).main.save(folder / "m")
    with pytest.raises(excise.FileFormatError, match="holds a Moments, expected a checkpoint"):
        gather(table, recipe, checkpoint=Checkpoint(folder / "m"))
    with pytest.raises(excise.ExciseError, match=r"folder .* does not exist"):
        Checkpoint(folder / "no" / "c")
    with pytest.raises(excise.ExciseError, match="at least 0"):
        Checkpoint(folder / "c", every=-1.0)


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(stopped, monkeypatch):
    folder, table, recipe = stopped
    before = (folder / "c").read_bytes()

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        gather(table, recipe, checkpoint=Checkpoint(folder / "c", every=0.0))
    assert (folder / "c").read_bytes() == before
    monkeypatch.undo()


def test_options_that_do_not_go_with_a_checkpoint(shards):
    folder, *_ = shards
    given = ("fit", folder / "in", "-c", "sex", "-o", folder / "e", "--checkpoint", folder / "c")
    with pytest.raises(excise.ExciseError, match="leave the checkpoint out"):
        excise_command(*given, "-m", "inlp")
    with pytest.raises(excise.ExciseError, match="for one machine"):
        excise_command(*given, "--workers", 2)
