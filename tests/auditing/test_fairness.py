"""Fairness figures: the same numbers as fairlearn, and as counting by hand."""

from __future__ import annotations

import numpy as np
import pytest

from excise.auditing.fairness import outcomes

fairlearn = pytest.importorskip("fairlearn.metrics")


def share_of(y, groups, classes, count):
    return np.array([[np.mean(groups[y == c] == g) for g in range(count)] for c in range(classes)])


@pytest.mark.parametrize("groups_count", [2, 3])
@pytest.mark.parametrize("classes", [2, 5])
def test_equal_to_fairlearn(rng, classes, groups_count):
    n = 3000
    groups = rng.integers(0, groups_count, n)
    y = (rng.integers(0, classes, n) + groups * (rng.random(n) < 0.3)) % classes
    said = np.where(rng.random(n) < 0.6 + 0.1 * groups, y, rng.integers(0, classes, n))
    share = share_of(y, groups, classes, groups_count)
    found = outcomes(said, y, groups, share)
    differences, odds, parity = [], [], []
    for c in range(classes):
        frame = fairlearn.MetricFrame(
            metrics={
                "tpr": fairlearn.true_positive_rate,
                "fpr": fairlearn.false_positive_rate,
                "rate": fairlearn.selection_rate,
            },
            y_true=(y == c).astype(int),
            y_pred=(said == c).astype(int),
            sensitive_features=groups,
        )
        assert found.tpr[c] == pytest.approx(frame.by_group["tpr"].tolist())
        spread = frame.difference()
        differences.append(spread["tpr"])
        odds.append(max(spread["tpr"], spread["fpr"]))
        parity.append(spread["rate"])
    assert found.rms_tpr_gap == pytest.approx(np.sqrt(np.mean(np.square(differences))))
    assert found.rms_tpr_gap > 0.02
    assert found.equalised_odds == pytest.approx(max(odds))
    assert found.statistical_parity == pytest.approx(max(parity))
    if classes == 2:
        assert found.equalised_odds == pytest.approx(
            fairlearn.equalized_odds_difference(y, said, sensitive_features=groups)
        )
        assert found.statistical_parity == pytest.approx(
            fairlearn.demographic_parity_difference(y, said, sensitive_features=groups)
        )


def test_equal_to_counting_by_hand():
    #             three tasks, group 1 is often wrong in task 0
    y = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    g = np.array([0, 0, 1, 1, 0, 1, 1, 1, 0, 0, 0, 1])
    p = np.array([0, 0, 0, 1, 1, 1, 1, 0, 2, 0, 2, 2])
    share = share_of(y, g, 3, 2)
    found = outcomes(p, y, g, share)
    assert found.accuracy == pytest.approx(9 / 12)
    assert found.tpr == [[1.0, 0.5], [1.0, pytest.approx(2 / 3)], [pytest.approx(2 / 3), 1.0]]
    gaps = [0.5 - 1, 2 / 3 - 1, 1 - 2 / 3]
    assert [row[1] for row in found.tpr_gap] == pytest.approx(gaps)
    assert [row[0] for row in found.tpr_gap] == pytest.approx([-gap for gap in gaps])
    assert found.rms_tpr_gap == pytest.approx(np.sqrt(np.mean(np.square(gaps))))
    assert found.share_correlation[1] == pytest.approx(np.corrcoef(gaps, [0.5, 0.75, 0.25])[0, 1])


def test_a_group_without_rows_of_a_class_is_left_out(rng):
    y = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    g = np.array([0, 1, 0, 1, 0, 1, 0, 0])
    found = outcomes(y, y, g, share_of(y, g, 4, 2))
    assert found.tpr[3] == [1.0, None]
    assert found.tpr_gap[3] == [None, None]
    assert found.rms_tpr_gap == 0
