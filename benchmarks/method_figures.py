"""Figures behind docs/unit-vectors.md and docs/methods.md, on real data. Each part is kept on its own.

    python -m benchmarks.method_figures PART --data FOLDER [--embeddings minilm.npz]

PART is unit-vectors, conditional, alf-word2vec, alf-minilm, alf-adult, rlace, shrinkage or insignificant. FOLDER holds
w2v_gender.npz and adult.parquet; the .npz of MiniLM embeddings holds X, z and g (a group per row).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import excise
from benchmarks.__main__ import RESULTS, hardware

Erase = Callable[[Any], Any]


def word2vec(folder: Path) -> tuple[Any, Any]:
    """Male against female words, shuffled."""
    with np.load(folder / "w2v_gender.npz", allow_pickle=False) as stored:
        X, y = stored["X_int8"].astype(np.float64) * stored["scale"], stored["y"]
    order = np.random.default_rng(0).permutation(np.flatnonzero(y >= 0))
    return X[order], y[order]


def adult(folder: Path) -> tuple[Any, Any, Any, Any, list[str]]:
    """Complete rows: features (numbers and 0/1, standardised by the training rows), sex, income, training rows, names."""
    import pandas as pd

    table = pd.read_parquet(folder / "adult.parquet").dropna()
    numbers = ["age", "education_num", "capital_gain", "capital_loss", "hours_per_week"]
    kinds = ["workclass", "education", "marital_status", "occupation", "relationship", "race", "native_country"]
    frame = pd.concat(
        [table[numbers].astype(float), *(pd.get_dummies(table[c], prefix=c).astype(float) for c in kinds)], axis=1
    )
    train = (table["split"] == "train").to_numpy()
    X = frame.to_numpy()
    spread = X[train].std(0)
    X = (X - X[train].mean(0)) / np.where(spread > 0, spread, 1.0)
    return (
        X,
        (table["sex"] == "Male").to_numpy().astype(int),
        (table["income"] == ">50K").to_numpy().astype(int),
        train,
        list(frame.columns),
    )


def minilm(path: Path) -> tuple[Any, Any]:
    with np.load(path, allow_pickle=False) as stored:
        X, z, g = stored["X"].astype(np.float64), stored["z"], stored["g"]
    people = np.random.default_rng(0).permutation(np.unique(g))
    order = np.argsort(np.argsort(people)[np.searchsorted(np.unique(g), g)], kind="stable")  # a person's rows together
    return X[order], (z[order] == "M").astype(int)


def unit(X: Any) -> Any:
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def r_squared(X: Any, z: Any, X_new: Any = None, z_new: Any = None) -> float:
    """R^2 of the best linear predictor of z: on its own rows by least squares, on new ones by ridge."""
    from sklearn.linear_model import LinearRegression, RidgeCV

    if X_new is None:
        return float(LinearRegression().fit(X, z).score(X, z))
    scale = np.sqrt(X.var(0).mean())
    model = RidgeCV(alphas=np.geomspace(1e-2, 1e6, 17)).fit(X / scale, z)
    return float(model.score(X_new / scale, z_new))


def unit_vectors(data: Path, embeddings: Path | None) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    z = rng.integers(0, 2, 6000)
    hard = (
        rng.standard_normal((6000, 40)) * np.where(z[:, None] == 1, 0.5, 1.5)
        + 0.8 * z[:, None]
        + rng.standard_normal(40)
    )
    sets = {"word2vec": word2vec(data), "synthetic": (hard, z)}
    if embeddings is not None:
        sets["MiniLM"] = minilm(embeddings)
    out: dict[str, Any] = {}
    for name, (X, z) in sets.items():
        half = len(X) // 2
        Xa, za, Xb, zb = X[:half], z[:half], X[half:], z[half:]
        plain, ours = excise.fit(Xa, za), excise.fit(Xa, za, normalize=True)
        rows: dict[str, Any] = {}
        for method, erase in (
            ("before, unit vectors", unit),
            ("leace", plain),
            ("leace, then normalised", lambda x, plain=plain: unit(plain(x))),
            ("leace twice, then normalised", lambda x, Xa=Xa, za=za: _twice(Xa, za, x)),
            ("normalize=True", ours),
        ):
            a, b = erase(Xa), erase(Xb)
            third = len(b) // 2
            rows[method] = {
                "r2_fit": r_squared(a, za),
                "r2_new": r_squared(b[:third], zb[:third], b[third:], zb[third:]),
                "cosine": float((unit(a) * unit(Xa)).sum(1).mean()),
            }
        out[name] = {
            "n": half,
            "d": X.shape[1],
            "rounds": ours.info["rounds"],
            "residual": ours.info["residual"],
            "rows": rows,
        }
        print(name, json.dumps(out[name], indent=1), flush=True)
    return out


def _twice(Xa: Any, za: Any, x: Any) -> Any:
    first = excise.fit(Xa, za)
    second = excise.fit(unit(first(Xa)), za)
    return unit(second(unit(first(x))))


def conditional(data: Path, embeddings: Path | None) -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegression

    X, z, y, train, _ = adult(data)

    def figures(erase: Callable[..., Any], labels: bool = False) -> dict[str, float]:
        a = erase(X[train], z[train]) if labels else erase(X[train])
        b = erase(X[~train], z[~train]) if labels else erase(X[~train])
        model = LogisticRegression(max_iter=2000).fit(a, y[train])
        score, yb, zb = model.decision_function(b), y[~train], z[~train]
        said = score > 0
        cell = [[(yb == c) & (zb == g) for g in (0, 1)] for c in (0, 1)]
        return {
            "accuracy": float((said == yb).mean()),
            "equalised_odds_gap": float(max(abs(said[c[0]].mean() - said[c[1]].mean()) for c in cell)),
            "score_gap_given_y": float(max(abs(score[c[0]].mean() - score[c[1]].mean()) for c in cell) / score.std()),
            "parity_gap": float(abs(said[zb == 0].mean() - said[zb == 1].mean())),
        }

    a = X[train], z[train]
    out: dict[str, Any] = {"rows": int(train.sum()), "test_rows": int((~train).sum()), "features": X.shape[1]}
    out["none"] = figures(lambda x: x)
    out["leace"] = figures(excise.fit(*a))
    out["splince"] = figures(excise.fit(*a, "splince", y=y[train]))
    out["oracle"] = figures(excise.fit(*a, "oracle"), labels=True)
    out["leace, condition_on=income"] = figures(excise.fit(*a, condition_on=y[train]))
    print(json.dumps(out, indent=1))
    return out


def probes(a: Any, za: Any, b: Any, zb: Any) -> dict[str, float]:
    """Held-out accuracy of nonlinear probes on erased rows."""
    from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.svm import SVC

    scale = np.sqrt(a.var(0).mean())
    center = a.mean(0)
    a, b = (a - center) / scale, (b - center) / scale
    models = {
        "rbf": SVC(),
        "mlp": MLPClassifier((100,), early_stopping=True, max_iter=60, random_state=0),
        "qda": QuadraticDiscriminantAnalysis(reg_param=0.1) if np.bincount(za).min() > a.shape[1] else None,
        "trees": HistGradientBoostingClassifier(max_iter=60, random_state=0),
    }
    known = {name: model for name, model in models.items() if model is not None}  # QDA needs rows
    return {name: float(model.fit(a, za).score(b, zb)) for name, model in known.items()}


def alf(X: Any, z: Any, fit_rows: int, probe_rows: int, test_rows: int) -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegression

    Xf, zf = X[:fit_rows], z[:fit_rows]
    a = slice(fit_rows, fit_rows + probe_rows)
    b = slice(fit_rows + probe_rows, fit_rows + probe_rows + test_rows)
    d = X.shape[1]
    m = excise.ClassMoments().update(Xf, zf)
    whole = m.to_moments()
    total = float(whole.var_x.sum())
    out: dict[str, Any] = {
        "rows": [len(Xf), probe_rows, test_rows],
        "d": d,
        "majority": float(max(np.bincount(z[b])) / len(z[b])),
    }
    plan: list[tuple[str, Any]] = [("none", None), ("leace", excise.leace(whole))]
    plan += [(f"alf rank {q}", excise.alf(m, rank=q)) for q in (8, 16, 48) if q < d - 4]
    plan += [("alf target 0.9", excise.alf(m, target=0.9))]
    plan += [(f"fair_pca covariance, {q} removed", _fair(m, q)) for q in (16, 48) if q < d - 4]
    plan += [("quadratic (labels)", excise.quadratic(m, shrinkage="auto"))]
    for name, eraser in plan:
        start = time.perf_counter()
        if eraser is None:
            f: Any = lambda x, z: x  # noqa: E731
        else:
            f = eraser
        xa, xb, xf = f(X[a], z[a]), f(X[b], z[b]), f(Xf, zf)
        found = probes(xa, z[a], xb, z[b])
        scale = np.sqrt(xa.var(0).mean())
        found["linear"] = float(LogisticRegression(max_iter=500).fit(xa / scale, z[a]).score(xb / scale, z[b]))
        found["edit"] = float(((xf - Xf) ** 2).sum(1).mean() / total)
        found["rank"] = 0 if eraser is None else int(getattr(eraser, "rank", d))
        out[name] = {k: round(v, 4) for k, v in found.items()}
        print(f"{name}: {out[name]} ({time.perf_counter() - start:.0f} s)", flush=True)
    return out


def _fair(m: Any, removed: int) -> Any:
    left = m.d - removed - (len(m.names) - 1)
    return excise.fair_pca(m, n_components=left, constraint="covariance", candidates=left)


def alf_word2vec(data: Path, embeddings: Path | None) -> dict[str, Any]:
    return alf(*word2vec(data), 7000, 2500, 2500)


def alf_minilm(data: Path, embeddings: Path | None) -> dict[str, Any]:
    assert embeddings is not None
    X, z = minilm(embeddings)
    keep = X.std(0) > 1e-6 * X.std(0).mean()
    return alf(X[:, keep], z, 1600, 800, 800)


def alf_adult(data: Path, embeddings: Path | None) -> dict[str, Any]:
    X, z, _, _, _ = adult(data)
    keep = X.std(0) > 0
    order = np.random.default_rng(0).permutation(len(X))
    return alf(X[order][:, keep], z[order], 20_000, 5000, 5000)


def rlace(data: Path, embeddings: Path | None) -> dict[str, Any]:
    """Accuracy of a linear classifier on test rows after RLACE of rank 1, over seeds."""
    from sklearn.linear_model import LogisticRegression

    with np.load(data / "w2v_gender.npz", allow_pickle=False) as stored:
        X, y, split = stored["X_int8"].astype(np.float32) * stored["scale"], stored["y"], stored["split"]
    keep = y >= 0
    X, y, split = X[keep], y[keep], split[keep]
    out: dict[str, Any] = {}
    for name, options in (("default", {}), ("select_on='training'", {"select_on": "training"})):
        found = []
        for seed in range(3):
            eraser = excise.fit(X[split == 0], y[split == 0], "rlace", rank=1, seed=seed, **options)
            model = LogisticRegression(C=10.0, max_iter=2000).fit(eraser(X[split == 0]), y[split == 0])
            found.append(float(model.score(eraser(X[split == 2]), y[split == 2])))
        out[name] = found
        print(name, found, flush=True)
    return out


def shrinkage(data: Path, embeddings: Path | None) -> dict[str, Any]:
    """Edit of new rows (share of variance) and what a ridge finds there, without and with OAS, against rows per feature."""
    sets = {"word2vec": word2vec(data)}
    if embeddings is not None:
        sets["MiniLM"] = minilm(embeddings)
    out: dict[str, Any] = {}
    for name, (X, z) in sets.items():
        X = X[:, X.std(0) > 1e-6 * X.std(0).mean()]
        d = X.shape[1]
        table = []
        for ratio in (0.5, 1, 2, 3, 5, 7, 10, 15, 20):
            n = int(ratio * d)
            if n > 0.7 * len(X):
                break
            row: dict[str, Any] = {"rows_per_feature": ratio}
            new, zn = X[n:], z[n:]
            half = len(new) // 2
            for how in ("none", "oas"):
                eraser = excise.fit(X[:n], z[:n], shrinkage=how)
                erased = eraser(new)
                row[how] = {
                    "edit": float(((erased - new) ** 2).sum(1).mean() / new.var(0).sum()),
                    "r2_new": r_squared(erased[:half], zn[:half], erased[half:], zn[half:]),
                }
            table.append(row)
            print(name, row, flush=True)
        out[name] = table
    return out


def insignificant(data: Path, embeddings: Path | None) -> dict[str, Any]:
    """Adult: leave features unedited whose covariance with sex is not significant; what it costs and what it saves."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import log_loss

    X, z, _, _, _ = adult(data)
    X = X[:, X.std(0) > 0]
    order = np.random.default_rng(0).permutation(len(X))
    a, b, c = order[:2400], order[2400:4800], order[4800:12000]
    base = float(-np.mean(np.log2(np.where(z[c] == 1, z[b].mean(), 1 - z[b].mean()))))
    out: dict[str, Any] = {"fit_rows": 2400}
    zc = z[a] - z[a].mean()
    t = X[a].T @ zc / len(a)
    noise = X[a].std(0) * zc.std() / np.sqrt(len(a))
    varying = (X[a] != np.median(X[a], axis=0)).sum(0)
    for name, edited in (
        ("all edited", np.ones(X.shape[1], bool)),
        ("|t| > 2 edited", np.abs(t) > 2 * noise),
        ("|t| > 4 edited", np.abs(t) > 4 * noise),
        ("vary in 20 rows or more edited", varying >= 20),
    ):
        eraser = excise.fit(X[a][:, edited], z[a])
        new = X.copy()
        new[:, edited] = eraser(X[:, edited])
        linear = _bits(new[b], z[b], new[c], z[c], base)
        trees = HistGradientBoostingClassifier(max_iter=60, random_state=0).fit(new[b], z[b])
        left = np.abs((new[a] - new[a].mean(0)).T @ zc / len(a)) / np.maximum(new[a].std(0) * zc.std(), 1e-12)
        out[name] = {
            "features_edited": int(edited.sum()),
            "largest_correlation_left_on_fit": float(left.max()),
            "r2_left_on_fit": r_squared(new[a], z[a].astype(float)),
            "linear_bits_new_rows": linear,
            "trees_bits_new_rows": base - float(log_loss(z[c], trees.predict_proba(new[c]))) / np.log(2),
            "edit": float(((new[a] - X[a]) ** 2).sum(1).mean() / X[a].var(0).sum()),
        }
        print(name, out[name], flush=True)
    out["before"] = {"linear_bits_new_rows": _bits(X[b], z[b], X[c], z[c], base)}
    return out


def _bits(a: Any, za: Any, b: Any, zb: Any, base: float) -> float:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss

    model = LogisticRegression(C=1.0, max_iter=3000).fit(a, za)
    return float(base - log_loss(zb, model.predict_proba(b)) / np.log(2))


PARTS: dict[str, Callable[[Path, Path | None], dict[str, Any]]] = {
    "unit-vectors": unit_vectors,
    "conditional": conditional,
    "alf-word2vec": alf_word2vec,
    "alf-minilm": alf_minilm,
    "alf-adult": alf_adult,
    "rlace": rlace,
    "shrinkage": shrinkage,
    "insignificant": insignificant,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--embeddings", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    found = PARTS[given.part](given.data, given.embeddings)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, encoding="utf-8"
    ).stdout
    record = {
        "hardware": hardware(),
        "versions": {package: version(package) for package in ("excise", "numpy", "scikit-learn")},
        "commit": commit.strip(),
        "results": found,
    }
    path = RESULTS / f"methods-{given.part}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"kept in {path}")


if __name__ == "__main__":
    main()
