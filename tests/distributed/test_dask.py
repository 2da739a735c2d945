"""Dask: the same eraser as in one pass, on arrays, frames and files, on real processes, also when one of them dies."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from commands import excise_command
from data_files import list_table, rows
from measure import class_gap, correlation, one_hot

import excise
import excise.distributed as ours
from excise.data import fit_table, open_table

da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"
)


@pytest.fixture(scope="module")
def client():
    with ours.connected(workers=2) as client:
        yield client


@pytest.fixture
def data():
    X, z = rows(5000)
    return X.astype(np.float64), z


def same(a, b) -> bool:
    return bool(np.abs(a.P - b.P).max() < 1e-10) and bool(np.abs(a.bias - b.bias).max() < 1e-10)


@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
def test_arrays_on_any_scheduler(data, scheduler):
    import dask

    X, z = data
    alone = excise.fit(X, z)
    with dask.config.set(scheduler=scheduler):
        for chunks in ((700, 5), (1234, 2), (5000, 5), ((100, 4900), 5)):
            dX = da.from_array(X, chunks=chunks)
            assert same(ours.fit(dX, z), alone)
            assert same(ours.fit(dX, da.from_array(z, chunks=900)), alone)


@pytest.mark.parametrize("method", ["leace", "sal", "oracle", "quadratic", "fair_pca"])
def test_methods_on_a_cluster(client, data, method):
    X, z = data
    options = {"n_components": 3} if method == "fair_pca" else {}
    eraser = ours.fit(da.from_array(X, chunks=(600, 5)), z, method, client=client, **options)
    alone = excise.fit(X, z, method, **options)
    assert np.abs(eraser(X, z) - alone(X, z)).max() < 1e-9
    assert class_gap(X, z) > 0.8
    assert class_gap(eraser(X, z), z) < 1e-9


def test_frames(client, data):
    X, z = data
    frame = pd.DataFrame(X, columns=list("abcde")).assign(sex=z, age=np.arange(5000) % 3)
    ddf = dd.from_pandas(frame, npartitions=7)
    eraser = ours.fit(ddf, concept=["sex"], features=list("abcde"), client=client)
    assert eraser.feature_names == tuple("abcde")
    assert same(eraser, excise.fit(frame[list("abcde")], z))
    both = ours.fit(ddf, concept=["sex", "age"], client=client)
    assert same(both, excise.fit(frame[list("abcde")], frame[["sex", "age"]]))
    series = ours.fit(ddf[list("abcde")], ddf["sex"], client=client)
    assert same(series, eraser)
    erased = ours.apply(eraser, ddf).compute()
    assert erased["sex"].tolist() == z.tolist()
    assert class_gap(erased[list("abcde")].to_numpy(), z) < 1e-9
    with pytest.raises(excise.InputError, match="has no column 'gender'"):
        ours.fit(ddf, concept=["gender"])
    with pytest.raises(excise.ConceptError, match="one of the two"):
        ours.fit(ddf)


def test_apply_is_lazy_and_keeps_chunks(data):
    X, z = data
    dX = da.from_array(X.astype(np.float32), chunks=(700, 3))
    for method in ("leace", "oracle"):
        eraser = excise.fit(X, z, method)
        out = ours.apply(eraser, dX, da.from_array(z, chunks=450))
        assert out.dtype == np.float32
        assert out.chunks[0] == dX.chunks[0]
        assert np.array_equal(out.compute(scheduler="synchronous"), eraser(X.astype(np.float32), z))
    with pytest.raises(excise.ConceptError, match="needs the label of every row"):
        ours.apply(eraser, dX)
    with pytest.raises(excise.InputError, match="has 4 features, the eraser was fitted on 5"):
        ours.apply(eraser, dX[:, :4], z)


def test_conditions(data):
    X, z = data
    dX = da.from_array(X, chunks=(700, 5))
    eraser = excise.fit(X, z)
    before, after = (ours.conditions(dX, z, eraser=e) for e in (None, eraser))
    assert [c.holds for c in before] == [False, False]
    assert [c.holds for c in after] == [True, True]
    assert before[0].after == pytest.approx(correlation(X, one_hot(z)), rel=1e-9)
    assert after[0].before == pytest.approx(before[0].after)
    half = excise.fit(X[:1000], z[:1000])
    assert not ours.conditions(dX, z, eraser=half)[0].holds


@pytest.fixture
def shards(tmp_path, monkeypatch):
    X, z = rows(30_000)
    (tmp_path / "in").mkdir()
    for i in range(12):
        part = slice(2500 * i, 2500 * (i + 1))
        pq.write_table(list_table(X[part], z[part], 2500 * i), tmp_path / "in" / f"{i:02d}.parquet")
    return tmp_path, X, z


@pytest.mark.parametrize("where", ["client", "threads"])
def test_files(client, shards, where):
    import dask

    folder, X, z = shards
    alone = fit_table(open_table(folder / "in", concept="sex")).eraser
    with dask.config.set(scheduler="threads"):
        eraser = ours.fit(folder / "in" / "*.parquet", concept="sex", client=client if where == "client" else None)
    assert same(eraser, alone)
    assert same(eraser, excise.fit(X, z))
    assert eraser.info["columns"] == ["embedding"]


def test_commands_on_a_cluster(client, shards):
    folder, X, z = shards
    address = client.scheduler.address
    excise_command("fit", folder / "in", "-c", "sex", "-o", folder / "e", "--scheduler", address)
    assert same(excise.load(folder / "e"), excise.fit(X, z))
    said = excise_command("apply", folder / "e", folder / "in", "-o", folder / "out", "--scheduler", address)
    assert "30,000 rows in 12 files" in said
    out = np.array(pq.read_table(folder / "out")["embedding"].to_pylist(), dtype=np.float32)
    assert np.array_equal(out, excise.load(folder / "e")(X))


def test_bad_rows_are_reported_by_the_workers(client, shards):
    folder, X, z = shards
    X[7, 2] = np.nan
    pq.write_table(list_table(X[:2500], z[:2500]), folder / "in" / "03.parquet")
    with pytest.raises(excise.InputError, match=r"03.parquet: 1 of 2,500 rows .*first at row 7"):
        ours.fit(folder / "in", concept="sex", client=client)
    with pytest.raises(excise.InputError, match=r"03.parquet"):
        excise_command("fit", folder / "in", "-c", "sex", "-o", folder / "e", "--scheduler", client.scheduler.address)
    assert not (folder / "e").exists()


def slow_part(how, rows, part, recipe):
    from excise.distributed.dask_files import gather_from

    time.sleep(0.3)
    return gather_from(how, rows, part, recipe)


def test_a_worker_that_is_killed(shards, monkeypatch):
    """kill -9 in the middle: its work is done again, no row is lost or counted twice."""
    import excise.distributed.dask_files as module

    folder, X, z = shards
    monkeypatch.setattr(module, "gather_from", slow_part)
    killed = []
    with ours.connected(workers=2) as client:
        processes = client.run(os.getpid)

        def kill():
            time.sleep(0.8)
            victim = next(iter(processes.values()))
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)

        thread = threading.Thread(target=kill)
        thread.start()
        began = time.monotonic()
        table = open_table(folder / "in", concept="sex")
        fitted = fit_table(table, run=module.gather_on(client))
        assert time.monotonic() - began > 0.8  # it was not over before
        thread.join()
        assert killed
        assert killed[0] not in client.run(os.getpid).values()
    assert fitted.rows == 30_000
    assert same(fitted.eraser, excise.fit(X, z))


def test_an_unreachable_scheduler(shards, monkeypatch):
    import excise.distributed.scheduler as module

    monkeypatch.setattr(module, "PATIENCE", 1)
    monkeypatch.setattr(module.connected.__wrapped__, "__defaults__", (None, None, 1))
    folder, *_ = shards
    with pytest.raises(excise.ExciseError, match=r"the scheduler at tcp://127.0.0.1:9 cannot be reached"):
        excise_command("fit", folder / "in", "-c", "sex", "-o", folder / "e", "--scheduler", "tcp://127.0.0.1:9")
    with pytest.raises(excise.ExciseError, match="cannot be reached"):
        excise_command("fit", folder / "in", "-c", "sex", "-o", folder / "e", "--scheduler", "nonsense")


def test_what_is_refused(data):
    X, z = data
    with pytest.raises(excise.ExciseError, match="not fitted from sums of moments"):
        ours.fit(da.from_array(X, chunks=500), z, "inlp")
    with pytest.raises(excise.InputError, match="must be a Dask array or data frame"):
        ours.fit(X, z)
    with pytest.raises(excise.ConceptError, match="5000 rows, but there are 4999 labels"):
        ours.fit(da.from_array(X, chunks=500), da.from_array(z[1:], chunks=500))
