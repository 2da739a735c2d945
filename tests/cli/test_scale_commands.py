"""fit, apply and merge on many files: every method, parts from several machines, plans, scripts, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import app, excise_command, runner
from data_files import list_table, rows, write_all
from measure import canonical_correlation, class_gap, one_hot

import excise
from excise.cli import run


@pytest.fixture
def files(tmp_path):
    X, z = rows()
    write_all(tmp_path, X, z)
    return tmp_path, X, z


@pytest.fixture
def small_batches(monkeypatch):
    import excise.data.table as module

    monkeypatch.setattr(module, "BATCH_BYTES", 1)


OPTIONS = {"fair_pca": ["--option", "n_components=3"], "splince": ["--task", "task"]}


@pytest.mark.parametrize(
    "method", ["leace", "oracle", "sal", "splince", "fair_pca", "quadratic", "inlp", "rlace", "random"]
)
def test_every_method_from_files(files, small_batches, method):
    folder, X, z = files
    task = (X[:, 0] + np.random.default_rng(1).standard_normal(1000) > 0).astype(int)
    table = list_table(X, z).append_column("task", pa.array(task))
    pq.write_table(table, folder / "x.parquet", row_group_size=300)
    excise_command("fit", folder / "x.parquet", "-c", "sex", "-m", method, *OPTIONS.get(method, []), "-o", folder / "e")
    eraser = excise.load(folder / "e")
    assert eraser.info["columns"] == ["embedding"]
    excise_command("apply", folder / "e", folder / "x.parquet", "-o", folder / "out.npy")
    out = np.load(folder / "out.npy")
    python = {"fair_pca": {"n_components": 3}, "splince": {"y": task}}.get(method, {})
    alone = excise.fit(X, z, method, **python)
    assert np.abs(out - alone(X, z)).max() < 1e-5
    assert canonical_correlation(X, one_hot(z)) > 0.5
    if method not in ("inlp", "rlace", "random"):
        assert class_gap(out, z) < 1e-5


def test_methods_that_train_on_rows_say_their_sample(files, small_batches):
    folder, *_ = files
    given = ("fit", folder / "list.parquet", "-c", "sex", "-m", "inlp", "-o", folder / "e", "--sample", 400)
    assert "400 rows (a sample of 1,000)" in excise_command(*given)
    assert excise.load(folder / "e").info["sample"] == {"rows": 400, "of": 1000, "seed": 0}
    first = excise.load(folder / "e").P
    said = json.loads(excise_command(*given, "--overwrite", "--json"))
    assert (said["rows"], said["sample_of"]) == (400, 1000)
    assert np.array_equal(excise.load(folder / "e").P, first)
    excise_command(*given, "--overwrite", "--seed", 1)
    assert not np.array_equal(excise.load(folder / "e").P, first)


def test_the_sample_is_uniform(files, small_batches):
    from excise.data import open_table
    from excise.data.fitting import sample

    folder, X, z = files
    table = open_table(folder / "shards", concept="sex")
    seen = np.zeros(1000)
    known = {x.tobytes(): i for i, x in enumerate(X)}
    for seed in range(200):
        rows_, labels, _, _ = sample(table, 100, seed)
        at = [known[x.tobytes()] for x in np.asarray(rows_)]
        assert len(at) == 100
        assert labels.to_pylist() == z[at].tolist()
        seen[at] += 1
    assert abs(seen[:500].sum() / seen.sum() - 0.5) < 0.02
    assert seen.max() < 45  # 20 on average
    assert seen.min() > 3


def test_merge_of_parts(files):
    """Each machine has one class only or its own classes; the sum is the fit on all rows."""
    folder, X, z = files
    order = np.argsort(z, kind="stable")
    parts = []
    for i, part in enumerate(np.array_split(order, 3)):
        np.save(folder / f"x{i}.npy", X[part])
        np.save(folder / f"z{i}.npy", z[part])
        parts.append(folder / f"{i}.moments")
        said = excise_command(
            "fit", folder / f"x{i}.npy", folder / f"z{i}.npy", "--save-moments", parts[-1], "--moments-only"
        )
        assert "rows, 5 features" in said
    assert not (folder / "eraser.safetensors").exists()
    said = excise_command("merge", *parts, "-o", folder / "all.moments")
    assert "1,000 rows of 3 parts, 5 features" in said
    excise_command("fit", "--moments", folder / "all.moments", "-o", folder / "e")
    assert np.abs(excise.load(folder / "e").P - excise.fit(X, z).P).max() < 1e-9
    excise_command("fit", "--moments", folder / "all.moments", "-m", "oracle", "-o", folder / "o")
    assert class_gap(excise.load(folder / "o")(X, z), z) < 1e-6
    with pytest.raises(excise.ExciseError, match="the same file is named twice"):
        excise_command("merge", parts[0], parts[0], "-o", folder / "twice")
    with pytest.raises(excise.ExciseError, match="exists already"):
        excise_command("merge", *parts, "-o", folder / "all.moments")
    with pytest.raises(excise.InputError, match="holds AffineEraser, expected moments"):
        excise_command("merge", parts[0], folder / "e", "-o", folder / "wrong")
    np.save(folder / "narrow.npy", X[:, :3])
    excise_command("fit", folder / "narrow.npy", folder / "z.npy", "--save-moments", folder / "n", "--moments-only")
    with pytest.raises(excise.InputError, match="cannot merge Moments of 5 and 3 features"):
        excise_command("merge", parts[0], folder / "n", "-o", folder / "wrong")
    assert json.loads(excise_command("merge", *parts, "-o", folder / "j", "--json"))["rows"] == 1000


def test_dry_run(files):
    folder, *_ = files
    said = excise_command("fit", folder / "shards", "-c", "sex", "-o", folder / "e", "--dry-run")
    assert "1,000 rows, 5 features, 4 file(s)" in said
    assert "GB of memory and" in said
    plan = json.loads(excise_command("fit", folder / "wide.csv", "-c", "sex", "--dry-run", "--json"))
    assert (plan["rows"], plan["d"], plan["concept"]) == (1000, 5, ["f", "m"])
    assert 1e8 < plan["memory"] < 1e9
    assert plan["seconds"] < 10
    assert not (folder / "e").exists()
    excise_command("fit", folder / "shards", "-c", "sex", "-o", folder / "e")
    said = excise_command("apply", folder / "e", folder / "shards", "-o", folder / "out", "--dry-run")
    assert "part-3.parquet -> " in said
    said = excise_command("fit", folder / "shards", "-c", "sex", "-m", "inlp", "--sample", "300", "--dry-run")
    assert "trains on a sample of 300 rows" in said
    np.save(folder / "ages.npy", np.arange(1000.0) % 40)  # classes or numbers?
    excise_command("fit", folder / "x.npy", folder / "ages.npy", "--kind", "continuous", "--dry-run")
    excise_command("fit", folder / "x.npy", folder / "z.npy", "-o", folder / "f", "--save-moments", folder / "m")
    with pytest.raises(excise.ExciseError, match="--dry-run is for DATA"):
        excise_command("fit", "--moments", folder / "m", "-o", folder / "g", "--dry-run")
    assert not (folder / "g").exists()
    assert not (folder / "out").exists()


def test_results_for_scripts(files):
    folder, *_ = files
    said = json.loads(excise_command("fit", folder / "shards", "-c", "sex", "-o", folder / "e", "--json"))
    assert (said["rows"], said["d"], said["rank"], said["concept"]) == (1000, 5, 1, ["f", "m"])
    said = json.loads(excise_command("apply", folder / "e", folder / "shards", "-o", folder / "out", "--json"))
    assert (said["rows"], said["files"], said["kept"], said["dropped"]) == (1000, 4, 0, 0)


def test_concepts_by_commas_and_repeated(files):
    folder, X, z = files
    table = list_table(X, z).append_column("race", pa.array(np.arange(1000) % 3))
    pq.write_table(table, folder / "x.parquet")
    for i, names in enumerate((["-c", "sex,race"], ["-c", "sex", "-c", "race"])):
        said = excise_command("fit", folder / "x.parquet", *names, "-f", "embedding", "-o", folder / f"e{i}")
        assert "rank 3" in said
        assert excise.load(folder / f"e{i}").info["concept_columns"] == ["sex", "race"]
    assert np.array_equal(excise.load(folder / "e0").P, excise.load(folder / "e1").P)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["fit", "{0}/x.npy", "{0}/z.npy", "-o", "{0}/new"], 0, ""),
        (["--version"], 0, ""),
        (["audit", "{0}/x.npy", "{0}/z.npy", "--quick"], 1, ""),
        (["audit", "{0}/x.npy", "{0}/z.npy", "--quick", "-e", "{0}/e"], 0, ""),
        (["fit", "{0}/missing.npy"], 2, "error: no such file"),
        (["fit"], 2, "error: pass DATA, or --moments"),
        (["fit", "{0}/x.npy", "--nonsense"], 2, "No such option"),
        (["nonsense"], 2, "No such command"),
        (["fit", "{0}/x.npy", "{0}/z.npy", "-o", "{0}/e"], 2, "exists already: pass --overwrite"),
        (
            ["fit", "{0}/list.parquet", "-c", "gender", "-o", "{0}/n"],
            2,
            "no column 'gender'; it has id, embedding, sex",
        ),
        (["fit", "{0}/cut.parquet", "-c", "sex", "-o", "{0}/n"], 2, "not a whole Parquet file"),
        (["fit", "{0}/empty.parquet", "-c", "sex", "-o", "{0}/n"], 2, "not a whole Parquet file"),
        (["fit", "{0}/norows.parquet", "-c", "sex", "-o", "{0}/n"], 2, "has no rows"),
        (["fit", "{0}/bad.parquet", "-c", "sex", "-o", "{0}/n"], 2, "1 of 1,000 rows cannot be used"),
        (["apply", "{0}/e", "{0}/x.npy", "-o", "{0}/x.npy"], 2, "exists already: pass --overwrite"),
        (["apply", "{0}/e", "{0}/shards", "-o", "{0}/x.npy"], 2, "is several files, and"),
        (["merge", "{0}/x.npy", "-o", "{0}/m"], 2, "not a whole safetensors file"),
        (["merge", "-o", "{0}/m"], 2, "Missing argument"),
    ],
)
def test_exit_status(files, capsys, monkeypatch, arguments, status, message):
    folder, X, z = files
    excise.fit(X, z).save(folder / "e")
    (folder / "cut.parquet").write_bytes((folder / "list.parquet").read_bytes()[:5000])
    (folder / "empty.parquet").touch()
    pq.write_table(list_table(X, z)[:0], folder / "norows.parquet")
    broken = list_table(np.where(np.arange(1000)[:, None] == 9, np.float32("nan"), X), z)
    pq.write_table(broken, folder / "bad.parquet")
    before = {path.name for path in folder.iterdir()}
    monkeypatch.setenv("COLUMNS", "200")
    assert run(app, [a.format(folder) for a in arguments]) == status
    said = capsys.readouterr()
    assert message in said.err
    assert "Traceback" not in said.err
    if status == 2:
        assert {path.name for path in folder.iterdir()} == before
        assert len(said.err.strip().splitlines()) == 1 or "Usage" in said.err


def test_exit_status_of_a_fault(capsys):
    def broken(args):
        raise ZeroDivisionError

    assert run(broken) == 2
    assert "please report it" in capsys.readouterr().err

    def interrupted(args):
        raise KeyboardInterrupt

    assert run(interrupted) == 130
    assert capsys.readouterr().err == "interrupted: nothing was written\n"


def test_exit_status_of_the_program(tmp_path):
    program = Path(sys.executable).parent / "excise"
    done = subprocess.run(
        [program, "fit", tmp_path / "no.npy"], capture_output=True, text=True, check=False, encoding="utf-8"
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: no such file")


def test_completion():
    said = runner.invoke(app, ["--help"]).output
    assert "--install-completion" in said
    assert "--show-completion" in said
    environment = {"_EXCISE_COMPLETE": "complete_bash", "COMP_WORDS": "excise me", "COMP_CWORD": "1"}
    assert "merge" in runner.invoke(app, [], env=environment, prog_name="excise").output


def test_the_old_form_with_two_files(files):
    folder, X, z = files
    excise_command("fit", folder / "x.npy", folder / "z.npy", "-o", folder / "e")
    assert np.array_equal(excise.load(folder / "e").P, excise.fit(X, z).P)


def test_quiet_when_not_a_terminal(files):
    folder, *_ = files
    result = runner.invoke(app, ["fit", str(folder / "shards"), "-c", "sex", "-o", str(folder / "e")])
    assert result.exit_code == 0
    assert result.stderr == ""
