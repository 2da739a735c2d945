"""The same rows in files of every format, written by the libraries that own the formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
from safetensors.numpy import save_file

D = 5


def rows(n: int = 1000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, 5) float32 that tell the class, and the class."""
    rng = np.random.default_rng(seed)
    z = rng.choice(["f", "m"], n)
    return (rng.standard_normal((n, D)) + (z == "m")[:, None]).astype(np.float32), z


def list_table(X: np.ndarray, z: np.ndarray, begin: int = 0) -> pa.Table:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), X.shape[1])
    return pa.table({"id": pa.array(np.arange(begin, begin + len(X))), "embedding": lists, "sex": pa.array(z)})


def wide_table(X: np.ndarray, z: np.ndarray) -> pa.Table:
    return pa.table({f"f{j}": X[:, j].copy() for j in range(X.shape[1])} | {"sex": pa.array(z)})


def write_all(folder: Path, X: np.ndarray, z: np.ndarray) -> dict[str, dict]:
    """Files in `folder`; for each case the arguments of open_table, paths relative to the folder."""
    np.save(folder / "x.npy", X)
    np.save(folder / "fortran.npy", np.asfortranarray(X))
    np.save(folder / "swapped.npy", X.astype(">f4"))
    np.save(folder / "z.npy", z)
    np.savez(folder / "stored.npz", X=X, z=z, other=np.zeros(3))
    np.savez_compressed(folder / "deflated.npz", X=X, z=z)
    save_file({"X": X, "code": (z == "m").astype(np.int64)}, folder / "x.safetensors")
    table, wide = list_table(X, z), wide_table(X, z)
    pq.write_table(table, folder / "list.parquet", row_group_size=300)
    pq.write_table(wide, folder / "wide.parquet", row_group_size=170)
    ragged = pa.array([list(map(float, row)) for row in X], pa.large_list(pa.float32()))
    pq.write_table(pa.table({"embedding": ragged, "sex": z}), folder / "large.parquet", data_page_version="2.0")
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(X)
    pq.write_table(pa.table({"embedding": tensors, "sex": z}), folder / "tensor.parquet")
    pyarrow.feather.write_feather(table, folder / "list.feather")
    pyarrow.feather.write_feather(table, folder / "plain.feather", compression="uncompressed", chunksize=130)
    with pa.ipc.new_stream(str(folder / "stream.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=77)
    pyarrow.csv.write_csv(wide, folder / "wide.csv")
    pq.write_table(pa.table({"sex": pa.array(z).dictionary_encode()}), folder / "labels.parquet", row_group_size=400)
    for name, suffix in (("shards", "parquet"), ("arrays", "npy"), ("labels", "npy")):
        (folder / name).mkdir()
        for i, begin in enumerate(range(0, len(X), 250)):
            part, labels = X[begin : begin + 250], z[begin : begin + 250]
            if suffix == "parquet":
                pq.write_table(list_table(part, labels, begin), folder / name / f"part-{i}.parquet")
            else:
                np.save(folder / name / f"part-{i}.npy", part if name == "arrays" else labels)
    (folder / "shards" / "_SUCCESS").touch()
    (folder / "shards" / ".hidden.parquet").write_bytes(b"not this one")
    columns = {"features": [f"f{j}" for j in range(X.shape[1])]}
    return {
        "npy": {"x": "x.npy", "z": "z.npy"},
        "npy in Fortran's order": {"x": "fortran.npy", "z": "z.npy"},
        "npy of other byte order": {"x": "swapped.npy", "z": "z.npy"},
        "npz": {"x": "stored.npz", "concept": ["z"]},
        "npz, compressed": {"x": "deflated.npz", "concept": ["z"]},
        "npz and npy": {"x": "stored.npz", "z": "z.npy"},
        "safetensors": {"x": "x.safetensors", "z": "z.npy"},
        "list column": {"x": "list.parquet", "concept": ["sex"]},
        "named list column": {"x": "list.parquet", "features": ["embedding"], "concept": ["sex"]},
        "large lists, pages of version 2": {"x": "large.parquet", "concept": ["sex"]},
        "tensors": {"x": "tensor.parquet", "concept": ["sex"]},
        "wide": {"x": "wide.parquet", "concept": ["sex"]},
        "wide, by commas": {"x": "wide.parquet", "features": ["f0,f1", "f2, f3,f4"], "concept": "sex"},
        "labels in other row groups": {"x": "list.parquet", "z": "labels.parquet"},
        "labels in a table of several columns": {"x": "x.npy", "z": "wide.csv", "concept": ["sex"]},
        "feather": {"x": "list.feather", "concept": ["sex"]},
        "feather, not compressed": {"x": "plain.feather", "concept": ["sex"]},
        "arrow stream": {"x": "stream.arrow", "concept": ["sex"]},
        "csv": {"x": "wide.csv", "concept": ["sex"]},
        "csv with labels elsewhere": {"x": "wide.csv", "z": "z.npy", **columns},
        "folder": {"x": "shards", "concept": ["sex"]},
        "glob": {"x": "shards/part-*.parquet", "concept": ["sex"]},
        "folders of arrays": {"x": "arrays", "z": "labels"},
        "folder of arrays, one file of labels": {"x": "arrays", "z": "z.npy"},
    }
