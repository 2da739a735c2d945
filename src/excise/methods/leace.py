"""LEACE: the smallest affine edit after which no linear predictor beats a constant (Theorem 4.2 of the paper).

Any P = I - U V^T with colsp(U) = colsp(Sxz) and V^T U = I has P Sxz = 0 and so guards Z, however V was computed.
LEACE is the choice of V that moves X least, V = C U (U^T C U)^-1 with C = Sxx^-1: the same as I - W^+ Q W with W a whitening
of X and Q the orthogonal projector on colsp(W Sxz). Here features are divided by their standard deviations D first, and
C is the inverse of their correlation matrix plus a ridge (`numerics/correlation.py`).
"""

from __future__ import annotations

import numpy as np

from excise.erasers.affine import AffineEraser
from excise.errors import ExciseError
from excise.methods.checks import (
    check_strength,
    describe,
    require_concept,
    warn_all_erased,
    warn_few_rows,
    warn_rank_zero,
)
from excise.methods.geometry import affine_eraser, functions_of_concept, geometry
from excise.moments.moments import Moments
from excise.numerics.arrays import Array, convert, namespace
from excise.numerics.chunks import small_products
from excise.numerics.correlation import Shrinkage, force_dual, least_dual

__all__ = ["leace"]


def leace(
    m: Moments,
    affine: bool = True,
    shrinkage: Shrinkage = "auto",
    limit_norm: bool | Moments = False,
    strength: float = 1.0,
) -> AffineEraser:
    """r(x) = x - strength * U V^T (x - mean), with P = I - U V^T the least-squares optimal eraser.

    Args:
        m: moments of X (d features) and the concept.
        affine: keep the mean of X; False erases without centring, r(x) = P x.
        shrinkage: of the correlation matrix of X. "auto" is "none" with 10 rows per feature or more, and "oas" with fewer,
            where the smallest edit of these rows would be a huge one of new rows. It guards just as exactly; the edit of
            these rows is then no longer the smallest. `info["shrinkage"]` records what was chosen. If the concept is a
            linear function of X, "auto" never shrinks: it would leave the concept on new rows.
        limit_norm: mix P with the orthogonal projector where P would let the total variance grow; measured on `m`, or on
            the Moments given here.
        strength: 1 erases, 0 changes nothing, 2 reverses the sign of the correlation. A strength below 1 removes no linear
            information at all: it scales the removed component, and a probe scales it back (R^2 does not change).

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
    with small_products(m.d if m.standardised_rows is None else m.rows):
        return _solve(m, affine, shrinkage, limit_norm, strength)


def _solve(m: Moments, affine: bool, shrinkage: Shrinkage, limit_norm: bool | Moments, strength: float) -> AffineEraser:
    g = geometry(m, shrinkage)
    exact = 0
    if g.shrinkage != "none" and shrinkage == "auto" and m.rows > m.k + g.D.shape[0] + 1:
        plain = geometry(m, "none")
        if exact := plain.functions_of_features():  # with shrinkage these directions would survive on new rows
            g = plain
    D, U = g.D, g.U  # colsp(U) = colsp(D^-1 Sxz), U orthonormal
    xp = namespace(U)
    if U.shape[1] == 0:
        warn_rank_zero()
    V = least_dual(g.F, U) if U.shape[1] else U  # R^-1 U (U^T R^-1 U)^-1, so V^T U = I
    warn_few_rows(m, g.shrinkage)
    warn_all_erased(U.shape[1], m)
    # Back in the units of X: P = I - (D U) (D^-1 V)^T.
    varies = xp.astype(m.var_x > 0, D.dtype)  # constant features stay as they are, to the last bit
    left, right = U * (D * varies)[:, None], V * (varies / D)[:, None]

    mix = 1.0
    if limit_norm is not False and U.shape[1]:
        right, mix = _limited(left, right, m if limit_norm is True else limit_norm)
    whole = mix == 1.0 and g.F.intensity == 0.0  # then a feature that is a function of the concept vanishes
    about = describe(m, "leace", affine=affine, strength=strength, **g.about(), limit_norm_mix=mix)
    about["canonical_correlations"] = g.canonical()
    if exact:
        about["exact_directions"] = exact
    return affine_eraser(
        m,
        left,
        strength * right,
        m.mean_x if affine else xp.zeros_like(m.mean_x),
        about,
        emptied=functions_of_concept(m) if whole and U.shape[1] else None,
    )


def _limited(left: Array, right: Array, m: Moments) -> tuple[Array, float]:
    """V' = a V + (1 - a) V_Q with the largest a in [0, 1] for which total variance does not grow (Appendix F).

    Q = I - U U^T, U orthonormal in the original units. With E = V - U the cross terms cancel:
    tr(P' S P'^T) = tr(S) - tr(U^T S U) + a^2 tr(E^T S E).
    """
    xp = namespace(left)
    if not isinstance(m, Moments) or m.d != left.shape[0]:
        raise ExciseError(f"limit_norm must be True, False or Moments of {left.shape[0]} features, got {m!r}")
    U, T = xp.linalg.qr(left)  # left = U T
    E = right @ T.T - U
    both = convert(m.cov_xx_times(convert(xp.concat([U, E], axis=1), m.mean_x)), left)
    r = U.shape[1]
    removed, added = float(xp.sum(U * both[:, :r])), float(xp.sum(E * both[:, r:]))
    if added <= removed:
        return right, 1.0
    a = float(np.sqrt(removed / added))
    return force_dual(a * right + (1.0 - a) * xp.linalg.solve(T, U.T).T, left), a
