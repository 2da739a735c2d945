"""LEACE: the smallest affine edit after which no linear predictor beats a constant (Theorem 4.2 of the paper).

Any P = I - U V^T with colsp(U) = colsp(Sxz) and V^T U = I has P Sxz = 0 and so guards Z, however V was computed.
LEACE is the choice of V that moves X least: P = I - W^+ Q W with W a whitening of X and Q the orthogonal projector
on colsp(W Sxz). Here W = F^-1 D^-1: D divides by standard deviations, F F^T is the correlation matrix of X.
"""

from __future__ import annotations

import numpy as np

from excise._array import Array, convert, namespace
from excise._chunks import small_products
from excise._linalg import (
    basis,
    correlations_with,
    force_dual,
    inverse_root,
    scales,
    singular_values,
)
from excise._whitening import least_dual, whitening
from excise.eraser import AffineEraser
from excise.errors import ExciseError
from excise.methods._common import (
    check_strength,
    correlation_matrix,
    describe,
    require_concept,
    warn_few_rows,
    warn_hidden,
    warn_rank_zero,
)
from excise.moments import Moments
from excise.shrinkage import Shrinkage, shrink

__all__ = ["leace"]


def leace(
    m: Moments,
    affine: bool = True,
    shrinkage: Shrinkage = "none",
    limit_norm: bool | Moments = False,
    strength: float = 1.0,
) -> AffineEraser:
    """r(x) = x - strength * U V^T (x - mean), with P = I - U V^T the least-squares optimal eraser.

    Args:
        m: moments of X (d features) and the concept.
        affine: keep the mean of X; False erases without centring, r(x) = P x.
        shrinkage: "oas" or "optimal" shrink the correlation matrix of X: a calmer edit where n is small against d.
            It guards all the same; `info["canonical_correlations"]` are then those under the shrunk matrix.
        limit_norm: mix P with the orthogonal projector where P would let the total variance grow; measured on `m`, or on
            the Moments given here.
        strength: 1 erases, 0 changes nothing, 2 turns the sign of the correlation.

    Raises:
        ConceptError: one class only, or labels that do not vary.
        InputError: fewer than two rows, or Moments without the d x d covariance.

    >>> import numpy as np
    >>> from excise import Moments
    >>> X = np.array([[1.0, 2.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, -2.0]] * 5)  # the paper's example
    >>> e = leace(Moments().update(X, [1, -1, 1, -1] * 5))
    >>> abs(e.P.round(12)).tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """
    require_concept(m)
    check_strength(strength)
    if isinstance(limit_norm, np.bool_):
        limit_norm = bool(limit_norm)
    assert m.d is not None
    warn_few_rows(m)
    with small_products(m.d):
        return _solve(m, affine, shrinkage, limit_norm, strength)


def _solve(m: Moments, affine: bool, shrinkage: Shrinkage, limit_norm: bool | Moments, strength: float) -> AffineEraser:
    D = scales(m.var_x)  # (d,) standard deviations
    R, intensity = shrink(correlation_matrix(m, D), m.n, shrinkage)  # (d, d)
    A = correlations_with(m.cov_xz, m.cov_zz, D)  # (d, k): Sxz without units
    U, _ = basis(A)  # (d, r): colsp(U) = colsp(D^-1 Sxz)
    F = whitening(R, A, m.eps_xx, m.rounding)  # R = F F^T
    xp = namespace(U)
    if U.shape[1] == 0:
        warn_rank_zero()
        V = U
    else:
        V = least_dual(F, U)  # V = R^-1 U (U^T R^-1 U)^-1, so V^T U = I
        warn_hidden(F.hidden)
    canonical = singular_values(F.whiten(m.cov_xz / D[:, None] @ inverse_root(m.cov_zz)))[: U.shape[1]]
    # Back in the units of X: P = I - (D U) (D^-1 V)^T.
    varies = xp.astype(m.var_x > 0, D.dtype)  # constant features stay as they are, to the last bit
    left, right = U * (D * varies)[:, None], V * (varies / D)[:, None]

    mix = 1.0
    if limit_norm is not False and U.shape[1]:
        right, mix = _limited(left, right, m if limit_norm is True else limit_norm)
    return AffineEraser(
        left,
        strength * right,
        m.mean_x if affine else xp.zeros_like(m.mean_x),
        describe(
            m,
            "leace",
            affine=affine,
            strength=strength,
            shrinkage=shrinkage,
            shrinkage_intensity=intensity,
            limit_norm_mix=mix,
            canonical_correlations=[float(c) for c in canonical],
            solver=F.method,
            rank_kept=F.kept,
            rank_dropped=F.dropped,
            rcond=F.rcond,
        ),
    )


def _limited(left: Array, right: Array, m: Moments) -> tuple[Array, float]:
    """V' = a V + (1 - a) V_Q with the greatest a in [0, 1] for which total variance does not grow (Appendix F).

    Q = I - U U^T, U orthonormal in the original units. With E = V - U the cross terms cancel:
    tr(P' S P'^T) = tr(S) - tr(U^T S U) + a^2 tr(E^T S E).
    """
    xp = namespace(left)
    if not isinstance(m, Moments) or m.d != left.shape[0]:
        raise ExciseError(f"limit_norm must be True, False or Moments of {left.shape[0]} features, got {m!r}")
    S = convert(m.cov_xx, left)
    U, T = xp.linalg.qr(left)  # left = U T
    E = right @ T.T - U
    removed = float(xp.sum(U * (S @ U)))
    added = float(xp.sum(E * (S @ E)))
    if added <= removed:
        return right, 1.0
    a = float(np.sqrt(removed / added))
    return force_dual(a * right + (1.0 - a) * xp.linalg.solve(T, U.T).T, left), a
