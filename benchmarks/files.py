"""Files: fit and apply against reading, writing and arithmetic alone, memory whatever the size, two workers against one.

Small sizes unless `full` is asked for: 200,000 rows of 768 features instead of 2 million (audit: of 1 million).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import excise
from benchmarks.core import Result
from excise.data import fit_table, open_table

D = 768
BLOCK = 25_000  # rows that are made at once, and rows of a row group where there are several

CHILD = """
import json, sys, time, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from excise.cli import run
from excise.cli.app import app
began = time.perf_counter()
status = run(app, sys.argv[1:])
status_file = Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) for line in status_file if line.startswith("VmHWM"))
print(json.dumps({"status": status, "peak": peak / 1e6, "seconds": time.perf_counter() - began, "busy": time.process_time()}))
"""


def timed(calls: list[Callable[[], Any]], repeat: int) -> tuple[list[float], list[float]]:
    """Best seconds of each call, by the clock and of the processor; the calls take turns, after one round to warm up."""
    wall: list[list[float]] = [[] for _ in calls]
    busy: list[list[float]] = [[] for _ in calls]
    for _ in range(repeat + 1):
        for i, call in enumerate(calls):
            time.sleep(0.2)
            clock, used = time.perf_counter(), time.process_time()
            call()
            wall[i].append(time.perf_counter() - clock)
            busy[i].append(time.process_time() - used)
    return [min(w[1:]) for w in wall], [min(b[1:]) for b in busy]


def blocks(n: int) -> Any:
    """(X, z) of 25,000 rows at a time."""
    rng = np.random.default_rng(0)
    base = rng.standard_normal((BLOCK, D), dtype=np.float32)
    for begin in range(0, n, BLOCK):
        z = rng.integers(0, 2, min(BLOCK, n - begin))
        yield base[: len(z)] + rng.standard_normal(D, dtype=np.float32) + 0.2 * z[:, None].astype(np.float32), z


def write_parquet(path: Path, n: int, codec: str, group: int) -> None:
    schema = pa.schema([("embedding", pa.list_(pa.float32(), D)), ("z", pa.int64())])
    held: list[Any] = []
    with pq.ParquetWriter(path, schema, compression=codec, use_dictionary=False) as writer:
        for X, z in blocks(n):
            lists = pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), type=schema.field(0).type)
            held.append(pa.record_batch([lists, pa.array(z)], schema=schema))
            if len(held) * BLOCK >= min(group, n):
                writer.write_table(pa.Table.from_batches(held), row_group_size=group)
                held = []


def write_npy(path: Path, labels: Path, n: int) -> None:
    X = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, D))
    z = np.zeros(n, np.int64)
    for i, (part, codes) in enumerate(blocks(n)):
        X[i * BLOCK : i * BLOCK + len(part)], z[i * BLOCK : i * BLOCK + len(part)] = part, codes
    X.flush()
    np.save(labels, z)


def read_alone(path: Path) -> None:
    """What pyarrow takes, with the settings that keep its memory small."""
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=2**18) as file:
        for _ in file.iter_batches(8192):
            pass


def update_alone(n: int, X: Any, z: Any) -> None:
    """As many rows as the file has, from a block of them in memory."""
    m = excise.Moments()
    rows = 2**26 // (4 * D)  # as in a batch of a file
    for begin in range(0, n, rows):
        count = min(rows, n - begin)
        m.update(X[:count], z[:count])


def streaming(folder: Path, n: int, repeat: int) -> list[Result]:
    X, z = next(blocks(BLOCK))
    out: list[Result] = []
    for codec in ("none", "zstd"):
        path = folder / f"{codec}.parquet"
        wall, busy = timed(
            [
                lambda p=path: read_alone(p),  # type: ignore[misc]
                lambda: update_alone(n, X, z),
                lambda p=path: fit_table(open_table(p, concept=["z"])),  # type: ignore[misc]
            ],
            repeat,
        )
        out += _stream_results(f"Parquet, {codec}", n, wall, busy)
    wall, busy = timed(
        [
            lambda: np.load(folder / "x.npy", mmap_mode="r").sum(dtype=np.float32),
            lambda: update_alone(n, X, z),
            lambda: fit_table(open_table(folder / "x.npy", folder / "z.npy")),
        ],
        repeat,
    )
    return out + _stream_results(".npy", n, wall, busy)


def _stream_results(what: str, n: int, wall: list[float], busy: list[float]) -> list[Result]:
    read, update, fit = wall
    return [
        (
            f"fit from {what}, {n:,} x {D}: times the larger of reading ({read:.2f} s) and updating ({update:.2f} s)",
            fit / max(read, update),
            "x",
            "<= 1.3",
        ),
        (
            f"fit from {what}: processor seconds, times the sum of reading ({busy[0]:.2f}) and updating ({busy[1]:.2f})",
            busy[2] / (busy[0] + busy[1]),
            "x",
            "",
        ),
    ]


def rewriting(folder: Path, n: int, repeat: int) -> list[Result]:
    out: list[Result] = []
    for codec in ("none", "zstd"):
        path, target = folder / f"{codec}.parquet", folder / "out.parquet"
        eraser = fit_table(open_table(path, concept=["z"])).eraser

        def plain(path: Path = path, target: Path = target, codec: str = codec) -> None:
            with (
                pq.ParquetFile(path, pre_buffer=False, buffer_size=2**18) as file,
                pq.ParquetWriter(target, file.schema_arrow, compression=codec, use_dictionary=False) as writer,
            ):
                for batch in file.iter_batches(8192):
                    writer.write_batch(batch, row_group_size=BLOCK * 5)

        def ours(path: Path = path, target: Path = target, eraser: Any = eraser) -> None:
            from excise.data.applying import apply_eraser, open_for

            apply_eraser(eraser, open_for(eraser, path), path, str(target), overwrite=True)

        (theirs, own), (busy_theirs, busy_own) = timed([plain, ours], repeat)
        name = f"apply to Parquet, {codec}, {n:,} x {D}"
        out += [
            (f"{name}: times a plain read and rewrite ({theirs:.2f} s)", own / theirs, "x", "<= 1.5"),
            (f"{name}: the same in processor seconds", busy_own / busy_theirs, "x", ""),
        ]
        target.unlink()
    return out


def memory(folder: Path, n: int) -> list[Result]:
    """Peaks of resident memory of the command, mapped files included."""
    out: list[Result] = []
    for what, data in (
        ("Parquet, one row group", ["big.parquet", "-c", "z", "-f", "embedding"]),
        (".npy", ["x.npy", "z.npy"]),
    ):
        fitted = _child(folder, ["fit", *data, "-o", "eraser", "--overwrite", "--json"])
        target = "erased" + Path(data[0]).suffix
        applied = _child(folder, ["apply", "eraser", data[0], "-o", target, "--overwrite", "--json"])
        (folder / target).unlink()
        size = (folder / data[0]).stat().st_size / 1e9
        for verb, found in (("fit", fitted), ("apply", applied)):
            out.append((f"memory of {verb}, {what} of {size:.1f} GB", found["peak"], " GB", "< 1.5"))
    return out


def _child(folder: Path, arguments: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        encoding="utf-8",
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if found["status"] not in (0, 1):
        raise RuntimeError(done.stderr)
    return found


def workers(folder: Path, n: int, repeat: int) -> list[Result]:
    from excise.distributed import connected, gather_on

    path = folder / "none.parquet"
    with connected(workers=1) as one, connected(workers=2) as two:
        calls = [
            lambda c=client: fit_table(open_table(path, concept=["z"]), run=gather_on(c))  # type: ignore[misc]
            for client in (one, two)
        ]
        (alone, both), _ = timed(calls, repeat)
    return [(f"two Dask workers against one ({alone:.2f} s), {n:,} x {D}: times as fast", alone / both, "x", ">= 1.6")]


def auditing(folder: Path, n: int, limit: str) -> list[Result]:
    _child(folder, ["fit", "x.npy", "z.npy", "-o", "eraser", "--overwrite"])
    found = _child(folder, ["audit", "x.npy", "z.npy", "-e", "eraser", "--quick"])
    what = f"audit --quick of {n:,} x {D}"
    return [(what, found["seconds"], " s", limit), (f"{what}: processor seconds", found["busy"], " s", "")]


def run(full: bool = False, only: tuple[str, ...] = ()) -> list[Result]:
    warnings.simplefilter("ignore")
    n, repeat = (2_000_000, 2) if full else (200_000, 4)
    audited, limit = (1_000_000, "<= 60") if full else (100_000, "<= 60")
    results: list[Result] = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("EXCISE_BENCH_FOLDER")) as name:
        folder = Path(name)
        for codec in ("none", "zstd"):
            write_parquet(folder / f"{codec}.parquet", n, codec, BLOCK * 4)
        write_npy(folder / "x.npy", folder / "z.npy", n)

        def remember() -> list[Result]:
            write_parquet(folder / "big.parquet", 1_000_000 if full else n, "none", 10**7)
            found = memory(folder, n)
            (folder / "big.parquet").unlink()
            return found

        def audit() -> list[Result]:
            write_npy(folder / "x.npy", folder / "z.npy", audited)
            return auditing(folder, audited, limit)

        parts: dict[str, Callable[[], list[Result]]] = {
            "streaming": lambda: streaming(folder, n, repeat),
            "rewriting": lambda: rewriting(folder, n, repeat),
            "workers": lambda: workers(folder, n, repeat),
            "memory": remember,
            "audit": audit,
        }
        for part, call in parts.items():
            if only and part not in only:
                continue
            found = call()
            results += found
            for what, figure, unit, wanted in found:
                print(f"{figure:8.2f}{unit:3} (limit {wanted:6})  {what}", flush=True)
    return results
