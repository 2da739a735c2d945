"""Files made to harm: nothing is executed, nothing is allocated on a header's word, nothing is written outside."""

from __future__ import annotations

import json
import os
import pickle
import random
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pyarrow.parquet as pq
import pytest
from data_files import list_table, rows

import excise
from excise.data import open_table
from excise.data.applying import apply_eraser, open_for
from excise.data.locations import find_files
from excise.data.outputs import inside


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("z.npy", np.arange(10) % 2)
    return tmp_path


def npy(descr: str, shape: tuple, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    text = text.ljust(118 - len(text) % 64 if len(text) > 118 else 118) + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + data


def test_pickles_are_never_loaded(folder):
    with open("x.npy", "wb") as file:
        np.lib.format.write_array(file, np.array([Bomb()] * 10, dtype=object), allow_pickle=True)
    np.savez("x.npz", X=np.array([[Bomb()] * 2] * 10, dtype=object))
    (folder / "raw.npy").write_bytes(pickle.dumps(Bomb()))
    (folder / "raw.npz").write_bytes(pickle.dumps(Bomb()))
    (folder / "raw.safetensors").write_bytes(pickle.dumps(Bomb()))
    (folder / "raw.parquet").write_bytes(pickle.dumps(Bomb()))
    (folder / "raw.arrow").write_bytes(pickle.dumps(Bomb()))
    for name in ("x.npy", "x.npz", "raw.npy", "raw.npz", "raw.safetensors", "raw.parquet", "raw.arrow"):
        with pytest.raises(excise.FileFormatError, match=r"is not a whole|cut off|pickled Python objects"):
            open_table(name, "z.npy")
    assert not (folder / "executed").exists()


@pytest.mark.parametrize("shape", [(10, 2**60), (2**40, 2**30), (10, -1), (-5, 3), (2**62, 1), ()])
def test_shapes_beyond_the_file(folder, shape):
    (folder / "x.npy").write_bytes(npy("<f4", shape, b"\0" * 400))
    with zipfile.ZipFile("x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", npy("<f4", shape, b"\0" * 400))
    header = json.dumps({"X": {"dtype": "F32", "shape": list(shape), "data_offsets": [0, 400]}}).encode()
    (folder / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 400)
    for name in ("x.npy", "x.npz", "x.safetensors"):
        with pytest.raises((excise.FileFormatError, excise.InputError)):
            open_table(name, "z.npy")


def test_headers_beyond_the_file(folder):
    for size in (2**63, 2**32, 10**8, 500):
        (folder / "x.safetensors").write_bytes(size.to_bytes(8, "little") + b"{}" + b" " * 100)
        with pytest.raises(excise.FileFormatError):
            open_table("x.safetensors", "z.npy")
    for offsets in ([0, 2**60], [-8, 72], [40, 0], [0, 81]):
        entry = {"X": {"dtype": "F32", "shape": [10, 2], "data_offsets": offsets}}
        header = json.dumps(entry).encode()
        (folder / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 80)
        with pytest.raises(excise.FileFormatError):
            open_table("x.safetensors", "z.npy")
    nested = b"[" * 100_000
    (folder / "x.safetensors").write_bytes(len(nested).to_bytes(8, "little") + nested)
    with pytest.raises(excise.FileFormatError):
        open_table("x.safetensors", "z.npy")
    (folder / "x.npy").write_bytes(npy("<f4", (10, 2))[:8] + struct.pack("<H", 65_000) + b"(" * 65_000)
    with pytest.raises(excise.FileFormatError):
        open_table("x.npy", "z.npy")


def test_records_and_names_of_types(folder):
    for descr in ("[('a', '<f4')]", "O", "<m8[s]", "V4", "__import__('os').mkdir('executed')"):
        text = "{'descr': %s, 'fortran_order': False, 'shape': (10, 2)}\n" % (
            descr if descr[0] in "[_" else repr(descr)
        )
        content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + b"\0" * 400
        (folder / "x.npy").write_bytes(content)
        with pytest.raises(excise.ExciseError):
            open_table("x.npy", "z.npy").moments()
    assert not (folder / "executed").exists()


# A child's ru_maxrss begins at that of its parent; this does not.
PEAK = """
from pathlib import Path
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
"""
LIMITED = (
    PEAK
    + """
import resource, sys
limit = 6 * 2**30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
import excise
from excise.data import open_table, fit_table
for path in sys.argv[1:]:
    try:
        fit_table(open_table(path, concept="sex"))
        print("fitted", path)
    except (excise.ExciseError, OSError) as error:
        print("refused", str(error)[:60])
print("peak", peak() // 1024)
"""
)


def test_damaged_tables(folder):
    """Bytes changed at random in the header, the footer and the pages: an error or a result, no crash, bounded memory."""
    X, z = rows(500)
    pq.write_table(list_table(X, z), "good.parquet", row_group_size=100)
    import pyarrow.feather

    pyarrow.feather.write_feather(list_table(X, z), "good.feather")
    draw = random.Random(0)
    paths = []
    for name in ("good.parquet", "good.feather"):
        content = (folder / name).read_bytes()
        for i in range(60):
            damaged = bytearray(content)
            near_end = draw.random() < 0.7  # where the footer is
            for _ in range(draw.choice([1, 3, 10])):
                at = (
                    draw.randrange(max(0, len(damaged) - 1500), len(damaged))
                    if near_end
                    else draw.randrange(len(damaged))
                )
                damaged[at] = draw.randrange(256)
            paths.append(folder / f"{i}-{name}")
            paths[-1].write_bytes(bytes(damaged))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LIMITED, *paths],
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert len(lines) == len(paths) + 1
    assert sum(line.startswith("refused") for line in lines) > 20
    assert int(lines[-1].split()[1]) < 1500


def test_a_small_archive_that_unpacks_to_much_is_streamed(folder):
    """A quarter of a gigabyte of zeros in a few hundred kilobytes: read in batches, never at once."""
    with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("X.npy", "w", force_zip64=True) as member:
            member.write(npy("<f4", (2**18, 256)))
            for _ in range(16):
                member.write(b"\0" * 2**24)
        with archive.open("z.npy", "w") as member:
            member.write(npy("|i1", (2**18,)))
            member.write(b"\0\1" * 2**17)
    assert os.path.getsize("bomb.npz") < 1e6
    code = (
        PEAK
        + """
import excise.data.table as table
from excise.data import open_table
table.BATCH_BYTES = 2**22
n = sum(batch.count for batch in open_table("bomb.npz", concept="z").stream())
print(n, peak() // 1024)
"""
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    n, peak = map(int, done.stdout.split())
    assert n == 2**18
    assert peak < 230


def test_a_damaged_archive(folder):
    X, _ = rows(10)
    np.savez_compressed("x.npz", X=X)
    content = bytearray((folder / "x.npz").read_bytes())
    content[len(content) // 2] ^= 255
    (folder / "x.npz").write_bytes(bytes(content))
    with pytest.raises(excise.FileFormatError, match="is not a whole NumPy file"):
        open_table("x.npz", "z.npy").moments()


def test_names_that_lead_out_of_the_folder(folder):
    for name in ("../x.npy", "/etc/x.npy", "a/../../x.npy", "", "a\\..\\b.npy", "a\0b"):
        with pytest.raises(excise.ExciseError, match="leads out of"):
            inside("out", name)
    assert inside("out", "a/b.npy") == os.path.join("out", "a", "b.npy")
    X, z = rows(100)
    os.mkdir("data")
    pq.write_table(list_table(X, z), "data/data.arrow")
    pq.write_table(list_table(X, z), "secret.arrow")
    (folder / "data" / "dataset_info.json").write_text("{}", encoding="utf-8")
    for names in ("../secret.arrow", str(folder / "secret.arrow"), 5, "absent.arrow", "x/../data.arrow"):
        state = {"_data_files": [{"filename": names}]}
        (folder / "data" / "state.json").write_text(json.dumps(state), encoding="utf-8")
        with pytest.raises(excise.FileFormatError, match="which is not a file of that folder"):
            find_files("data")
    for content in ("[", "{}", "[]", '{"_data_files": 3}', "[" * 100_000):
        (folder / "data" / "state.json").write_text(content, encoding="utf-8")
        with pytest.raises(excise.FileFormatError, match="is not what `datasets` writes"):
            find_files("data")


def test_a_hostile_listing_of_a_remote_folder(folder, monkeypatch):
    """A server may name its files as it likes."""
    import fsspec

    X, z = rows(100)
    pq.write_table(list_table(X, z), "x.parquet")
    system = fsspec.filesystem("memory")
    system.pipe_file("/hostile/x.parquet", (folder / "x.parquet").read_bytes())
    real = type(system).find
    monkeypatch.setattr(
        type(system),
        "find",
        lambda self, path, **more: [f"{path}/../../{n.rsplit('/', 1)[1]}" for n in real(self, path)],
    )
    eraser = excise.fit(X, z)
    os.mkdir("out")
    with pytest.raises((excise.ExciseError, FileNotFoundError)):
        apply_eraser(eraser, open_for(eraser, "memory://hostile"), "memory://hostile", "out/deep")
    monkeypatch.undo()
    assert sorted(os.listdir(folder)) == ["out", "x.parquet", "z.npy"]
    system.rm("/hostile", recursive=True)
