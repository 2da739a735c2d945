"""Files out: layout and other columns kept, features taken by name, nothing half-written, nothing replaced unasked."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from commands import excise_command
from data_files import list_table, rows, wide_table, write_all
from measure import class_gap
from safetensors.numpy import load_file

import excise
from excise.errors import Interrupted


@pytest.fixture
def files(tmp_path):
    X, z = rows()
    write_all(tmp_path, X, z)
    excise.fit(X, z).save(tmp_path / "e")
    return tmp_path, X, z, excise.load(tmp_path / "e")(X)


def column(table: pa.Table) -> np.ndarray:
    return np.array(table["embedding"].to_pylist(), dtype=np.float32)


@pytest.mark.parametrize("name", ["x.npy", "fortran.npy", "stored.npz", "deflated.npz", "x.safetensors"])
def test_arrays(files, name):
    folder, X, z, erased = files
    excise_command("apply", folder / "e", folder / name, "-o", folder / f"out{Path(name).suffix}")
    out = folder / f"out{Path(name).suffix}"
    if name.endswith("npy"):
        got = np.load(out)
    elif name.endswith("npz"):
        with np.load(folder / name) as stored:
            before = dict(stored)
        with np.load(out) as stored:
            after = dict(stored)
        assert set(after) == set(before)
        assert all(np.array_equal(before[key], after[key]) for key in before if key != "X")
        with zipfile.ZipFile(folder / name) as one, zipfile.ZipFile(out) as other:
            assert one.infolist()[0].compress_type == other.infolist()[0].compress_type
        got = after["X"]
    else:
        before, after = load_file(folder / name), load_file(out)
        assert np.array_equal(before["code"], after["code"])
        got = after["X"]
    assert got.dtype == np.float32
    assert class_gap(X, z) > 0.8
    assert class_gap(got, z) < 1e-6
    assert np.array_equal(got, erased)


@pytest.mark.parametrize("name", ["list.parquet", "large.parquet", "list.feather", "stream.arrow", "tensor.parquet"])
def test_tables_of_lists(files, name):
    folder, _, _, erased = files
    out = folder / f"out{Path(name).suffix}"
    excise_command("apply", folder / "e", folder / name, "-o", out)
    read = {
        ".parquet": pq.read_table,
        ".feather": pyarrow.feather.read_table,
        ".arrow": lambda path: pa.ipc.open_stream(path.read_bytes()).read_all(),
    }[out.suffix]
    before, after = read(folder / name), read(out)
    assert after.schema == before.schema
    assert after.schema.metadata == before.schema.metadata
    assert after.drop_columns(["embedding"]).equals(before.drop_columns(["embedding"]))
    if name.startswith("tensor"):
        got = np.concatenate([chunk.to_numpy_ndarray() for chunk in after["embedding"].chunks])
    else:
        got = column(after)
    assert np.array_equal(got, erased)


def test_layout_of_parquet_is_kept(files):
    folder, X, z, erased = files
    table = list_table(X, z).replace_schema_metadata({"note": "keep me"})
    fields = list(table.schema)
    fields[1] = pa.field("embedding", pa.list_(pa.field("item", pa.float32(), nullable=False), 5), metadata={"a": "b"})
    table = table.cast(pa.schema(fields, metadata=table.schema.metadata))
    codecs = {"id": "snappy", "embedding.list.element": "zstd", "sex": "gzip"}
    pq.write_table(table, folder / "x.parquet", row_group_size=130, compression=codecs, use_dictionary=["sex"])
    excise_command("apply", folder / "e", folder / "x.parquet", "-o", folder / "out.parquet")
    before, after = (pq.ParquetFile(folder / name) for name in ("x.parquet", "out.parquet"))
    assert after.schema_arrow.equals(before.schema_arrow, check_metadata=True)
    groups = [[f.metadata.row_group(g).num_rows for g in range(f.num_row_groups)] for f in (before, after)]
    assert groups[0] == groups[1] == [130] * 7 + [90]
    for j in range(3):
        a, b = (f.metadata.row_group(0).column(j) for f in (before, after))
        assert (a.compression, a.path_in_schema) == (b.compression, b.path_in_schema)
        assert a.has_dictionary_page == b.has_dictionary_page
    assert np.array_equal(column(after.read()), erased)
    before.close()
    after.close()


def test_row_groups_that_are_too_large_are_split(files, monkeypatch):
    import excise.data.erasing as module
    import excise.data.table as batches

    monkeypatch.setattr(module, "GROUP_BYTES", 10_000)
    monkeypatch.setattr(batches, "BATCH_BYTES", 1000)  # 256 rows
    folder, X, z, erased = files
    pq.write_table(list_table(X, z), folder / "x.parquet")
    excise_command("apply", folder / "e", folder / "x.parquet", "-o", folder / "out.parquet")
    with pq.ParquetFile(folder / "out.parquet") as file:
        sizes = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
    assert sizes == [256, 256, 256, 232]
    assert np.array_equal(column(pq.read_table(folder / "out.parquet")), erased)


def test_csv_keeps_text_as_it_was(files):
    folder, X, z, erased = files
    lines = ["code,f0,f1,f2,f3,f4,sex,note"]
    lines += [
        f'{i:04d},{",".join(map(repr, map(float, x)))},{s},"a, b"' for i, (x, s) in enumerate(zip(X, z, strict=True))
    ]
    (folder / "x.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    names = "f0,f1,f2,f3,f4"
    excise_command("fit", folder / "x.csv", "-f", names, "-c", "sex", "-o", folder / "named")
    excise_command("apply", folder / "named", folder / "x.csv", "-o", folder / "out.csv")
    after = pd.read_csv(folder / "out.csv", dtype={"code": str})
    assert after["code"].tolist() == [f"{i:04d}" for i in range(1000)]
    assert set(after["note"]) == {"a, b"}
    assert after.columns.tolist() == lines[0].split(",")
    assert np.abs(after[names.split(",")].to_numpy() - erased).max() < 1e-5
    assert class_gap(after[names.split(",")].to_numpy(), z) < 1e-6
    excise_command("fit", folder / "x.csv", "-f", names, "-c", "sex", "-m", "oracle", "-o", folder / "oracle")
    excise_command(
        "apply", folder / "oracle", folder / "x.csv", "-o", folder / "oracle.csv"
    )  # knows its labels' column
    assert class_gap(pd.read_csv(folder / "oracle.csv")[names.split(",")].to_numpy(), z) < 1e-6


@pytest.mark.parametrize("source", ["wide.parquet", "list.parquet", "x.npy"])
@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_other_formats(files, source, suffix):
    folder, _, _, erased = files
    more = ["-f", "f0,f1,f2,f3,f4"] if source.startswith("wide") else []
    excise_command("apply", folder / "e", folder / source, *more, "-o", folder / f"out{suffix}")
    if suffix == ".npy":
        got = np.load(folder / "out.npy")
    else:
        table = pq.read_table(folder / "out.parquet")
        names = {"wide.parquet": [f"f{j}" for j in range(5)], "list.parquet": ["embedding"], "x.npy": ["x"]}[source]
        parts = [np.array(table[name].to_pylist(), dtype=np.float32).reshape(1000, -1) for name in names]
        got = np.concatenate(parts, axis=1)
    assert np.array_equal(got, erased)


def test_features_are_taken_by_name(files):
    """Two swapped columns would bring the concept back without a word."""
    folder, X, z, erased = files
    wide = wide_table(X, z)
    excise_command("fit", folder / "wide.parquet", "-c", "sex", "-o", folder / "named")
    assert excise.load(folder / "named").feature_names == ("f0", "f1", "f2", "f3", "f4")
    assert excise.load(folder / "named").info["concept_columns"] == ["sex"]
    shuffled = wide.select(["f3", "sex", "f0", "f4", "f2", "f1"]).append_column("f9", wide["f0"])
    pq.write_table(shuffled, folder / "shuffled.parquet")
    for more in ([], ["-f", "f4,f3,f2,f1,f0"]):
        excise_command(
            "apply", folder / "named", folder / "shuffled.parquet", *more, "-o", folder / "o.parquet", "--overwrite"
        )
        after = pq.read_table(folder / "o.parquet")
        assert after.column_names == shuffled.column_names
        assert after["f9"].equals(shuffled["f9"])
        got = np.column_stack([after[f"f{j}"].to_numpy() for j in range(5)])
        assert np.abs(got - erased).max() < 1e-6
        assert class_gap(got, z) < 1e-6
    pq.write_table(wide.drop_columns(["f2"]), folder / "less.parquet")
    with pytest.raises(excise.InputError, match="has no column 'f2': the eraser was fitted on f0, f1, f2, f3, f4"):
        excise_command("apply", folder / "named", folder / "less.parquet", "-o", folder / "x2.parquet")
    with pytest.raises(excise.InputError, match="takes other columns: the eraser was fitted on f0"):
        excise_command(
            "apply", folder / "named", folder / "shuffled.parquet", "-f", "f0,f1,f2,f3,f9", "-o", folder / "x2.parquet"
        )


def test_a_list_column_is_known_by_its_name(files):
    folder, X, z, erased = files
    excise_command("fit", folder / "list.parquet", "-c", "sex", "-o", folder / "named")
    eraser = excise.load(folder / "named")
    assert eraser.feature_names is None
    assert eraser.info["columns"] == ["embedding"]
    other = list_table(X, z).append_column("before", list_table(X, z)["embedding"])
    pq.write_table(other, folder / "two.parquet")
    excise_command("apply", folder / "named", folder / "two.parquet", "-o", folder / "out.parquet")
    after = pq.read_table(folder / "out.parquet")
    assert np.abs(column(after) - erased).max() < 1e-6
    assert after["before"].equals(other["before"])
    pq.write_table(list_table(X, z).rename_columns(["id", "vector", "sex"]), folder / "renamed.parquet")
    with pytest.raises(excise.InputError, match="has no column 'embedding', which the eraser was fitted on"):
        excise_command("apply", folder / "named", folder / "renamed.parquet", "-o", folder / "x.parquet")
    excise_command("apply", folder / "named", folder / "renamed.parquet", "-f", "vector", "-o", folder / "x.parquet")


def test_the_index_of_pandas_comes_out_untouched(tmp_path):
    X, z = rows()
    frame = pd.DataFrame(X, columns=list("abcde")).assign(sex=z)[X[:, 0] > 0]
    frame.to_parquet(tmp_path / "x.parquet")
    np.save(tmp_path / "z.npy", frame["sex"].to_numpy().astype("U1"))
    frame[["sex"]].to_parquet(tmp_path / "labels.parquet")
    np.save(tmp_path / "x.npy", frame[list("abcde")].to_numpy())
    excise_command("fit", tmp_path / "x.parquet", "-c", "sex", "-o", tmp_path / "e")
    excise_command("apply", tmp_path / "e", tmp_path / "x.parquet", "-o", tmp_path / "out.parquet")
    after = pd.read_parquet(tmp_path / "out.parquet")
    assert after.index.equals(frame.index)
    assert class_gap(after[list("abcde")].to_numpy(), after["sex"]) < 1e-6
    said = excise_command("fit", tmp_path / "x.npy", tmp_path / "labels.parquet", "-o", tmp_path / "e2")
    assert "concept categorical (f, m), rank 1" in said


def test_an_existing_output_needs_overwrite(files):
    folder, _, _, erased = files
    for target in ("x.npy", "z.npy"):  # its own input, and something else
        before = (folder / target).read_bytes()
        with pytest.raises(excise.ExciseError, match=f"{target} exists already: pass --overwrite"):
            excise_command("apply", folder / "e", folder / "x.npy", "-o", folder / target)
        assert (folder / target).read_bytes() == before
    excise_command("apply", folder / "e", folder / "x.npy", "-o", folder / "x.npy", "--overwrite")
    assert np.array_equal(np.load(folder / "x.npy"), erased)
    with pytest.raises(excise.ExciseError, match="e exists already: pass --overwrite"):
        excise_command("fit", folder / "x.npy", folder / "z.npy", "-o", folder / "e")


def test_a_link_stays_a_link(files):
    folder, _, _, erased = files
    (folder / "real").mkdir()
    np.save(folder / "real" / "out.npy", np.zeros(3))
    (folder / "link.npy").symlink_to(folder / "real" / "out.npy")
    excise_command("apply", folder / "e", folder / "x.npy", "-o", folder / "link.npy", "--overwrite")
    assert (folder / "link.npy").is_symlink()
    assert np.array_equal(np.load(folder / "real" / "out.npy"), erased)


@pytest.mark.parametrize("data", ["shards", "shards/part-*.parquet"])
def test_folders_and_globs(files, data):
    folder, _, z, erased = files
    pq.write_table(list_table(*rows(1))[:0], folder / "shards" / "part-9.parquet")  # no rows
    said = excise_command("apply", folder / "e", folder / data, "-o", folder / "out")
    assert "1,000 rows in 4 files, 5 features" in said
    assert sorted(os.listdir(folder / "out")) == [f"part-{i}.parquet" for i in (0, 1, 2, 3, 9)]
    after = pq.read_table([folder / "out" / f"part-{i}.parquet" for i in range(4)])
    assert after["id"].to_pylist() == list(range(1000))
    assert after["sex"].to_pylist() == z.tolist()
    assert np.array_equal(column(after), erased)
    with pytest.raises(excise.ExciseError, match=r"part-0.parquet exists already \(and 4 more\)"):
        excise_command("apply", folder / "e", folder / data, "-o", folder / "out")
    with pytest.raises(excise.ExciseError, match="would replace its own input"):
        excise_command("apply", folder / "e", folder / data, "-o", folder / "shards", "--overwrite")


def test_a_folder_run_that_was_stopped_goes_on(files, monkeypatch):
    import excise.data.applying as module

    folder, X, z, erased = files
    real, calls = module.erase_file, []

    def stopped(eraser, table, file, target, *rest):
        calls.append(file)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(eraser, table, file, target, *rest)

    monkeypatch.setattr(module, "erase_file", stopped)
    given = ("apply", folder / "e", folder / "shards", "-o", folder / "out")
    with pytest.raises(Interrupted, match=r"finished files are kept in .*run the same command again"):
        excise_command(*given)
    times = {name: os.stat(folder / "out" / name).st_mtime_ns for name in ("part-0.parquet", "part-1.parquet")}
    assert sorted(os.listdir(folder / "out")) == [".excise-apply.json", "part-0.parquet", "part-1.parquet"]
    excise.fit(X[::2], z[::2]).save(folder / "other")
    with pytest.raises(excise.ExciseError, match="holds results of another run that was stopped"):
        excise_command("apply", folder / "other", folder / "shards", "-o", folder / "out")
    said = excise_command(*given)
    assert "2 files had been finished before this run" in said
    assert calls == [0, 1, 2, 2, 3]
    assert {name: os.stat(folder / "out" / name).st_mtime_ns for name in times} == times
    assert sorted(os.listdir(folder / "out")) == [f"part-{i}.parquet" for i in range(4)]
    assert np.array_equal(column(pq.read_table(folder / "out")), erased)


def test_hugging_face_folders_stay_loadable(tmp_path):
    datasets = pytest.importorskip("datasets")
    X, z = rows()
    data = datasets.Dataset.from_dict({"embedding": X.tolist(), "sex": z.tolist()})
    data = data.cast_column("embedding", datasets.Sequence(datasets.Value("float32"), length=5))
    data.save_to_disk(tmp_path / "in", num_shards=2)
    excise_command("fit", tmp_path / "in", "-c", "sex", "-o", tmp_path / "e")
    excise_command("apply", tmp_path / "e", tmp_path / "in", "-o", tmp_path / "out")
    after = datasets.load_from_disk(tmp_path / "out")
    assert after.features == data.features
    assert after["sex"][:] == z.tolist()
    assert np.array_equal(np.array(after["embedding"][:], np.float32), excise.load(tmp_path / "e")(X))
    states = [
        json.loads((tmp_path / name / "state.json").read_text(encoding="utf-8"))["_fingerprint"]
        for name in ("in", "out")
    ]
    assert states[0] != states[1]  # or `datasets` would take results cached for the one as those of the other


def test_urls(files):
    import fsspec

    folder, _, _, erased = files
    system = fsspec.filesystem("memory")
    system.put(str(folder / "shards") + "/", "/excise-apply/in/", recursive=True)
    said = excise_command("apply", folder / "e", "memory://excise-apply/in", "-o", "memory://excise-apply/out")
    assert "1,000 rows in 4 files" in said
    got = [column(pq.read_table(system.open(f"/excise-apply/out/part-{i}.parquet"))) for i in range(4)]
    assert np.array_equal(np.concatenate(got), erased)
    with pytest.raises(excise.ExciseError, match="exists already"):
        excise_command("apply", folder / "e", "memory://excise-apply/in", "-o", "memory://excise-apply/out")
    excise_command("apply", folder / "e", folder / "x.npy", "-o", "memory://excise-apply/x.npy")
    assert np.array_equal(np.load(system.open("/excise-apply/x.npy")), erased)
    system.rm("/excise-apply", recursive=True)


def test_bfloat16_tensors(tmp_path):
    import torch
    from safetensors.torch import load_file, save_file

    X, z = rows()
    x = torch.from_numpy(X).bfloat16()
    save_file({"X": x, "other": torch.arange(4)}, tmp_path / "x.safetensors")
    excise.fit(X, z).save(tmp_path / "e")
    excise_command("apply", tmp_path / "e", tmp_path / "x.safetensors", "-f", "X", "-o", tmp_path / "out.safetensors")
    after = load_file(tmp_path / "out.safetensors")
    assert torch.equal(after["X"], excise.load(tmp_path / "e")(x))
    assert torch.equal(after["other"], torch.arange(4))


CHILD = """
import resource, signal, sys
from excise.cli import run
from excise.cli.app import app
limit = int(sys.argv[1])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.exit(run(app, sys.argv[2:]))
"""


@pytest.mark.parametrize("name", ["out.npy", "out.parquet"])
def test_a_full_disk_leaves_the_old_file_whole(files, name):
    """Writes beyond a quota fail, as on a full disk."""
    folder, *_ = files
    target = folder / name
    target.write_bytes(b"the old file")
    before = sorted(os.listdir(folder))
    given = [sys.executable, "-c", CHILD, "5000", "apply", folder / "e", folder / "x.npy", "-o", target, "--overwrite"]
    done = subprocess.run(given, capture_output=True, text=True, check=False, encoding="utf-8")
    assert done.returncode == 2, done.stderr
    assert "error: " in done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert target.read_bytes() == b"the old file"
    assert sorted(os.listdir(folder)) == before


def test_leftovers_of_a_killed_run_are_removed(files):
    folder, X, _z, erased = files
    big = np.tile(X, (300, 1))
    np.save(folder / "big.npy", big)
    given = [sys.executable, "-c", CHILD, "0", "apply", folder / "e", folder / "big.npy", "-o", folder / "out.npy"]
    for _ in range(20):
        child = subprocess.Popen(given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while child.poll() is None:
            if any(name.endswith(".part.npy") for name in os.listdir(folder)):
                child.send_signal(signal.SIGKILL)
                break
            time.sleep(0.0005)
        child.wait()
        if not (folder / "out.npy").exists():
            break
        (folder / "out.npy").unlink()  # it was faster
    left = [name for name in os.listdir(folder) if name.endswith(".part.npy")]
    assert len(left) == 1
    excise_command("apply", folder / "e", folder / "big.npy", "-o", folder / "out.npy")
    assert not [name for name in os.listdir(folder) if name.endswith(".part.npy")]
    assert np.array_equal(np.load(folder / "out.npy")[:1000], erased)
    shutil.rmtree(folder)
