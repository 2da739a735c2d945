"""SPLINCE: erase the concept and keep every linear trace of the task (arXiv 2506.10703).

Among all maps with P Sxz = 0 *and* P Sxy = Sxy it is the one that moves X least. It moves X more than LEACE does: the
price is in `eraser.info`.
"""

from __future__ import annotations

import numpy as np

from excise.erasers.affine import AffineEraser
from excise.errors import ConceptError, InputError, warn
from excise.methods.checks import check_strength, describe, require_concept, warn_few_rows, warn_rank_zero
from excise.methods.geometry import affine_eraser, correlations, geometry
from excise.moments.moments import Moments
from excise.numerics.arrays import host, namespace
from excise.numerics.chunks import small_products
from excise.numerics.correlation import basis, force_dual, least_dual
from excise.numerics.linalg import singular_values
from excise.numerics.precision import INFEASIBLE

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
    require_concept(task, "y (the task)")
    if task.d != m.d:
        raise InputError(
            f"the concept's moments have {m.d} features, the task's have {task.d}: both must be of the same X"
        )
    warn_few_rows(m, shrinkage="does not apply")
    assert m.d is not None
    with small_products(m.d):
        return _solve(m, task, strength)


def _solve(m: Moments, task: Moments, strength: float) -> AffineEraser:
    D = m.std_x
    xp = namespace(D)
    B = correlations(task, D)  # of the features with the task
    g = geometry(m)
    F, left = g.F, g.U
    if left.shape[1] == 0:
        warn_rank_zero()
        return affine_eraser(m, left, left, m.mean_x, describe(m, "splince", strength=strength, rank_of_task=0))
    U = xp.linalg.qr(F.half(left))[0]
    task_directions = basis(B)[0]
    Q = xp.linalg.qr(F.half(task_directions))[0]
    rest = U - Q @ (Q.T @ U)
    rest = rest - Q @ (Q.T @ rest)  # twice is enough: orthogonal to Q to rounding
    sines = host(singular_values(rest))  # of the angles between the two subspaces
    smallest = float(sines[-1]) if Q.shape[1] + U.shape[1] <= (m.d or 0) else 0.0
    degrees = float(np.degrees(np.arcsin(min(1.0, smallest))))
    if smallest < INFEASIBLE:
        raise ConceptError(
            f"SPLINCE is infeasible: the concept and the task share a direction (smallest angle between them "
            f"{degrees:.2g} degrees, {U.shape[1]} + {Q.shape[1]} directions in {m.d} features), so neither can be erased "
            f"without the other; use leace, or a task with fewer classes",
            code="infeasible",
        )
    V = xp.linalg.qr(rest)[0]
    dual = force_dual(F.half_transposed(V), left)
    condition = 1.0 / smallest
    if condition > 100:
        warn(
            f"concept and task are almost the same direction ({degrees:.2g} degrees apart): keeping the task costs a large "
            f"edit (condition {condition:.3g})",
            code="large-edit",
        )
    outer = left * D[:, None]
    price = m.mean_squared_edit(outer, dual / D[:, None]) / m.mean_squared_edit(outer, least_dual(F, left) / D[:, None])
    return affine_eraser(
        m,
        outer,
        strength * dual / D[:, None],
        m.mean_x,
        describe(
            m,
            "splince",
            strength=strength,
            rank_of_task=int(Q.shape[1]),
            condition=condition,
            smallest_angle_degrees=degrees,
            edit_over_leace=price,
        ),
    )
