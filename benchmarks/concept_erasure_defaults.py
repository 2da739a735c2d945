"""Defaults of concept-erasure 0.2.4 beside ours: the figures of docs/from-concept-erasure.md.

python -m benchmarks.concept_erasure_defaults
"""

from __future__ import annotations

import json
import subprocess
import warnings
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

import excise
from benchmarks.__main__ import RESULTS, hardware


def correlation(X: Any, Z: Any) -> float:
    X, Z = np.asarray(X, dtype=float), np.asarray(Z, dtype=float).reshape(len(X), -1)
    Xc, Zc = X - X.mean(0), Z - Z.mean(0)
    varies = Xc.std(0) > 1e-12
    return float(np.abs(Xc[:, varies].T @ Zc / len(X) / np.outer(Xc.std(0)[varies], Zc.std(0))).max())


def one_hot(z: Any) -> Any:
    return (np.asarray(z)[:, None] == np.unique(z)[None, :]) * 1.0


def theirs(X: Any, z: Any, **options: Any) -> Any:
    from concept_erasure import LeaceEraser

    x, labels = torch.from_numpy(X), torch.from_numpy(np.asarray(z)).to(torch.from_numpy(X).dtype)
    return LeaceEraser.fit(x, labels, **options)(x).numpy()


def figures() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    out: dict[str, Any] = {}

    def case(name: str, X: Any, z: Any, Z: Any, given: dict[str, Any]) -> None:
        left = {how: correlation(theirs(X, labels), Z) for how, labels in given.items()}
        out[name] = {"before": correlation(X, Z), **left, "excise": correlation(excise.erase(X, z), Z)}

    z = rng.integers(0, 4, 4000)
    X = rng.standard_normal((4000, 20)) + rng.standard_normal((4, 20))[z]
    case("four classes as integers", X, z, one_hot(z), {"integers": z, "one-hot": one_hot(z)})
    z = (np.arange(50_000) < 50).astype(int)
    X = rng.standard_normal((50_000, 10))
    X[:, 0] += 0.2 * z
    case("a class of 50 rows in 50,000", X, z, one_hot(z), {"one-hot": one_hot(z)})
    number = rng.standard_normal(5000)
    X = rng.standard_normal((5000, 10)) + number[:, None]
    case("a number in small units", X, number * 1e-3, number, {"number": number * 1e-3})
    z = rng.integers(0, 2, 4000)
    X = (rng.standard_normal((4000, 20)) + 0.5 * z[:, None] + 100).astype(np.float32)
    case("float32 with a mean of 100", X, z, one_hot(z), {"one-hot": one_hot(z)})

    z = rng.integers(0, 2, 400)
    X = rng.standard_normal((400, 30)) * np.geomspace(1, 1e-2, 30) @ np.linalg.qr(rng.standard_normal((30, 30)))[0]
    X = X + 0.05 * z[:, None]
    edits = {
        "defaults": theirs(X, one_hot(z)),
        "shrinkage and constrain_cov_trace off": theirs(X, one_hot(z), shrinkage=False, constrain_cov_trace=False),
        "excise": excise.erase(X, z),
    }
    out["edit, share of variance"] = {
        name: float(((Y - X) ** 2).sum(1).mean() / X.var(0).sum()) for name, Y in edits.items()
    }
    z = rng.integers(0, 3, 5000)
    X = rng.standard_normal((5000, 20)) + rng.standard_normal((3, 20))[z]
    same = theirs(X, one_hot(z), shrinkage=False) - excise.erase(X, z, shrinkage="none")
    out["largest difference with shrinkage off"] = float(np.abs(same).max())
    return out


def main() -> None:
    warnings.simplefilter("ignore")
    found = figures()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, encoding="utf-8"
    ).stdout
    packages = ("excise", "numpy", "torch", "concept-erasure")
    record = {
        "hardware": hardware(),
        "versions": {package: version(package) for package in packages},
        "commit": commit.strip(),
        "results": found,
    }
    (RESULTS / "methods-from-concept-erasure.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
