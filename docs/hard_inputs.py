"""The table of hard inputs on the page about numerics, computed when the site is built.

    python docs/hard_inputs.py

For each input: the largest distance between two class means over all features, in standard deviations, before and after, for
excise and for concept-erasure 0.2.4 with its default options. Means are taken in float64 whatever the dtype.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).parent / "reference" / "hard-inputs.txt"


def gap(X: Any, z: Any) -> float:
    X = np.asarray(X, dtype=np.float64)
    spread = X.std(0)
    used = spread > 0
    centre = X.mean(0)
    return max(float(np.max(np.abs(X[z == c].mean(0) - centre)[used] / spread[used])) for c in np.unique(z))


def inputs() -> dict[str, tuple[Any, Any]]:
    rng = np.random.default_rng(0)

    def made(n: int, d: int, k: int) -> tuple[Any, Any]:
        z = rng.integers(0, k, n)
        return rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) + rng.standard_normal((k, d))[z], z

    out: dict[str, tuple[Any, Any]] = {}
    X, z = made(20_000, 20, 3)
    out["plain: 20,000 x 20, three classes"] = (X, z)
    out["offset of a million"] = (X + 1e6, z)
    out["units from 1e-8 to 1e8"] = (X * np.logspace(-8, 8, 20), z)
    rare = np.zeros(200_020, dtype=int)
    rare[:20] = 1
    Y = rng.standard_normal((200_020, 20))
    Y[:20] += 1.0
    out["20 rows of a class among 200,000"] = (Y, rare)
    out["every feature twice"] = (np.hstack([X, X]), z)
    few, few_z = made(60, 200, 2)
    out["60 rows, 200 features"] = (few, few_z)
    out["float32, offset of 1,000"] = ((X + 1e3).astype(np.float32), z)
    normed = (X - X.mean(1, keepdims=True)) / X.std(1, keepdims=True)
    out["output of a LayerNorm, float32"] = (normed.astype(np.float32), z)
    many, many_z = made(20_000, 120, 100)
    out["100 classes"] = (many, many_z)
    return out


def by_reference(X: Any, z: Any) -> float:
    import torch
    from concept_erasure import LeaceEraser

    x, labels = torch.from_numpy(np.ascontiguousarray(X)), torch.from_numpy(np.eye(int(z.max()) + 1)[z])
    return gap(LeaceEraser.fit(x, labels.to(x.dtype))(x).numpy(), z)


def table() -> str:
    import excise

    lines = ["| input | before | excise | concept-erasure 0.2.4 |", "|---|---|---|---|"]
    for name, (X, z) in inputs().items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours = gap(excise.fit(X, z, kind="categorical")(X), z)
            try:
                theirs = f"{by_reference(X, z):.0e}"
            except ImportError:
                theirs = "not installed"
            except (RuntimeError, AssertionError, ValueError) as error:
                theirs = f"fails ({type(error).__name__})"
        lines.append(f"| {name} | {gap(X, z):.2g} | {ours:.0e} | {theirs} |")
    return "\n".join(lines) + "\n"


def write() -> None:
    """At each build, unless the table is there already: `make clean` removes it."""
    FILE.parent.mkdir(exist_ok=True)
    if not FILE.exists():
        FILE.write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    print(table())
