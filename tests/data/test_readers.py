"""Every format gives the same rows, in batches of any size, started again and started in the middle."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_files import list_table, rows, wide_table, write_all
from measure import covariance, one_hot

import excise
from excise.data import open_table
from excise.data.columns import index_columns


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    X, z = rows()
    return folder, X, z, write_all(folder, X, z)


def names() -> list[str]:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        return list(write_all(Path(folder), *rows(20)))


def opened(folder, given, **more):
    given = {key: folder / value if key in "xz" else value for key, value in given.items()}
    return open_table(given.pop("x"), given.pop("z", None), **given, **more)


@pytest.mark.parametrize("case", names())
@pytest.mark.parametrize("batch", [None, 64])
def test_every_source_gives_the_same_rows(files, case, batch):
    folder, X, z, cases = files
    table = opened(folder, cases[case])
    for _ in range(2):  # can be started again
        m, seen = excise.Moments(), []
        for x, labels in table.batches(batch):
            m.update(x, labels)
            seen.append(np.array(x))
    assert (table.n, table.d, m.n) == (1000, 5, 1000)
    assert m.concept.names == ("f", "m")
    close = 1e-6 if "csv" in case else 0.0  # decimal digits
    assert np.abs(np.concatenate(seen) - X).max() <= close
    expected = covariance(X, one_hot(z))
    assert np.abs(expected).max() > 0.1
    assert np.abs(m.cov_xz - expected).max() < 1e-6
    assert np.allclose(table.moments().cov_xz, m.cov_xz, atol=1e-12)


@pytest.mark.parametrize("case", ["npy", "npz, compressed", "list column", "feather", "arrow stream", "csv", "folder"])
def test_reading_can_start_at_any_batch(files, case):
    folder, _, _, cases = files
    table = opened(folder, cases[case])
    parts = table.parts()
    every = [(b.part, b.begin, np.array(b.X), pa_list(b.z)) for b in table.stream(rows=64)]
    for part in range(len(parts)):
        size = 250 if case == "folder" else 1000
        for skip in (0, 64, 192, size - size % 64):
            later = [(b.part, b.begin, np.array(b.X), pa_list(b.z)) for b in table.stream(None, part, skip, rows=64)]
            wanted = [e for e in every if e[0] > part or (e[0] == part and e[1] >= skip + parts[part].begin)]
            assert len(later) == len(wanted)
            for a, b in zip(later, wanted, strict=True):
                assert a[:2] == b[:2]
                assert np.array_equal(a[2], b[2])
                assert a[3] == b[3]


def pa_list(z):
    return z.to_pylist() if hasattr(z, "to_pylist") else z.tolist()


def test_one_class_per_column_and_a_task(files):
    folder, X, z, _ = files
    age = np.arange(1000) % 3
    pq.write_table(wide_table(X, z).append_column("age", pa.array(age)), folder / "two.parquet")
    table = open_table(folder / "two.parquet", concept="sex,age")
    assert table.columns == ("f0", "f1", "f2", "f3", "f4")
    assert table.moments().concept.names == (("sex", "f"), ("sex", "m"), ("age", 0), ("age", 1), ("age", 2))
    with_task = open_table(folder / "two.parquet", concept="sex", task="age")
    assert with_task.columns == table.columns
    batch = next(with_task.stream())
    assert batch.y.to_pylist() == age.tolist()


def test_names_of_features(files):
    folder, _, _, cases = files
    assert opened(folder, cases["wide"]).feature_names == ("f0", "f1", "f2", "f3", "f4")
    assert opened(folder, cases["list column"]).feature_names is None
    assert opened(folder, cases["list column"]).columns == ("embedding",)
    assert opened(folder, cases["npz"]).columns == ("X",)


def test_a_column_whose_name_has_a_comma(tmp_path):
    pq.write_table(
        pa.table({"a,b": [0.0, 1.0, 2.0], "c": [1.0, 0.0, 3.0], "z": ["p", "q", "p"]}), tmp_path / "x.parquet"
    )
    assert open_table(tmp_path / "x.parquet", features="a,b", concept="z").columns == ("a,b",)
    assert open_table(tmp_path / "x.parquet", features=["a,b", "c"], concept="z").columns == ("a,b", "c")


def test_the_index_of_pandas_is_no_column(tmp_path):
    """A filtered frame brings its index along as a column: it is neither a feature nor the concept."""
    X, z = rows()
    frame = pd.DataFrame(X, columns=[f"f{j}" for j in range(5)]).assign(sex=z)[X[:, 0] > 0]
    frame.to_parquet(tmp_path / "x.parquet", engine="pyarrow")
    frame[["sex"]].to_parquet(tmp_path / "labels.parquet", engine="pyarrow")
    frame.rename_axis("person").to_parquet(tmp_path / "named.parquet", engine="pyarrow")
    schema = pq.read_schema(tmp_path / "x.parquet")
    assert "__index_level_0__" in schema.names
    assert index_columns(schema) == {"__index_level_0__"}
    table = open_table(tmp_path / "x.parquet", concept="sex")
    assert table.columns == ("f0", "f1", "f2", "f3", "f4")
    split = open_table(tmp_path / "x.parquet", tmp_path / "labels.parquet", features="f0,f1")
    assert split.concept_columns == ("sex",)
    assert split.moments().concept.names == ("f", "m")
    assert "person" in pq.read_schema(tmp_path / "named.parquet").names
    assert open_table(tmp_path / "named.parquet", concept="sex").columns == ("f0", "f1", "f2", "f3", "f4")
    for names in ({"features": "person,f0"}, {"concept": "person"}):
        with pytest.raises(excise.InputError, match="'person' is the index of the pandas frame, which is never"):
            open_table(tmp_path / "named.parquet", **{"concept": "sex", **names})


def test_hugging_face_folders(tmp_path):
    datasets = pytest.importorskip("datasets")
    X, z = rows()
    data = datasets.Dataset.from_dict({"embedding": X.tolist(), "sex": z.tolist(), "id": list(range(1000))})
    data = data.cast_column("embedding", datasets.Sequence(datasets.Value("float32"), length=5))
    data.save_to_disk(tmp_path / "one", num_shards=3)
    table = open_table(tmp_path / "one", concept="sex")
    assert len(table.sources) == 3
    assert np.array_equal(np.concatenate([x for x, _ in table.batches()]), X)
    datasets.DatasetDict({"train": data, "test": data}).save_to_disk(tmp_path / "splits")
    with pytest.raises(excise.InputError, match=r"several splits \(test, train\): pass one of them"):
        open_table(tmp_path / "splits", concept="sex")
    assert open_table(tmp_path / "splits" / "train", concept="sex").n == 1000


@pytest.mark.parametrize("protocol", ["memory://excise-test", "file://"])
def test_urls(files, protocol):
    import fsspec

    folder, X, _, cases = files
    root = f"file://{folder}" if protocol == "file://" else protocol
    if protocol != "file://":
        system = fsspec.filesystem("memory")
        system.put(str(folder) + "/", "/excise-test/", recursive=True)
    for case in ("npy", "npz", "npz, compressed", "safetensors", "list column", "feather", "arrow stream", "csv"):
        given = {key: f"{root}/{v}" if key in "xz" else v for key, v in cases[case].items()}
        table = open_table(given.pop("x"), given.pop("z", None), **given)
        seen = np.concatenate([np.array(x) for x, _ in table.batches(300)])
        assert np.abs(seen - X).max() <= 1e-6
        assert table.moments().n == 1000
    for shards in (f"{root}/shards", f"{root}/shards/part-*.parquet"):
        table = open_table(shards, concept="sex")
        assert [source.location.relative for source in table.sources] == [f"part-{i}.parquet" for i in range(4)]
        assert np.array_equal(np.concatenate([np.array(x) for x, _ in table.batches()]), X)
    with pytest.raises(FileNotFoundError, match="no such file"):
        open_table(f"{root}/nothing.parquet", concept="sex")
    if protocol != "file://":
        system.rm("/excise-test", recursive=True)


def test_unknown_storage():
    with pytest.raises(excise.InputError, match=r"cannot open nonsense://x/y.parquet"):
        open_table("nonsense://x/y.parquet", concept="z")


def test_bfloat16_tensors(tmp_path):
    import torch
    from safetensors.torch import save_file

    X, z = rows()
    save_file({"X": torch.from_numpy(X).bfloat16()}, tmp_path / "x.safetensors")
    np.save(tmp_path / "z.npy", z)
    seen = np.concatenate([x for x, _ in open_table(tmp_path / "x.safetensors", tmp_path / "z.npy").batches(64)])
    assert np.array_equal(seen, torch.from_numpy(X).bfloat16().float().numpy())


def test_many_dimensions(tmp_path):
    X, _ = rows()
    np.save(tmp_path / "x.npy", X.reshape(100, 10, 5))
    np.save(tmp_path / "z.npy", np.arange(1000).reshape(100, 10) % 2)
    table = open_table(tmp_path / "x.npy", tmp_path / "z.npy")
    assert (table.n, table.d, table.moments().n) == (100, 5, 1000)


def test_parts_cover_all_rows_once(tmp_path, monkeypatch):
    import excise.data.table as module

    monkeypatch.setattr(module, "BATCH_BYTES", 20 * 64)
    monkeypatch.setattr(module, "PART_BYTES", 20 * 600)
    X, z = rows()
    for groups in (1, 7, 100, 333, 1000):
        pq.write_table(list_table(X, z), tmp_path / "x.parquet", row_group_size=groups)
        table = open_table(tmp_path / "x.parquet", concept="sex")
        parts = table.parts()
        assert [p.begin for p in parts[1:]] == [p.end for p in parts[:-1]]
        assert (parts[0].begin, parts[-1].end) == (0, 1000)
        assert all(part.begin % groups == 0 for part in parts)
        assert np.array_equal(np.concatenate([np.array(b.X) for b in table.stream()]), X)
        assert sum(b.count for p in parts for b in table.stream([p])) == 1000


def test_whole_numbers_that_turn_into_fractions_in_csv(tmp_path):
    body = "\n".join(["a,b,z"] + ["1,2,p"] * 300_000 + ["1.5,2,q"] * 10)
    (tmp_path / "x.csv").write_text(body + "\n", encoding="utf-8")
    import excise.data.table_files as module

    assert len(body) > 2**20
    before, module.CSV_BLOCK = module.CSV_BLOCK, 2**18
    try:
        seen = np.concatenate([np.array(x) for x, _ in open_table(tmp_path / "x.csv", concept="z").batches()])
    finally:
        module.CSV_BLOCK = before
    assert seen.shape == (300_010, 2)
    assert seen[-1].tolist() == [1.5, 2.0]


def test_empty_files_in_a_folder_are_passed_over(files, tmp_path):
    _, X, z, _ = files
    pq.write_table(list_table(X, z)[:0], tmp_path / "a.parquet")
    pq.write_table(list_table(X, z), tmp_path / "b.parquet")
    assert open_table(tmp_path, concept="sex").moments().n == 1000
    (tmp_path / "b.parquet").unlink()
    with pytest.raises(excise.InputError, match="no rows"):
        open_table(tmp_path, concept="sex")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["sex"]), "has no column 'sex', which .*part-0.parquet has; it has id, embedding"),
        (lambda t: t.set_column(2, "sex", pa.array(range(len(t)))), "column 'sex' is string in .* and int64 in"),
        (
            lambda t: t.set_column(
                1, "embedding", pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(4 * len(t), np.float32)), 4)
            ),
            "column 'embedding' is fixed_size_list",
        ),
    ],
)
def test_files_with_other_schemas(files, tmp_path, change, message):
    _, X, z, _ = files
    pq.write_table(list_table(X, z), tmp_path / "part-0.parquet")
    pq.write_table(change(list_table(X, z)), tmp_path / "part-1.parquet")
    with pytest.raises(excise.InputError, match=message):
        open_table(tmp_path, concept="sex")


def test_lists_of_another_length_in_another_file(tmp_path):
    for name, width in (("a", 2), ("b", 3)):
        values = pa.array([[1.0] * width] * 4)
        pq.write_table(pa.table({"x": values, "z": ["p", "q", "p", "q"]}), tmp_path / f"{name}.parquet")
    with pytest.raises(excise.InputError, match=r"a.parquet has lists of 2 features, .*b.parquet of 3"):
        open_table(tmp_path, concept="z")


def test_folders_of_several_formats_and_of_none(files, tmp_path):
    folder, _, _, _ = files
    with pytest.raises(excise.InputError, match="files of several formats"):
        open_table(folder, concept="sex")
    with pytest.raises(FileNotFoundError, match="holds no file that ends in"):
        open_table(tmp_path, concept="sex")
    with pytest.raises(FileNotFoundError, match="no file matches"):
        open_table(tmp_path / "*.parquet", concept="sex")


def test_labels_of_several_columns_need_a_name(files, tmp_path):
    folder, _X, z, _ = files
    pq.write_table(pa.table({"id": np.arange(1000), "source": z}), tmp_path / "labels.parquet")
    with pytest.raises(excise.InputError, match=r"has 2 columns \(id, source\): say which is the concept \(-c\)"):
        open_table(folder / "x.npy", tmp_path / "labels.parquet")
    assert open_table(folder / "x.npy", tmp_path / "labels.parquet", concept="source").moments().concept.k == 2


def test_stopping_in_the_middle_ends_the_reading_thread(files):
    import threading

    folder, _, _, cases = files
    stream = opened(folder, cases["list column"]).stream(rows=10)
    next(stream)
    assert any(thread.name == "excise-reading" for thread in threading.enumerate())
    stream.close()
    assert not any(thread.name == "excise-reading" for thread in threading.enumerate())
