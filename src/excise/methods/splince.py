"""SPLINCE: erase the concept and keep every linear trace of the task (arXiv 2506.10703).

Among all maps with P Sxz = 0 *and* P Sxy = Sxy it is the one that moves X least. It moves X more than LEACE does: the
price is in `eraser.info`.
"""

from __future__ import annotations

import warnings

import numpy as np

from excise._array import Array, convert, host, namespace
from excise._chunks import small_products
from excise._linalg import (
    INFEASIBLE,
    basis,
    correlations_with,
    force_dual,
    scales,
    singular_values,
)
from excise._whitening import least_dual, whitening
from excise.eraser import AffineEraser
from excise.errors import ConceptError, ExciseWarning, InputError
from excise.methods._common import (
    check_strength,
    correlation_matrix,
    describe,
    require_concept,
    warn_few_rows,
    warn_rank_zero,
)
from excise.moments import Moments

__all__ = ["splince"]


def splince(m: Moments, task: Moments, strength: float = 1.0) -> AffineEraser:
    """r(x) = x - strength * U V^T (x - mean) with P = I - U V^T, P Sxz = 0 and P Sxy = Sxy, the least such edit.

    With W a whitening of X, U = orth(W Sxz), Q = orth(W Sxy) and V = orth((I - Q Q^T) U):
    P = I - W^+ U (V^T U)^-1 V^T W.

    Args:
        m: moments of X and the concept.
        task: moments of the same X and the task y.

    Raises:
        ConceptError: the two cannot be told apart (some direction of the concept is a direction of the task), so no map
            erases one and keeps the other; or one of them does not vary.
        InputError: the two Moments are not of the same features.
    """
    check_strength(strength)
    require_concept(m)
    require_concept(task)
    if task.d != m.d:
        raise InputError(
            f"the concept's moments have {m.d} features, the task's have {task.d}: both must be of the same X"
        )
    warn_few_rows(m)
    assert m.d is not None
    with small_products(m.d):
        return _solve(m, task, strength)


def _solve(m: Moments, task: Moments, strength: float) -> AffineEraser:
    D = scales(m.var_x)
    xp = namespace(D)
    A = correlations_with(m.cov_xz, m.cov_zz, D)  # concept
    B = convert(correlations_with(task.cov_xz, task.cov_zz, convert(D, task.mean_x)), D)  # task
    left, _ = basis(A)
    if left.shape[1] == 0:
        warn_rank_zero()
        return AffineEraser(left, left, m.mean_x, describe(m, "splince", strength=strength, rank_of_task=0))
    F = whitening(correlation_matrix(m, D), xp.concat([A, B], axis=1), m.eps_xx, m.rounding)
    U = xp.linalg.qr(F.whiten(left))[0]
    task_directions = basis(B)[0]
    Q = xp.linalg.qr(F.whiten(task_directions))[0]
    rest = U - Q @ (Q.T @ U)
    rest = rest - Q @ (Q.T @ rest)  # twice is enough: orthogonal to Q to rounding
    sines = host(singular_values(rest))  # of the angles between the two subspaces
    smallest = float(sines[-1]) if Q.shape[1] + U.shape[1] <= m.d else 0.0
    if smallest < INFEASIBLE:
        raise ConceptError(
            f"SPLINCE is infeasible: the concept and the task share a direction (smallest angle between them "
            f"{np.degrees(np.arcsin(min(1.0, smallest))):.2g} degrees, {U.shape[1]} + {Q.shape[1]} directions in {m.d} "
            f"features), so none can be erased without the other; use leace, or a task with fewer classes"
        )
    V = xp.linalg.qr(rest)[0]
    dual = force_dual(F.whiten_transposed(V), left)
    condition = 1.0 / smallest
    if condition > 100:
        warnings.warn(
            f"concept and task are almost the same direction ({np.degrees(np.arcsin(smallest)):.2g} degrees apart): keeping "
            f"the task costs a large edit (condition {condition:.3g})",
            ExciseWarning,
            stacklevel=4,
        )
    price = _edit(m, left, dual, D) / _edit(m, left, least_dual(F, left), D)
    return AffineEraser(
        left * D[:, None],
        strength * dual / D[:, None],
        m.mean_x,
        describe(
            m,
            "splince",
            strength=strength,
            rank_of_task=int(Q.shape[1]),
            condition=condition,
            smallest_angle_degrees=float(np.degrees(np.arcsin(min(1.0, smallest)))),
            edit_over_leace=price,
        ),
    )


def _edit(m: Moments, left: Array, dual: Array, D: Array) -> float:
    """Mean squared edit: tr(U V^T Sxx V U^T), in the units of X."""
    U, V = left * D[:, None], dual / D[:, None]
    return float(namespace(U).sum((U.T @ U) * (V.T @ (m.cov_xx @ V))))
