"""The table of the README: excise beside the alternatives, on one data set, in one process.

    python -m benchmarks.alternatives            # prints the table as Markdown

The data are made on the spot: 4,000 rows to fit, 4,000 others to measure, 50 correlated features of unit variance, four classes of which one
has 42 rows. INLP, RLACE and SAL are our implementations, since their authors' code is not on PyPI; concept-erasure and fairlearn are the
packages themselves, with default options.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import excise

N, D, CLASSES = 4_000, 50, 4


@dataclass(frozen=True)
class Row:
    name: str
    left: float  # largest canonical correlation with the concept on the fitting rows
    rare: float  # distance of the rare class's mean, in standard deviations
    accuracy: float  # of a linear classifier on other rows
    edit: float  # share of the variance of the standardised features
    seconds: float
    labels: bool


def make(seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    z = rng.choice(CLASSES, 2 * N, p=[0.5, 0.3, 0.19, 0.01])
    mixing = rng.standard_normal((D, D)) * np.exp(rng.standard_normal(D))[:, None] / np.sqrt(D)
    X = rng.standard_normal((2 * N, D)) @ mixing + 1.2 * rng.standard_normal((CLASSES, D))[z]
    return X / X.std(0), z


def one_hot(z: Any) -> Any:
    return np.eye(CLASSES)[z]


def canonical(X: Any, z: Any) -> float:
    """The largest canonical correlation, by QR of the standardised rows."""
    A = X - X.mean(0)
    scale = A.std(0)
    A = A[:, scale > 0] / scale[scale > 0]
    U, s, _ = np.linalg.svd(A, full_matrices=False)
    Z = one_hot(z) - one_hot(z).mean(0)
    Q = np.linalg.svd(Z, full_matrices=False)[0][:, : CLASSES - 1]
    return float(np.linalg.norm(U[:, s > 1e-10 * s[0]].T @ Q, 2))


def concept_erasure(X: Any, z: Any) -> Callable[[Any, Any], Any]:
    import torch
    from concept_erasure import LeaceEraser

    eraser = LeaceEraser.fit(torch.from_numpy(X), torch.from_numpy(one_hot(z)))
    return lambda X, _z: eraser(torch.from_numpy(X)).numpy()


def fairlearn(X: Any, z: Any) -> Callable[[Any, Any], Any]:
    from fairlearn.preprocessing import CorrelationRemover

    columns = list(range(D, D + CLASSES - 1))
    remover = CorrelationRemover(sensitive_feature_ids=columns)
    remover.fit(np.hstack([X, one_hot(z)[:, 1:]]))
    return lambda X, z: remover.transform(np.hstack([X, one_hot(z)[:, 1:]]))


def own(method: str, **options: Any) -> Callable[[Any, Any], Callable[[Any, Any], Any]]:
    return lambda X, z: excise.fit(X, z, method=method, **options)


METHODS: dict[str, tuple[Callable[[Any, Any], Callable[[Any, Any], Any]], bool]] = {
    "nothing": (lambda X, z: lambda X, z: X, False),
    "**excise**, LEACE": (own("leace"), False),
    "concept-erasure 0.2.4, LEACE": (concept_erasure, False),
    "INLP": (own("inlp"), False),
    "RLACE, rank 3": (own("rlace", rank=3), False),
    "SAL": (own("sal"), False),
    "**excise**, oracle": (own("oracle"), True),
    "fairlearn, CorrelationRemover": (fairlearn, True),
}


def measure(name: str, fit: Callable[[Any, Any], Callable[[Any, Any], Any]], labels: bool) -> Row:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, z = make()
    fitting, other = slice(0, N), slice(N, 2 * N)
    fit(X[:1000], z[:1000])  # imports, and whatever else is done once
    start = time.process_time()
    eraser = fit(X[fitting], z[fitting])
    seconds = time.process_time() - start
    erased, new = eraser(X[fitting], z[fitting]), eraser(X[other], z[other])
    scale = X[fitting].std(0)
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=3000)).fit(new[::2], z[other][::2])
    return Row(
        name,
        canonical(erased, z[fitting]),
        float(np.linalg.norm((erased[z[fitting] == 3].mean(0) - erased.mean(0)) / scale)),
        float(probe.score(new[1::2], z[other][1::2])),
        float((((erased - X[fitting]) / scale) ** 2).mean()),
        seconds,
        labels,
    )


def rows() -> list[Row]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [measure(name, fit, labels) for name, (fit, labels) in METHODS.items()]


def table(found: list[Row]) -> str:
    lines = [
        "| method | left on the fitting rows | rare class | accuracy, new rows | edit | fit, ms of CPU | labels to apply |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found:
        lines.append(
            f"| {row.name} | {row.left:.1g} | {row.rare:.1g} | {row.accuracy:.3f} | {100 * row.edit:.1f}% | {1000 * row.seconds:.0f} | "
            f"{'yes' if row.labels else 'no'} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    share = np.bincount(make()[1][N:]).max() / N
    print(table(rows()))
    print(f"\nThe largest class has {share:.3f} of the rows.")
