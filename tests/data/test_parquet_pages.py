"""Lists read without Arrow are what Arrow reads; whatever is not plain, or damaged, is left to Arrow."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_files import rows

from excise.data import open_table
from excise.data.locations import Location
from excise.data.table_files import ParquetFile
from excise.errors import ExciseError

N, D = 3000, 7
OPTIONS = {
    "plain": {"compression": "none", "use_dictionary": False},
    "snappy with a dictionary": {},
    "zstd, small pages": {"compression": "zstd", "data_page_size": 900, "use_dictionary": False},
    "second page version": {"compression": "zstd", "data_page_version": "2.0", "data_page_size": 5000},
    "row groups": {"row_group_size": 333, "compression": "snappy", "use_dictionary": False},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table_of(X, kind, nullable=True):
    value = pa.field("item", pa.from_numpy_dtype(X.dtype), nullable=nullable)
    types = {"fixed": pa.list_(value, X.shape[1]), "list": pa.list_(value), "large": pa.large_list(value)}
    lists = pa.array(list(X), types[kind])
    schema = pa.schema([pa.field("e", types[kind], nullable=nullable), pa.field("z", pa.int64())])
    return pa.table([lists, np.arange(len(X)) % 2], schema=schema)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", ["fixed", "list", "large"])
@pytest.mark.parametrize("nullable", [True, False])
def test_the_same_numbers_as_arrow(folder, options, kind, nullable):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D)).astype("f4" if kind == "fixed" else "f8").round(2)  # repeats, for dictionaries
    pq.write_table(table_of(X, kind, nullable), "x.parquet", **options)
    expected = np.stack(pq.read_table("x.parquet")["e"].to_numpy())
    file = ParquetFile(Location("x.parquet", "x.parquet"))
    for begin in (0, 1, 332, 333, 1500, N - 1):
        plain = file.list_rows("e", D, begin)
        assert plain is not None
        got = np.empty((N - begin, D), X.dtype)
        for at in range(0, len(got), 700):
            plain.fill(got[at : at + 700])
        np.testing.assert_array_equal(got, expected[begin:])
    table = open_table("x.parquet", features=["e"], concept=["z"])
    batches = list(table.stream(rows=512, again=False))
    np.testing.assert_array_equal(np.concatenate([b.X for b in batches]), expected)
    assert all(np.array_equal(np.asarray(b.z), np.arange(b.begin, b.begin + b.count) % 2) for b in batches)


def test_what_is_not_plain_is_read_by_arrow(folder):
    X = np.random.default_rng(0).standard_normal((N, D)).astype("f4")
    lists = [list(map(float, row)) for row in X]
    lists[2000], lists[2001] = None, [1.0]
    e = pa.array(lists, pa.list_(pa.float32()))
    pq.write_table(pa.table({"e": e, "z": np.arange(N) % 2}), "holes.parquet", data_page_size=2000)
    with pytest.raises(ExciseError, match=r"2 of 3,000 rows.*row 2000"):
        list(open_table("holes.parquet", features=["e"], concept=["z"]).stream())
    kept = list(open_table("holes.parquet", features=["e"], concept=["z"], skip_bad=True).stream(rows=256, again=False))
    np.testing.assert_array_equal(np.concatenate([b.X for b in kept]), np.delete(X, [2000, 2001], axis=0))
    split = {"use_dictionary": False, "use_byte_stream_split": True}
    for name, options in {"split": split, "gzip": {"compression": "gzip"}, "lz4": {"compression": "lz4"}}.items():
        pq.write_table(table_of(X, "fixed"), f"{name}.parquet", **options)
        assert ParquetFile(Location(f"{name}.parquet", "x.parquet")).list_rows("e", D, 0) is None
        got = np.concatenate([X for X, _ in open_table(f"{name}.parquet", features=["e"], concept=["z"]).batches()])
        np.testing.assert_array_equal(got, X)


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
def test_damaged_pages_give_an_error_or_what_arrow_reads(folder, codec):
    X, _ = rows(400)
    pq.write_table(table_of(X, "list"), "good.parquet", compression=codec, data_page_size=1500)
    content = (folder / "good.parquet").read_bytes()
    draw = random.Random(1)
    compared = refused = 0
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(draw.choice([1, 2])):
            damaged[draw.randrange(4, int(len(content) * 0.8))] = draw.randrange(256)
        (folder / "bad.parquet").write_bytes(bytes(damaged))
        try:
            batches = list(open_table("bad.parquet", features=["e"], concept=["z"], skip_bad=True).stream(again=False))
        except ExciseError:
            refused += 1
            continue
        try:
            read = pq.read_table("bad.parquet", columns=["e"])["e"]
        except (pa.ArrowException, OSError):
            continue  # a part of the file that is not of these columns
        lists = [row.as_py() for row in read]
        whole = [row for row in lists if row is not None and len(row) == X.shape[1] and None not in row]
        expected = np.array([row for row in whole if np.isfinite(row).all()], dtype="f4")
        if sum(b.bad.count for b in batches) == 0:
            np.testing.assert_array_equal(np.concatenate([b.X for b in batches]), expected)
            compared += 1
    assert compared + refused > 100
    assert compared > 5
