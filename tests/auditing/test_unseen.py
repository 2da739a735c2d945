"""What an audit says of rows that the eraser has not seen, of unit vectors, and of edits that write the concept."""

import warnings

import numpy as np
import pytest

import excise
from excise.auditing.conditional import columns_given


@pytest.fixture
def people(rng):
    z = rng.integers(0, 2, 1200)
    X = rng.standard_normal((1200, 6))
    X[:, :2] += z[:, None]
    return X, z


def test_an_eraser_is_fitted_again_with_its_own_options(people):
    """A weak eraser leaves what it leaves in new rows too; the full one leaves next to nothing."""
    X, z = people
    weak = excise.fit(X, z, strength=0.3)
    assert weak.info["options"] == {"strength": 0.3}
    found = excise.audit(X, z, eraser=weak, refit="leace", quick=True).held_out
    full = excise.audit(X, z, eraser=excise.fit(X, z), refit="leace", quick=True).held_out
    assert found.information > 0.8 * found.information_before > 0.1
    assert full.information < 0.02
    assert not found.own


def test_the_eraser_itself_on_rows_that_it_has_not_seen(rng, people):
    """Fitted on 60 rows of 6 features it leaves far more than d / n on 1,200; the figures are of this very eraser."""
    X, z = people
    few, zf = X[:60], z[:60]
    new_z = rng.integers(0, 2, 3000)
    new = rng.standard_normal((3000, 6))
    new[:, :2] += new_z[:, None]
    eraser = excise.fit(few, zf)
    report = excise.audit(few, zf, eraser=eraser, test=(new, new_z), quick=True)
    h = report.held_out
    assert report.guarded
    assert h.own
    assert (h.n, h.n_erase) == (3000, 60)
    # The same by hand: least squares on the erased new rows.
    Xe = np.column_stack([eraser(new), np.ones(3000)])
    r2 = 1 - ((new_z - Xe @ np.linalg.lstsq(Xe, new_z, rcond=None)[0]) ** 2).sum() / ((new_z - new_z.mean()) ** 2).sum()
    assert h.information == pytest.approx(-0.5 * np.log2(1 - r2), abs=0.02)
    assert report.settings["test"] == 3000
    assert "fitted on 60 rows of 6 features" in report.verdict[1]
    assert report.estimation.information == pytest.approx(-0.5 * np.log2(1 - 6 / 60))
    assert "3,000 test rows" in report.verdict[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"test": 3}, r"test must be \(X, z\) or \(X, z, y\)"),
        ({"test": (np.zeros((5, 6)), [0, 1, 0, 1, 0]), "eraser": None}, "pass eraser="),
        ({"test": (np.zeros((5, 4)), [0, 1, 0, 1, 0])}, "test=: X has 4 features"),
        ({"test": (np.ones((40, 6)), [0, 1] * 20), "refit": "leace"}, "leave refit= out"),
        ({"condition_on": [0, 1] * 600, "z": [0, 1] * 600}, "within every class of the task the concept is constant"),
        ({"condition_on": [0, 1]}, "condition_on"),
    ],
)
def test_what_does_not_fit_together(people, arguments, message):
    X, z = people
    with pytest.raises(excise.ExciseError, match=message):
        excise.audit(**{"X": X, "z": z, "eraser": excise.fit(X, z), "quick": True, **arguments})


def few_valued(rng, n=3000):
    """Indicators that say something of z, and one number."""
    z = rng.integers(0, 2, n)
    X = (rng.random((n, 5)) < 0.3 + 0.25 * z[:, None] * np.array([1, 1, 0, 0, 0])).astype(float)
    return np.column_stack([X, rng.standard_normal(n)]), z


def test_an_edit_that_writes_the_concept_is_said_first(rng):
    """The oracle shifts an indicator by class: its fraction gives the class away to trees. LEACE does not."""
    X, z = few_valued(rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        oracle = excise.fit(X, z, "oracle")
    report = excise.audit(X, z, eraser=oracle, quick=True)
    assert report.guarded
    assert report.verdict[0].startswith("This edit writes the concept into the data: boosted trees find")
    trees = next(p for p in report.probes if p.name == "boosted trees")
    assert trees.information > 0.9
    assert trees.information_before < 0.3
    assert trees in report.writes
    assert report.carriers
    assert all(c.values == 2 for c in report.carriers)  # any indicator; never the number
    assert "MORE THAN BEFORE" in str(report)
    assert report.carriers[0].feature in report.verdict[0]
    page = report._repr_html_()
    assert "More than before" in page
    assert "varies in rows" in page
    plain = excise.audit(X, z, eraser=excise.fit(X, z), quick=True)
    assert plain.writes == []
    assert not plain.verdict[0].startswith("This edit writes")


def test_compare_says_it_too(rng):
    X, z = few_valued(rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = excise.compare(X, z, methods=["leace", "oracle"])
    by_name = {o.method: o for o in found.outcomes}
    assert [o.method for o in found.outcomes if o.writes] == ["oracle"]
    assert by_name["oracle"].nonlinear_probe == "boosted trees"
    assert found.verdict[0].startswith("These edits write the concept into the data")
    assert by_name["leace"].linear_interval[0] < by_name["leace"].linear_loss < by_name["leace"].linear_interval[1]
    assert found.best("edit") == {"oracle"}
    assert "none" not in found.best("linear_loss")


def test_rare_indicators_are_named(rng):
    """Indicators that fire in two of the fitting rows and in none of the new ones carry the erased score."""
    n = 600
    z = rng.integers(0, 2, 2 * n)
    X = rng.standard_normal((2 * n, 4)) + 2 * z[:, None]
    rare = np.zeros((2 * n, 1))
    rare[np.flatnonzero(z[:n] == 1)[:2]] = 1
    X = np.column_stack([X, rare])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eraser = excise.fit(X[:n], z[:n])
    report = excise.audit(X[:n], z[:n], eraser=eraser, test=(X[n:], z[n:]), quick=True)
    assert report.guarded
    assert report.held_out.information > 0.3
    assert report.carriers[0].feature == "feature 4"
    assert any("carried by feature 4" in sentence for sentence in report.verdict)


def test_unit_vectors(rng):
    """A plain eraser of unit vectors: the audit says what normalising brings back, and judges it when asked."""
    n = 2000
    z = rng.integers(0, 2, n)
    X = rng.standard_normal((n, 5)) * np.where(z, 2.0, 0.7)[:, None] + 1.5 * z[:, None] + 1
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    eraser = excise.fit(X, z)
    report = excise.audit(X, z, eraser=eraser, quick=True)
    assert report.guarded
    back = report.brought_back
    E = eraser(X)
    unit = np.column_stack([E / np.linalg.norm(E, axis=1, keepdims=True), np.ones(n)])
    residual = z - unit @ np.linalg.lstsq(unit, z, rcond=None)[0]
    r2 = 1 - (residual**2).sum() / ((z - z.mean()) ** 2).sum()
    assert back.normalized == pytest.approx(np.sqrt(r2), rel=1e-6)
    assert back.normalized > 0.05 > back.erased
    assert any("fit with normalize=True" in sentence for sentence in report.verdict)
    judged = excise.audit(X, z, eraser=eraser, normalize=True, quick=True)
    assert not judged.guarded
    assert "divided by their lengths" in judged.verdict[0]
    assert excise.audit(3 * X, z, eraser=excise.fit(3 * X, z), quick=True).brought_back is None


def test_given_the_task(rng):
    """Centred within the classes of the task by hand: guarded given it, not guarded without."""
    n = 1500
    y, z = rng.integers(0, 3, n), rng.integers(0, 2, n)
    z = np.where(rng.random(n) < 0.3, (y > 1).astype(int), z)
    X = rng.standard_normal((n, 4)) + y[:, None] + z[:, None]
    centred = X.copy()
    for c in range(3):
        for g in range(2):
            own = (y == c) & (z == g)
            centred[own] += X[y == c].mean(axis=0) - X[own].mean(axis=0)
    given = excise.audit(X, z, X_erased=centred, condition_on=y, quick=True)
    assert given.guarded
    assert "within every class of the task" in given.verdict[0]
    assert not excise.audit(X, z, condition_on=y, quick=True).guarded
    assert not excise.audit(X, z, X_erased=centred, quick=True).guarded
    columns = columns_given(z, y, (n,), None)
    assert np.abs(columns.sum(axis=0)).max() < 1e-9
    assert np.abs((centred - centred.mean(axis=0)).T @ columns).max() < 1e-8


def test_nothing_left(rng):
    z = rng.integers(0, 4, 400)
    X = rng.standard_normal((400, 2)) + np.eye(4)[z][:, :2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = excise.audit(X, z, eraser=excise.fit(X, z), quick=True)
    assert report.guarded
    assert report.guardedness.nothing_left
    assert "Nothing is left of the features" in report.verdict[1]
    assert "Nothing is left" in report._repr_html_()
