"""Every method on the same split, as a table and by one command."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from commands import excise_command
from measure import leace_by_definition, one_hot
from sklearn.linear_model import LogisticRegression

import excise
from excise.methods.table import METHODS


@pytest.fixture
def people(rng):
    n = 900
    z, y = rng.choice(["f", "m"], n), rng.integers(0, 3, n)
    X = rng.standard_normal((n, 6)) + (z == "m")[:, None] * [2, 0, 0, 0, 0, 0] + rng.standard_normal((3, 6))[y]
    return X, z, y


QUICK = {"rlace": {"steps": 300}}


def test_all_methods_held_out(people, tmp_path):
    X, z, y = people
    result = excise.compare(X, z, y=y, options=QUICK)
    by_name = {o.method: o for o in result.outcomes}
    assert set(by_name) == {"none", "leace given y", *(m for m, about in METHODS.items() if about.same_map is None)}
    assert (result.n_fit, result.n_probe, result.n_held_out) == (450, 270, 180)
    assert by_name["none"].linear_loss < result.constant_loss - 0.2
    assert by_name["none"].edit == 0
    for method in ("leace", "sal", "splince", "fair_pca"):
        assert by_name[method].linear_loss == pytest.approx(result.constant_loss, abs=0.05)
        assert by_name[method].fitted_correlation < 1e-10
    assert by_name["random"].linear_loss < result.constant_loss - 0.1
    assert by_name["oracle"].needs_labels
    assert by_name["leace"].edit <= by_name["sal"].edit
    assert all(0 <= o.task_accuracy <= 1 and o.seconds >= 0 for o in result.outcomes)
    again = excise.compare(X, z, y=y, options=QUICK)
    assert [(o.linear_loss, o.edit) for o in again.outcomes] == [(o.linear_loss, o.edit) for o in result.outcomes]
    result.to_json(tmp_path / "c.json")
    assert json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))["outcomes"][0]["method"] == "none"
    result.to_csv(tmp_path / "c.csv")
    assert len(list(csv.DictReader((tmp_path / "c.csv").read_text(encoding="utf-8").splitlines()))) == len(
        result.outcomes
    )
    assert "| leace |" in str(result)


def penalised(X, z):
    """Logistic regression; of four penalties, the one with the least loss in three folds."""
    from sklearn.model_selection import GridSearchCV

    strengths = [1 / (penalty * len(z)) for penalty in (1e-3, 1e-2, 1e-1, 1.0)]
    search = GridSearchCV(LogisticRegression(tol=1e-6, max_iter=1000), {"C": strengths}, cv=3, scoring="neg_log_loss")
    return search.fit(X, z).best_estimator_


def test_figures_against_a_hand_computation(people):
    """The linear probe, the constant and the task's TPR gap, by scikit-learn and by counting."""
    X, z, y = people
    result = excise.compare(X, z, methods=["leace"], y=y, seed=3)
    from sklearn.model_selection import train_test_split

    codes = (z == "m").astype(int)
    _, rest = train_test_split(np.arange(900), test_size=0.5, stratify=codes, random_state=3)
    a, b = (np.sort(part) for part in train_test_split(rest, test_size=0.4, stratify=codes[rest], random_state=3))
    Xs = (X - X[a].mean(0)) / X[a].std(0)
    probe = penalised(Xs[a], codes[a])
    none = result.outcomes[0]
    assert none.linear_accuracy == pytest.approx((probe.predict(Xs[b]) == codes[b]).mean())
    assert none.linear_loss == pytest.approx(
        -np.log2(probe.predict_proba(Xs[b])[np.arange(180), codes[b]]).mean(), rel=1e-4
    )
    right = LogisticRegression(max_iter=2000).fit(Xs[a], y[a]).predict(Xs[b]) == y[b]
    gaps = [right[(y[b] == c) & (codes[b] == 1)].mean() - right[(y[b] == c) & (codes[b] == 0)].mean() for c in range(3)]
    # An erased row too: LEACE by its formula on the first half, in plain NumPy.
    first, _ = train_test_split(np.arange(900), test_size=0.5, stratify=codes, random_state=3)
    P, mean = leace_by_definition(X[first], one_hot(z[first]))
    erased = (X - mean) @ P.T + mean
    leace = result.outcomes[1]
    assert leace.edit == pytest.approx(((erased - X)[b] ** 2).sum() / ((X[b] - X[a].mean(0)) ** 2).sum(), rel=1e-6)
    Es = (erased - erased[a].mean(0)) / erased[a].std(0)
    probe = penalised(Es[a], codes[a])
    assert leace.linear_loss == pytest.approx(
        -np.log2(probe.predict_proba(Es[b])[np.arange(180), codes[b]]).mean(), rel=1e-4
    )
    assert none.tpr_gap == pytest.approx(np.sqrt(np.mean(np.square(gaps))))
    assert result.majority == pytest.approx(max(np.mean(codes[b]), 1 - np.mean(codes[b])))


def test_groups_stay_together_and_a_failing_method_is_a_row(people):
    X, z, _ = people
    result = excise.compare(X, z, methods=["leace", "splince"], groups=np.arange(900) // 7)
    assert all(
        n % 7 in (0, 4) for n in (result.n_fit, result.n_probe, result.n_held_out)
    )  # 128 groups of 7 and one of 4
    assert (result.n_fit, result.n_probe) != (450, 270)
    assert "not fitted" in result.outcomes[-1].note
    warned = excise.compare(X, z, methods=["inlp", "random"], options={"inlp": {"rounds": 1}})
    assert "not reached chance" in warned.outcomes[1].note
    assert "not reached chance" in str(warned)
    other = excise.compare(X, z, methods=["random"], seed=1)
    assert other.outcomes[-1].edit != warned.outcomes[-1].edit
    broken = excise.compare(X, z, methods=["inlp", "leace"], options={"inlp": {"classifier": "x"}})
    assert broken.outcomes[1].linear_loss is None
    assert broken.outcomes[2].linear_loss is not None
    half = excise.compare(X.astype(np.float16), z, methods=["leace"])
    assert np.isfinite(half.outcomes[-1].edit)
    for arguments, message in (
        ({"X": np.where(X[3, 2] == X, np.nan, X)}, "row 3, feature 2"),
        ({"groups": np.zeros(900)}, "at least 6"),
        ({"seed": -1}, "at least 0"),
        ({"options": {"leac": {}}}, "unknown method 'leac'"),
        ({"y": np.zeros(900, dtype=int)}, r"y \(the task\) has one class only"),
        ({"X": X[:, 0]}, "at least two dimensions"),
    ):
        with pytest.raises(excise.ExciseError, match=message):
            excise.compare(**{"X": X, "z": z, "methods": ["leace"], **arguments})
    with pytest.raises(excise.ExciseError, match="unknown method 'magic'"):
        excise.compare(X, z, methods=["magic"])
    with pytest.raises(excise.ConceptError, match="smallest class has 1 rows"):
        excise.compare(X, ["rare", *z[1:]])


def test_command(people, tmp_path):
    X, z, y = people
    for name, array in (("x", X), ("z", z), ("y", y)):
        np.save(tmp_path / f"{name}.npy", array)
    said = excise_command(
        "compare", tmp_path / "x.npy", tmp_path / "z.npy", "--y", tmp_path / "y.npy", "-m", "leace", "-m", "sal",
        "--json", tmp_path / "c.json", "--csv", tmp_path / "c.csv", "--figure", tmp_path / "c.png",
    )  # fmt: skip
    assert "| leace |" in said
    assert "TPR gap" in said
    assert (tmp_path / "c.png").stat().st_size > 10_000
    stored = {o["method"]: o for o in json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))["outcomes"]}
    assert set(stored) == {"none", "leace", "sal"}
    assert stored["leace"]["linear_loss"] > stored["none"]["linear_loss"] + 0.1
    assert 0 < stored["leace"]["edit"] <= stored["sal"]["edit"]
    assert (tmp_path / "c.csv").exists()


def test_command_keeps_groups_together(people, tmp_path):
    X, z, _ = people
    groups = np.arange(len(X)) // 7
    for name, array in (("x", X), ("z", z), ("g", groups)):
        np.save(tmp_path / f"{name}.npy", array)
    excise_command(
        "compare", tmp_path / "x.npy", tmp_path / "z.npy", "-m", "leace", "--groups", tmp_path / "g.npy",
        "--json", tmp_path / "c.json",
    )  # fmt: skip
    stored = {o["method"]: o for o in json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))["outcomes"]}
    same = excise.compare(X, z, methods=["leace"], groups=groups).outcomes[-1]
    assert stored["leace"]["linear_loss"] == same.linear_loss
    assert same.linear_loss != excise.compare(X, z, methods=["leace"]).outcomes[-1].linear_loss
