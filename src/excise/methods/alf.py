"""Label-free quadratic erasure: LEACE, then off the directions in which the classes' covariances differ most.

After LEACE the class means agree and the class covariances do not; that is what nonlinear probes read first. With W a
whitening of X and C_c = W S_c W^T the covariance of class c, the directions are the leading eigenvectors E of
sum_c p_c (C_c - C)^2, off the directions of LEACE. r(x) = x - W^+ Q Q^T W (x - mean) with Q = [U, E] is the least edit that
removes them: one affine map, no labels when applied.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from excise.erasers.affine import AffineEraser
from excise.errors import ExciseError, InputError, warn
from excise.methods.checks import check_strength, check_whole, describe, require_concept, warn_few_rows
from excise.methods.geometry import affine_eraser, geometry
from excise.moments.class_moments import ClassMoments
from excise.numerics.arrays import Array, convert, host, namespace
from excise.numerics.chunks import small_products
from excise.numerics.correlation import Shrinkage, force_dual

__all__ = ["alf"]


def alf(
    m: ClassMoments,
    target: float = 0.9,
    rank: int | None = None,
    shrinkage: Shrinkage = "auto",
    strength: float = 1.0,
) -> AffineEraser:
    """LEACE and as many further directions as it takes to remove `target` of the covariances' difference.

    The difference is sum_c p_c |C_c - C|^2 in whitened coordinates, less what as many rows of equal covariances would
    show by chance. `info` has the share that was removed with and without that allowance, the rank and the edit.

    Args:
        m: a mean and a covariance per class.
        target: the share to remove, above 0 and at most 1.
        rank: this many directions beyond LEACE's, in place of `target`.
        shrinkage: of the correlation matrix that whitens, as in leace.
        strength: 1 erases, 0 changes nothing.

    Raises:
        ExciseError: `target` outside (0, 1], or a rank that leaves nothing.
        InputError: not ClassMoments, or a class of one row.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> z = rng.integers(0, 2, 4000)
    >>> X = rng.standard_normal((4000, 6)) * np.where(z[:, None] == 1, [3, 1, 1, 1, 1, 1], 1) + z[:, None]
    >>> e = alf(ClassMoments().update(X, z))
    >>> e.rank, bool(abs(e(X)[z == 1].var(0) / e(X)[z == 0].var(0) - 1).max() < 0.15)
    (2, True)
    """
    if not isinstance(m, ClassMoments):
        raise InputError(
            f"label-free quadratic erasure needs ClassMoments, got {type(m).__name__}: ClassMoments().update(X, z), or use "
            f"excise.fit"
        )
    check_strength(strength)
    share = isinstance(target, (int, float, np.floating)) and not isinstance(target, bool) and 0.0 < target <= 1.0
    if not share:
        raise ExciseError(f"target must be a number above 0 and at most 1, got {target!r}", code="option")
    if rank is not None:
        check_whole("rank", rank, 0)
    whole = m.to_moments()
    require_concept(whole)
    if m.rows.min() < 2:
        few = m.names[int(np.argmin(m.rows))]
        raise InputError(f"class {few!r} has {m.rows.min()} row: alf needs a covariance per class")
    assert whole.d is not None
    with small_products(whole.d):
        return _solve(m, whole, float(target), rank, shrinkage, strength)


def _solve(
    m: ClassMoments, whole: Any, target: float, rank: int | None, shrinkage: Shrinkage, strength: float
) -> AffineEraser:
    g = geometry(whole, shrinkage)
    D, F, xp = g.D, g.F, namespace(g.D)
    U = xp.linalg.qr(F.half(g.U))[0] if g.U.shape[1] else g.U
    whitened = [F.half(F.half(covariance / D[:, None] / D[None, :]).T) for covariance in m.covs]
    shares = m.n / m.n.sum()
    # The variance within classes and between them is 1 in each direction above the ridge: so many dimensions there are.
    within = sum(float(s) * float(xp.linalg.trace(C)) for s, C in zip(shares, whitened, strict=True))
    between = g.canonical()
    p = int((host(whole.var_x) > 0).sum()) if between is None else round(within + sum(c * c for c in between))
    room = p - int(U.shape[1])
    if rank is not None and rank > room:
        raise ExciseError(f"rank must be at most {room}: {p} dimensions less {U.shape[1]} of LEACE, got {rank}")
    E, chosen, removed, beyond = _directions(whitened, m.n, U, target, rank)
    Q = xp.concat([U, E[:, :chosen]], axis=1)
    # The columns of LEACE as they are, so that P Sxz = 0 to the last digit; the dual makes up for it.
    left = xp.concat([g.U, F.times(E[:, :chosen])], axis=1)
    right = force_dual(F.half_transposed(Q), left) if Q.shape[1] else Q
    left, right = left * D[:, None], right / D[:, None]
    warn_few_rows(whole, g.shrinkage)
    if p - Q.shape[1] < 2:
        warn(
            f"alf removes {Q.shape[1]} of {p} dimensions: hardly anything is left; lower target, or pass rank=",
            code="all-erased",
        )
    total = float(xp.sum(whole.var_x))
    info = describe(
        whole, "alf", strength=strength, **g.about(), target=target,
        rank_of_means=int(U.shape[1]), rank_of_covariances=chosen, difference_removed=removed,
        difference_removed_beyond_chance=beyond, edit=whole.mean_squared_edit(left, right) / total if total else 0.0,
    )  # fmt: skip
    return affine_eraser(whole, left, strength * right, whole.mean_x, info)


def _directions(
    whitened: list[Array], counts: Any, U: Array, target: float, rank: int | None
) -> tuple[Array, int, float, float]:
    """Eigenvectors (d, room) in order, how many to take, and the shares that they remove."""
    xp = namespace(U)
    shares = counts / counts.sum()
    average = sum(float(s) * C for s, C in zip(shares, whitened, strict=True))
    rest = xp.linalg.qr(xp.concat([U, xp.eye(U.shape[0], dtype=U.dtype, device=U.device)], axis=1))[0][:, U.shape[1] :]
    rest = rest - U @ (U.T @ rest)
    rest = xp.linalg.qr(rest)[0]
    differences = [rest.T @ (C - average) @ rest for C in whitened]
    total = sum(float(s) * (D @ D) for s, D in zip(shares, differences, strict=True))
    order = convert(np.arange(rest.shape[1])[::-1].copy(), U)
    turn = xp.linalg.eigh(total)[1][:, order]
    # What is left after the first q directions are gone: the squares below and right of (q, q), summed.
    squares = np.zeros((rest.shape[1], rest.shape[1]))
    for s, D in zip(shares, differences, strict=True):
        squares += float(s) * host(turn.T @ D @ turn) ** 2
    corner = np.cumsum(np.cumsum(squares[::-1, ::-1], axis=0), axis=1)[::-1, ::-1]
    left = np.append(np.diagonal(corner), 0.0)  # (room + 1,)
    # By chance: a covariance of n rows has squared errors of (1 + [i = j]) / n in whitened coordinates.
    dimensions = np.arange(rest.shape[1], -1, -1)
    by_chance = (
        dimensions * (dimensions + 1.0) * float(sum(s * (1.0 - s) / n for s, n in zip(shares, counts, strict=True)))
    )
    by_chance = np.minimum(by_chance, left)
    beyond = left - by_chance
    if rank is None:
        enough = np.flatnonzero(beyond <= (1.0 - target) * beyond[0] + 1e-15 * left[0])
        rank = int(enough[0])
    share = 1.0 - left[rank] / left[0] if left[0] > 0 else 1.0
    share_beyond = 1.0 - beyond[rank] / beyond[0] if beyond[0] > 0 else 1.0
    return rest @ turn, rank, float(share), float(share_beyond)
