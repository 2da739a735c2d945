"""Rows that the eraser has not seen: valid p-values, known sizes, said limits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstest

import excise
from excise.auditing.audit_data import read_audit_data
from excise.auditing.held_out import held_out, refitted, unseen_p_value
from excise.auditing.resampling import permutation_test
from excise.auditing.splits import chosen_rows, rotations

pytestmark = pytest.mark.filterwarnings("ignore::excise.ExciseWarning")


def run(X, z, refit, seed=0):
    data = read_audit_data(X, z, None, None, None)
    index, notes = chosen_rows(data.target, 10_000, seed)
    parts = rotations(data.target, index, None, seed)
    return held_out(data, parts, refitted(refit, None, {}), seed, notes, lambda what: None)


def nothing(X, z):
    return lambda X: X


def test_three_parts_are_disjoint_and_every_row_is_tested_once(rng):
    data = read_audit_data(rng.standard_normal((103, 2)), rng.integers(0, 2, 103), None, None, None)
    parts = rotations(data.target, np.arange(103), np.arange(103) // 3, 0)
    assert np.array_equal(np.sort(np.concatenate([p.test for p in parts])), np.arange(103))
    for p in parts:
        assert len({*p.erase, *p.train, *p.test}) == len(p.erase) + len(p.train) + len(p.test) == 103
        groups = [set(part // 3) for part in (p.erase, p.train, p.test)]
        assert len(set().union(*groups)) == sum(map(len, groups))


@pytest.mark.parametrize("d", [5, 60])
def test_p_value_is_uniform_without_signal(d):
    """500 small simulations through the very split and refit of the audit; n < d included."""
    values = []
    for seed in range(500):
        rng = np.random.default_rng(seed)
        data = read_audit_data(rng.standard_normal((60, d)), rng.integers(0, 2, 60), None, None, None)
        part = rotations(data.target, chosen_rows(data.target, 10_000, seed)[0], None, seed)[0]
        values.append(unseen_p_value(data, part, refitted("leace", None, {}), seed, permutations=199)[0])
    assert kstest(values, "uniform").pvalue > 0.01
    assert np.mean(np.array(values) < 0.05) < 0.09


def test_strong_concept_is_found_and_its_erasure_too(rng):
    n = 1500
    z = rng.integers(0, 2, n)
    X = rng.standard_normal((n, 5))
    X[:, 0] += 2.0 * z
    before, after = run(X, z, nothing), run(X, z, "leace")
    assert before.p_value < 0.001
    assert before.information == pytest.approx(before.information_before)
    assert before.information > 0.3
    assert before.accuracy > 0.8
    assert after.information_before == pytest.approx(before.information, abs=1e-9)
    assert after.interval[0] <= after.information <= after.interval[1]
    assert after.information < 0.01
    assert after.expected_from_estimation == pytest.approx(-0.5 * np.log2(1 - 5 / 600), rel=1e-6)
    assert after.constant_loss == pytest.approx(1.0, abs=3e-3)
    assert "independent" in after.null
    assert run(X, z, "leace") == after  # the same seed, the same answer


def test_bits_of_a_known_model(rng):
    """Two normal classes, means 2 apart: the best linear model gains 1 - h bits, known by integration."""
    from scipy.integrate import quad
    from scipy.stats import norm

    n = 20_000
    z = rng.integers(0, 2, n)
    X = rng.standard_normal((n, 3))
    X[:, 0] += 2.0 * z
    found = run(X, z, nothing)

    def surprise(x):
        a, b = norm.pdf(x), norm.pdf(x - 2)
        return -(a * np.log2(a / (a + b)) + b * np.log2(b / (a + b))) / 2

    truth = 1 - quad(surprise, -10, 12)[0]
    assert found.interval[0] - 0.002 < truth < found.interval[1] + 0.002


def test_power_finds_what_it_says(rng):
    """Plant the smallest effect in many samples of the same shape: about four in five are found."""
    n, d = 300, 10
    effect = permutation_test(rng.standard_normal((n, d)), rng.integers(0, 2, n), True, 0)[1]
    found = 0
    for seed in range(100):
        own = np.random.default_rng(seed)
        z = own.integers(0, 2, n)
        X = own.standard_normal((n, d))
        direction = own.standard_normal(d)
        direction /= np.linalg.norm(direction)
        noise = np.sqrt(1 - effect**2)
        X += np.outer((z - z.mean()) / z.std() * effect / noise, direction)
        found += permutation_test(X, z, True, seed, permutations=199)[0] < 0.05
    assert 65 <= found <= 93


def test_few_rows_say_what_that_means(rng):
    z = rng.integers(0, 2, 200)
    X = rng.standard_normal((200, 50)) + z[:, None]
    found = run(X, z, "leace")
    assert "rows per feature are few" in found.reading
    assert found.expected_from_estimation > 0.3


def test_numbers_are_measured_by_r2(rng):
    X = rng.standard_normal((800, 4))
    z = X[:, 0] + rng.standard_normal(800)
    before, after = run(X, z, nothing), run(X, z, "leace")
    assert before.measure == "R^2"
    assert before.information == pytest.approx(0.5, abs=0.08)
    assert abs(after.information) < 0.02
    assert after.accuracy is None


def test_an_eraser_that_does_nothing_is_not_excused(rng):
    z = rng.integers(0, 2, 1000)
    X = rng.standard_normal((1000, 5))
    X[:, 0] += 2 * z
    padded = np.hstack([X, np.zeros((1000, 300))])  # constant features are no excuse
    found = run(padded, z, nothing)
    assert "as much in unseen rows as before" in found.reading
    assert found.d == 5


def test_a_class_in_one_group_is_said(rng):
    z = np.array(["a"] * 200 + ["c"] * 200 + ["b"] * 20)
    groups = np.concatenate([np.arange(400) // 4, np.full(20, 1000)])
    report = excise.audit(rng.standard_normal((420, 3)), z, refit="leace", groups=groups, quick=True)
    assert "without a class" in report.absent["held out"]
    assert len(report.guardedness.conditions) == 5


def test_refit_that_cannot_be(rng):
    X, z = rng.standard_normal((100, 3)), rng.integers(0, 2, 100)
    for refit, message in (
        ("magic", "method must be one of"),
        (3, "name of a method or a function"),
        ("splince", "task"),
    ):
        with pytest.raises(excise.ExciseError, match=message):
            excise.audit(X, z, refit=refit)

    def broken(X, z):
        raise excise.InputError("no")

    with pytest.raises(excise.ExciseError, match=r"refit failed on fold 1 \(40 rows\): no"):
        excise.audit(X, z, refit=broken)
