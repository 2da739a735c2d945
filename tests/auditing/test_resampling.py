"""Rows that come in groups: p-values and intervals that stay valid, and what becomes of those that take rows one by one."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstest

import excise
from excise.auditing.audit_data import read_audit_data
from excise.auditing.held_out import refitted, unseen_p_value
from excise.auditing.resampling import interval_of_mean, permutation_test
from excise.auditing.splits import chosen_rows, rotations

pytestmark = pytest.mark.filterwarnings("ignore::excise.ExciseWarning")


def grouped(seed, labels):
    """40 groups of 1 to 6 rows that share most of their features, with no signal about the labels."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(40), rng.integers(1, 7, 40))
    X = rng.standard_normal((40, 4))[groups] + 0.3 * rng.standard_normal((len(groups), 4))
    if labels == "one per group":
        return X, rng.integers(0, 2, 40)[groups], groups
    # Rates differ by group: rows look related to the labels unless groups are kept together.
    return X, (rng.random(len(groups)) < rng.beta(0.3, 0.3, 40)[groups]).astype(int), groups


def p_values(labels, use_groups, times):
    values = []
    for seed in range(times):
        X, z, groups = grouped(seed, labels)
        data = read_audit_data(X, z, None, None, None)
        part = rotations(data.target, chosen_rows(data.target, 10_000, seed)[0], groups, seed)[0]
        own = groups if use_groups else None
        values.append(unseen_p_value(data, part, refitted("leace", None, {}), seed, 199, own)[0])
    return np.array(values)


@pytest.mark.parametrize("labels", ["one per group", pytest.param("varying", marks=pytest.mark.slow)])
def test_p_value_is_uniform_without_signal_in_groups(labels):
    values = p_values(labels, True, 500)
    assert kstest(values, "uniform").pvalue > 0.01
    assert np.mean(values < 0.05) < 0.09
    assert np.mean(p_values(labels, False, 100) < 0.05) > 0.15  # rows taken one by one: false alarms


@pytest.mark.parametrize("labels", ["one per group", "varying"])
def test_a_concept_is_found_in_groups(labels, rng):
    groups = np.repeat(np.arange(100), 5)
    z = rng.integers(0, 2, 100)[groups] if labels == "one per group" else rng.integers(0, 2, 500)
    X = rng.standard_normal((500, 4)) + rng.standard_normal((100, 4))[groups]
    X[:, 0] += 2 * z
    assert permutation_test(X, z, True, 0, groups=groups)[0] < 0.001
    assert permutation_test(X, z[:, None] * 1.0, False, 0, groups=groups)[0] < 0.001


def test_a_few_labels_that_deviate_hide_nothing(rng):
    """Person and sentence: the concept is the person's, but five labels of 500 are wrong."""
    groups = np.repeat(np.arange(100), 5)
    z = rng.integers(0, 2, 100)[groups]
    X = rng.standard_normal((500, 4))
    X[:, 0] += 3 * z
    z[rng.choice(500, 5, replace=False)] ^= 1
    p, effect = permutation_test(X, z, True, 0, groups=groups)
    assert p < 0.001
    assert effect < 0.6
    both = np.c_[z, rng.standard_normal(500)]  # one column per person, one per sentence
    assert permutation_test(X, both, False, 0, groups=groups)[0] < 0.001


@pytest.mark.parametrize(("large", "small"), [((3, 100), (60, 5)), ((2, 100), (50, 1)), ((10, 50), (50, 5))])
def test_sizes_of_groups_that_go_with_the_label_are_no_signal(large, small):
    """Three long documents of one class and sixty short ones of the other."""
    alarms = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        count, size = (np.array(v) for v in zip(large, small, strict=True))
        groups = np.repeat(np.arange(count.sum()), np.repeat(size, count))
        z = (groups < count[0]).astype(int)
        X = rng.standard_normal((count.sum(), 4))[groups] + 0.3 * rng.standard_normal((len(groups), 4))
        alarms += permutation_test(X, z, True, seed, 199, groups)[0] <= 0.05
    assert alarms <= 18


def test_a_column_that_is_constant_in_the_unseen_rows(rng):
    X = rng.standard_normal((300, 4))
    z = np.c_[rng.standard_normal(300), np.zeros(300)]
    alone = permutation_test(X, z[:, :1], False, 0)
    assert permutation_test(X, z, False, 0) == alone
    assert permutation_test(X, np.zeros((300, 2)), False, 0) == (1.0, 1.0)
    z[200, 1] = 1.0
    assert excise.audit(X, z, refit="leace", quick=True).held_out.p_value > 0.001


def test_groups_of_one_row_are_rows(rng):
    X, z = rng.standard_normal((200, 3)), rng.integers(0, 3, 200)
    X[:, 0] += 0.1 * z
    plain = permutation_test(X, z, True, 0)
    assert permutation_test(X, z, True, 0, groups=np.arange(200)) == pytest.approx(plain, abs=1e-9)
    assert interval_of_mean(X[:, 0], np.arange(200)) == pytest.approx(interval_of_mean(X[:, 0]), abs=1e-12)


def test_statistic_is_the_weighted_pillai_trace(rng):
    """T of one order of the labels, written out: regress every weighted principal direction on the labels."""
    from excise.auditing.resampling import _Part

    Q, z = rng.standard_normal((60, 4)), rng.standard_normal((60, 2))
    Q -= Q.mean(axis=0)
    design = np.c_[np.ones(60), z]
    explained = sum(np.sum((design @ np.linalg.lstsq(design, column, rcond=None)[0]) ** 2) for column in Q.T)
    part = _Part(Q, z - z.mean(axis=0))
    assert np.sum(part.scores(part.Z[None]) ** 2) * part.usual**2 == pytest.approx(explained, rel=1e-9)
    rng_orders = np.random.default_rng(0)
    drawn = part.scores(np.stack([part.Z[part.order(rng_orders)] for _ in range(2000)]))
    assert np.mean((drawn**2).sum(axis=(1, 2))) == pytest.approx(1.0, rel=0.05)


def test_interval_of_groups_covers(rng):
    """The mean of rows that share their group's value: 95% intervals hold it about as often over groups, seldom over rows."""
    over = {True: 0, False: 0}
    for seed in range(100):
        own = np.random.default_rng(seed)
        groups = np.repeat(np.arange(60), 5)
        values = own.standard_normal(60)[groups] + 0.1 * own.standard_normal(300)
        for use in over:
            low, high = interval_of_mean(values, groups if use else None)
            over[use] += low <= 0 <= high
    assert over[True] >= 88
    assert over[False] <= 75


def test_interval_of_a_mean_by_scipy(rng):
    from scipy.stats import t

    values = rng.standard_exponential(40)
    expected = t.interval(0.95, 39, values.mean(), values.std(ddof=1) / np.sqrt(40))
    assert interval_of_mean(values) == pytest.approx(expected, rel=1e-12)
    wide = interval_of_mean(values, test_over_train=0.5)
    assert wide[1] - wide[0] == pytest.approx(np.sqrt(1.5) * (expected[1] - expected[0]))


@pytest.mark.slow
@pytest.mark.parametrize("grouped", [False, True])
def test_interval_of_held_out_information_covers(grouped):
    """2,000 data sets of 200 rows and 5 features: 93 to 97% of the intervals hold what the procedure gives on average."""
    from excise.auditing.audit_data import read_audit_data
    from excise.auditing.held_out import held_out

    found = []
    for seed in range(2000):
        own = np.random.default_rng(seed)
        groups = np.repeat(np.arange(100), 2) if grouped else np.arange(200)
        z = own.integers(0, 2, groups.max() + 1)[groups]
        X = own.standard_normal((200, 5)) + 0.7 * own.standard_normal((groups.max() + 1, 5))[groups] * grouped
        X += 0.5 * z[:, None]
        data = read_audit_data(X, z, None, None, None)
        parts = rotations(data.target, np.arange(200), groups if grouped else None, seed)
        h = held_out(data, parts, lambda X, z: lambda X: X, seed, [], lambda what: None, groups if grouped else None)
        found.append((h.information, *h.interval))
    mean, low, high = np.array(found).T
    truth = mean.mean()
    assert 0.93 <= np.mean((low <= truth) & (truth <= high)) <= 0.97


def test_audit_says_what_it_permuted(rng):
    groups = np.repeat(np.arange(60), 4)
    z = rng.integers(0, 2, 60)[groups]
    X = rng.standard_normal((240, 3))
    report = excise.audit(X, z, refit="leace", groups=groups, quick=True)
    assert "the groups' labels" in report.held_out.null
    assert "the choice of the groups of test rows" in report._repr_html_()
    assert "group" not in excise.audit(X, z, refit="leace", quick=True).held_out.null
