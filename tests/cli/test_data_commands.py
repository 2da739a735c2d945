"""Files in, files out, and the commands around them, called as a user calls them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import excise_command
from measure import class_gap

import excise
from excise.data import open_table


@pytest.fixture
def people(rng, tmp_path):
    z = rng.choice(["f", "m"], 1000)
    X = (rng.standard_normal((1000, 5)) + (z == "m")[:, None]).astype(np.float32)
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "z.npy", z)
    np.savez(tmp_path / "both.npz", X=X, z=z, other=np.zeros(3))
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), 5)
    columns = {"id": pa.array(np.arange(1000)), "embedding": lists, "sex": pa.array(z), "note": pa.array(z)}
    pq.write_table(pa.table(columns), tmp_path / "list.parquet", row_group_size=300)
    pq.write_table(pa.table({"embedding": pa.array([list(map(float, r)) for r in X])}), tmp_path / "vary.parquet")
    wide = {f"f{j}": pa.array(X[:, j]) for j in range(5)} | {"sex": pa.array(z), "race": pa.array(np.arange(1000) % 3)}
    pq.write_table(pa.table(wide), tmp_path / "wide.parquet", row_group_size=170)
    return tmp_path, X, z


SOURCES = {
    "npy": dict(x="x.npy", z="z.npy"),
    "npz": dict(x="both.npz", concept=["z"]),
    "npz and npy": dict(x="both.npz", z="z.npy"),
    "list column": dict(x="list.parquet", concept=["sex"]),
    "named list column": dict(x="list.parquet", features=["embedding"], concept=["sex"]),
    "wide": dict(x="wide.parquet", features=[f"f{j}" for j in range(5)], concept=["sex"]),
    "lists of no fixed size": dict(x="vary.parquet", z="z.npy"),
    "other row groups": dict(x="list.parquet", features=["embedding"], z="wide.parquet", concept=["sex"]),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("rows", [None, 64])
def test_every_source_gives_the_same_moments(people, source, rows):
    folder, X, z = people
    given = dict(SOURCES[source])
    table = open_table(
        folder / given.pop("x"),
        folder / given["z"] if "z" in given else None,
        given.get("features"),
        given.get("concept"),
    )
    m = excise.Moments()
    for _ in range(2):  # can be started again
        m = excise.Moments()
        for batch, labels in table.batches(rows):
            m.update(batch, labels)
    assert (table.n, table.d, m.n) == (1000, 5, 1000)
    assert m.concept.names == ("f", "m")
    assert np.allclose(m.cov_xz, excise.Moments().update(X, z).cov_xz, rtol=1e-6)


def test_fit_and_apply_npy(people):
    folder, X, z = people
    said = excise_command("fit", folder / "x.npy", folder / "z.npy", "-o", folder / "e.safetensors")
    assert "1,000 rows, 5 features, concept categorical (f, m), rank 1" in said
    excise_command("apply", folder / "e.safetensors", folder / "x.npy", "-o", folder / "out.npy")
    out = np.load(folder / "out.npy")
    assert out.dtype == np.float32
    assert class_gap(X, z) > 0.8
    assert class_gap(out, z) < 1e-6
    assert np.array_equal(out, excise.load(folder / "e.safetensors")(X))


@pytest.mark.parametrize("file", ["list.parquet", "wide.parquet"])
def test_fit_and_apply_parquet_keeps_the_other_columns(people, file):
    folder, X, z = people
    features = ["-f", "embedding"] if file.startswith("list") else [a for j in range(5) for a in ("-f", f"f{j}")]
    excise_command("fit", folder / file, "-c", "sex", *features, "-o", folder / "e")
    excise_command("apply", folder / "e", folder / file, *features, "-o", folder / "out.parquet")
    before, after = pq.read_table(folder / file), pq.read_table(folder / "out.parquet")
    assert before.schema.names == after.schema.names
    assert after["sex"].to_pylist() == z.tolist()
    if file.startswith("list"):
        assert after["id"].to_pylist() == list(range(1000))
        out = np.array(after["embedding"].to_pylist())
    else:
        out = np.column_stack([after[f"f{j}"].to_numpy() for j in range(5)])
    assert class_gap(out, z) < 1e-6
    assert np.abs(out - excise.load(folder / "e")(X)).max() < 1e-6


def test_several_concepts_methods_options_and_moments(people):
    folder, X, z = people
    features = [a for j in range(5) for a in ("-f", f"f{j}")]
    said = excise_command(
        "fit",
        folder / "wide.parquet",
        *features,
        "-c",
        "sex",
        "-c",
        "race",
        "-o",
        folder / "e",
        "--option",
        "shrinkage=oas",
        "--save-moments",
        folder / "m",
    )
    assert "rank 3" in said
    assert excise.load(folder / "e").info["shrinkage"] == "oas"
    assert excise.load(folder / "m").n == 1000
    excise_command("apply", folder / "e", folder / "x.npy", "-o", folder / "same.npy")
    assert np.load(folder / "same.npy").shape == X.shape
    excise_command("fit", folder / "x.npy", folder / "z.npy", "-m", "oracle", "-o", folder / "o")
    excise_command("apply", folder / "o", folder / "x.npy", folder / "z.npy", "-o", folder / "out.parquet")
    assert class_gap(np.array(pq.read_table(folder / "out.parquet")["x"].to_pylist()), z) < 1e-6


def test_apply_a_quadratic_eraser(people):
    folder, X, z = people
    excise.fit(X, z, method="quadratic").save(folder / "q")
    excise_command("apply", folder / "q", folder / "x.npy", folder / "z.npy", "-o", folder / "out.npy")
    assert class_gap(np.load(folder / "out.npy"), z) < 1e-5


@pytest.mark.parametrize("method", ["leace", "oracle", "quadratic", "random"])
def test_rounding_reaches_every_form_of_eraser(people, method):
    folder, X, z = people
    np.save(folder / "half.npy", X.astype(np.float16))
    excise.fit(X, z, method=method).save(folder / "e")
    given = ("apply", folder / "e", folder / "half.npy", folder / "z.npy")
    excise_command(*given, "-o", folder / "a.npy", "--rounding", "stochastic")
    excise_command(*given, "-o", folder / "b.npy")
    a, b = np.load(folder / "a.npy"), np.load(folder / "b.npy")
    assert 0.1 < np.mean(a != b) < 0.9
    assert np.abs(a.astype(float) - b).max() < 0.01
    with pytest.raises(excise.ExciseError, match="rounding must be 'nearest' or 'stochastic', got 'nonsense'"):
        excise_command(*given, "-o", folder / "c.npy", "--rounding", "nonsense")
    erased = excise.erase(X.astype(np.float16), z, method, rounding="stochastic", rounding_seed=1)
    assert erased.dtype == np.float16
    assert np.array_equal(erased, excise.erase(X.astype(np.float16), z, method, rounding="stochastic", rounding_seed=1))


def test_stochastic_rounding_differs_between_batches_and_repeats(people, monkeypatch):
    import excise.data.table as table

    monkeypatch.setattr(table, "BATCH_BYTES", 1)
    folder, X, _ = people
    np.save(folder / "half.npy", np.tile(X[:1], (1000, 1)).astype(np.float16))
    excise_command("fit", folder / "x.npy", folder / "z.npy", "-o", folder / "e")
    for name in ("a.npy", "b.npy"):
        excise_command(
            "apply", folder / "e", folder / "half.npy", "-o", folder / name, "--rounding", "stochastic", "--seed", 3
        )
    out = np.load(folder / "a.npy")
    assert np.array_equal(out, np.load(folder / "b.npy"))
    assert not np.array_equal(out[:256], out[256:512])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "missing.npy"], "no such file: missing.npy"),
        (["fit", "{0}/x.npy"], "no labels: pass a second file"),
        (["fit", "{0}/list.parquet", "-c", "gender"], "no column 'gender'; it has id, embedding, sex, note"),
        (["fit", "{0}/both.npz", "-f", "Y", "-c", "z"], "no array 'Y'; it holds X, z, other"),
        (["fit", "{0}/x.npy", "{0}/short.npy"], "has 1000 rows, .* has 3 labels"),
        (["fit", "{0}/x.npy", "{0}/z.npy", "-m", "magic"], "method must be one of"),
        (["fit", "{0}/x.npy", "{0}/z.npy", "--option", "x"], "name=value"),
        (["fit", "{0}/cut.npy", "{0}/z.npy"], "was it cut off in transfer"),
        (["fit", "{0}/cut.parquet", "-c", "sex"], "not a whole Parquet file"),
        (["fit", "{0}/x.txt", "{0}/z.npy"], "expected a file that ends in .npy, .npz, .safetensors, .parquet"),
        (["fit", "{0}/nulls.parquet", "-c", "sex"], r"1 of 2 rows .* 1 with missing features \(first at row 1\)"),
        (["fit", "{0}/ragged.parquet", "-c", "sex"], r"1 with other than 1 features \(first at row 1\)"),
        (["apply", "{0}/x.npy", "{0}/x.npy"], "not a whole safetensors file"),
        (["apply", "{0}/e", "{0}/wide.parquet"], "has 6 features, the eraser was fitted on 5"),
        (
            ["apply", "{0}/e", "{0}/x.npy", "-o", "{0}/out.txt"],
            r"from a \.npy file expected one that ends in \.npy, \.parquet",
        ),
        (["apply", "{0}/o", "{0}/x.npy"], "this eraser needs the labels"),
        (["fit", "{0}/x.npy", "-c", "sex"], "one array without names"),
        (["fit", "{0}/x.npy", "{0}/z.npy", "-f", "a"], "one array without names"),
        (["fit", "{0}/both.npz", "-c", "z", "-c", "other"], "has 1000 rows, its array 'other' has 3 labels"),
        (["fit", "{0}/cut.npz", "-c", "z"], "not a whole NumPy file"),
        (["fit", "{0}/x.npy", "{0}/z.npy", "--option", "strength=abc"], "strength must be a finite number"),
        (["fit", "{0}/x.npy", "{0}/z.npy", "-m", "sal", "--option", "rank=a"], "rank must be a whole number"),
        (["fit", "{0}/x.npy", "{0}/z.npy", "-o", "{0}/no/e"], "folder .* does not exist"),
        (["fit", "{0}/x.npy", "{0}/z.npy", "-m", "splince"], "needs the task"),
        (["apply", "{0}/e", "{0}/deep.npy", "-o", "{0}/out.parquet"], "more than two dimensions"),
        (
            ["apply", "{0}/e", "{0}/half.npy", "--rounding", "stochastic", "--seed", "-1"],
            "rounding_seed must be a whole number of at least 0",
        ),
    ],
)
def test_bad_input_is_said_in_one_line(people, arguments, message):
    folder, X, z = people
    np.save(folder / "short.npy", z[:3])
    (folder / "cut.npy").write_bytes((folder / "x.npy").read_bytes()[:500])
    (folder / "cut.parquet").write_bytes((folder / "list.parquet").read_bytes()[:500])
    (folder / "x.txt").write_text("1,2", encoding="utf-8")
    (folder / "cut.npz").write_bytes((folder / "both.npz").read_bytes()[:500])
    np.save(folder / "deep.npy", X.reshape(10, 100, 5))
    np.save(folder / "half.npy", X.astype(np.float16))
    pq.write_table(pa.table({"f0": [1.0, None], "sex": ["f", "m"]}), folder / "nulls.parquet")
    pq.write_table(pa.table({"x": [[1.0], [1.0, 2.0]], "sex": ["f", "m"]}), folder / "ragged.parquet")
    excise.fit(X, z).save(folder / "e")
    excise.fit(X, z, method="oracle").save(folder / "o")
    with pytest.raises((excise.ExciseError, FileNotFoundError), match=message):
        excise_command(*(a.format(folder) for a in arguments))


def test_a_failed_apply_leaves_nothing_behind(people):
    folder, X, z = people
    excise.fit(X, z).save(folder / "e")
    X[999, 2] = np.nan
    np.save(folder / "x.npy", X)
    names = {p.name for p in folder.iterdir()}
    for target in ("out.npy", "out.parquet"):
        with pytest.raises(
            excise.InputError, match=r"1 of 1,000 rows cannot be used: 1 with features that are NaN .*first at row 999"
        ):
            excise_command("apply", folder / "e", folder / "x.npy", "-o", folder / target)
    assert {p.name for p in folder.iterdir()} == names


def test_help_teaches_and_errors_are_one_line(tmp_path):
    for command in ("demo", "fit", "apply"):
        said = excise_command(command, "--help")
        assert "Usage" in said
    assert "excise fit embeddings.npy" in excise_command("fit", "--help")
    assert excise.__version__ in excise_command("--version")
    run = subprocess.run(
        [Path(sys.executable).parent / "excise", "fit", "no.npy"],
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )
    assert run.returncode == 2
    assert run.stderr.strip() == "error: no such file: no.npy"


def test_demo(tmp_path):
    said = excise_command("demo", "-o", tmp_path / "here")
    for word in ("before", "after LEACE", "after SAL", "after random", "after oracle", "0.5695", "0.6911"):
        assert word in said
    assert said.count("gone") == 3
    assert said.count("found") == 2
    assert (tmp_path / "here" / "demo.png").stat().st_size > 20_000


def test_demo_figures_against_an_independent_computation():
    """The table's numbers, from scipy's optimiser and plain NumPy."""
    from scipy.optimize import minimize

    from excise.reporting.demo import load_people, measure

    X, sex, disease = load_people()[:3]
    rows, constant, _ = measure(X, sex, disease)
    y = (sex == "sex 2").astype(float)
    assert constant == pytest.approx(-(y.mean() * np.log(y.mean()) + (1 - y.mean()) * np.log(1 - y.mean())))

    def best_loss(X):
        A = np.column_stack([np.ones(len(X)), X])
        loss = lambda w: np.mean(np.logaddexp(0, A @ w) - y * (A @ w))  # noqa: E731
        slope = lambda w: A.T @ (1 / (1 + np.exp(-A @ w)) - y) / len(y)  # noqa: E731
        return minimize(
            loss, np.zeros(A.shape[1]), jac=slope, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000}
        ).fun

    for row in rows:
        assert row.loss == pytest.approx(best_loss(row.X), abs=1e-6)
    before, leace, sal, random, oracle = rows
    assert before.loss < constant - 0.1
    assert random.loss < constant - 0.1
    for erased in (leace, sal, oracle):
        assert erased.loss == pytest.approx(constant, abs=1e-9)
    assert oracle.edit < leace.edit < sal.edit
