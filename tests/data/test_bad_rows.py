"""Rows that cannot be used: counted, placed, and dropped where that was asked for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from commands import excise_command
from data_files import rows
from measure import class_gap

import excise
from excise.data import fit_table, open_table

BAD = {3: "null", 250: "short", 251: "hole", 400: "nan", 777: "inf", 800: "label", 801: "label"}


@pytest.fixture
def broken(tmp_path):
    """1,000 rows, of which 7 are bad in various ways; a list column, numeric columns, and what is good."""
    X, z = rows()
    lists: list = [row.tolist() for row in X]
    labels: list = z.tolist()
    for row, how in BAD.items():
        if how == "null":
            lists[row] = None
        elif how == "short":
            lists[row] = [1.0, 2.0]
        elif how == "hole":
            lists[row][2] = None
        elif how == "label":
            labels[row] = None
        else:
            lists[row][4] = float(how)
    table = pa.table({"id": range(1000), "x": pa.array(lists, pa.list_(pa.float32())), "sex": labels})
    pq.write_table(table, tmp_path / "list.parquet", row_group_size=100)
    with pa.ipc.new_stream(str(tmp_path / "list.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=90)
    good = np.setdiff1d(np.arange(1000), list(BAD))
    return tmp_path, X, z, good


@pytest.mark.parametrize("name", ["list.parquet", "list.arrow"])
def test_bad_rows_are_counted_with_the_first_place(broken, name, monkeypatch):
    import excise.data.table as module

    monkeypatch.setattr(module, "BATCH_BYTES", 20 * 300)
    folder, *_ = broken
    with pytest.raises(excise.InputError) as caught:
        fit_table(open_table(folder / name, concept="sex"))
    said = str(caught.value)
    assert "7 of 1,000 rows cannot be used" in said
    for part in (
        "2 with missing features (first at row 3)",
        "1 with other than 5 features (first at row 250)",
        "2 with features that are NaN or infinite (first at row 400)",
        "2 with a missing label (first at row 800)",
        "--skip-bad",
    ):
        assert part in said
    assert caught.value.code == "bad-rows"


@pytest.mark.parametrize("batch_bytes", [2**26, 20 * 300])
def test_bad_rows_are_dropped(broken, monkeypatch, batch_bytes):
    import excise.data.table as module

    monkeypatch.setattr(module, "BATCH_BYTES", batch_bytes)
    folder, X, z, good = broken
    fitted = fit_table(open_table(folder / "list.parquet", concept="sex", skip_bad=True))
    assert (fitted.rows, fitted.of, fitted.bad.count) == (993, 1000, 7)
    alone = excise.fit(X[good], z[good])
    assert np.abs(fitted.eraser.P - alone.P).max() < 1e-9
    said = excise_command("fit", folder / "list.parquet", "-c", "sex", "-o", folder / "e", "--skip-bad")
    assert "993 rows" in said
    assert "7 rows were dropped: 2 with missing features (first at row 3)" in said
    said = excise_command("apply", folder / "e", folder / "list.parquet", "-o", folder / "out.parquet", "--skip-bad")
    after = pq.read_table(folder / "out.parquet")
    kept = np.setdiff1d(np.arange(1000), [row for row, how in BAD.items() if how != "label"])  # labels are not read
    assert after["id"].to_pylist() == kept.tolist()
    out = np.array(after["x"].to_pylist())
    assert class_gap(X[good], z[good]) > 0.8
    assert class_gap(out[np.isin(kept, good)], z[good]) < 1e-6


def test_numeric_columns_with_nulls(tmp_path):
    X, z = rows()
    columns = {f"f{j}": pa.array(X[:, j], mask=np.arange(1000) == 10 * j) for j in range(5)}
    pq.write_table(pa.table({**columns, "sex": z}), tmp_path / "x.parquet")
    with pytest.raises(excise.InputError, match=r"5 of 1,000 rows .* 5 with missing features \(first at row 0\)"):
        fit_table(open_table(tmp_path / "x.parquet", concept="sex"))
    assert fit_table(open_table(tmp_path / "x.parquet", concept="sex", skip_bad=True)).rows == 995
    pyarrow.csv.write_csv(pq.read_table(tmp_path / "x.parquet"), tmp_path / "x.csv")
    with pytest.raises(excise.InputError, match="5 of 1,000 rows"):
        fit_table(open_table(tmp_path / "x.csv", concept="sex"))


def test_arrays_with_nan(tmp_path):
    X, z = rows()
    X[[5, 900], 1] = np.nan, np.inf
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "z.npy", z)
    with pytest.raises(excise.InputError, match=r"2 of 1,000 rows .*\(first at row 5\)"):
        fit_table(open_table(tmp_path / "x.npy", tmp_path / "z.npy"))
    assert fit_table(open_table(tmp_path / "x.npy", tmp_path / "z.npy", skip_bad=True)).rows == 998
    excise_command("fit", tmp_path / "x.npy", tmp_path / "z.npy", "-o", tmp_path / "e", "--skip-bad")
    excise_command("apply", tmp_path / "e", tmp_path / "x.npy", "-o", tmp_path / "out.npy", "--skip-bad")
    assert np.load(tmp_path / "out.npy").shape == (998, 5)
    np.savez(tmp_path / "x.npz", X=X, z=z)
    with pytest.raises(excise.ExciseError, match="rows cannot be dropped from one of several arrays"):
        excise_command("apply", tmp_path / "e", tmp_path / "x.npz", "-o", tmp_path / "out.npz", "--skip-bad")
    assert not (tmp_path / "out.npz").exists()


def test_nothing_but_bad_rows(tmp_path):
    pq.write_table(pa.table({"a": pa.array([None, None], pa.float32()), "z": ["p", "q"]}), tmp_path / "x.parquet")
    with pytest.raises(excise.InputError, match="no row of the data can be used"):
        fit_table(open_table(tmp_path / "x.parquet", concept="z", skip_bad=True))


def test_a_bad_row_in_the_second_file(broken):
    folder, X, z, _ = broken
    (folder / "many").mkdir()
    good = pa.table({"id": range(1000), "x": pa.array(X.tolist(), pa.list_(pa.float32())), "sex": z.tolist()})
    pq.write_table(good, folder / "many" / "a.parquet")
    (folder / "many" / "b.parquet").write_bytes((folder / "list.parquet").read_bytes())
    with pytest.raises(excise.InputError, match=r"b\.parquet: 7 of 1,000 rows"):
        fit_table(open_table(folder / "many", concept="sex"))
    assert fit_table(open_table(folder / "many", concept="sex", skip_bad=True)).rows == 1993
