"""Concept switch: give X the covariance with one concept that it had with another (MidSteer, arXiv 2605.05220)."""

from __future__ import annotations

from excise.erasers.affine import AffineEraser
from excise.errors import ConceptError, InputError
from excise.methods.checks import check_strength, describe, json_names, require_concept, warn_few_rows
from excise.methods.geometry import affine_eraser, geometry
from excise.moments.moments import Moments
from excise.numerics.arrays import convert, host
from excise.numerics.correlation import basis, least_dual, scales
from excise.numerics.linalg import share_outside
from excise.numerics.precision import INFEASIBLE

__all__ = ["switch"]


def switch(m1: Moments, m2: Moments, strength: float = 1.0) -> AffineEraser:
    """A = I + W^+ (u2 - u1) u1^+ W with ui = W Sxz_i, so that A Sxz1 = Sxz2: the least edit that does it.

    Args:
        m1: moments of X and the concept that is to go.
        m2: moments of the same X and the concept that is to take its place, of the same number of columns.

    Raises:
        InputError: other features, or another number of columns.
        ConceptError: the second concept varies in a direction in which the first does not (rowsp(u2) outside rowsp(u1)).
    """
    check_strength(strength)
    require_concept(m1)
    require_concept(m2)
    if m1.d != m2.d or m1.k != m2.k:
        raise InputError(
            f"switch needs two concepts of the same width on the same features, got {m1.k} columns on {m1.d} features and "
            f"{m2.k} columns on {m2.d}"
        )
    warn_few_rows(m1, shrinkage="does not apply")
    D = m1.std_x
    one = scales(m1.var_z)  # the units of Z drop out
    A1 = m1.cov_xz / D[:, None] / one[None, :]
    A2 = convert(m2.cov_xz, D) / D[:, None] / one[None, :]
    U, s, H = basis(A1)  # A1 = U s H^T
    outside = share_outside(A2, H)
    if outside > INFEASIBLE:
        raise ConceptError(
            f"cannot switch: the second concept correlates with X in a combination of its columns in which the first does "
            f"not ({outside:.2g} of its size); use concepts with the same number of classes",
            code="infeasible",
        )
    right = least_dual(geometry(m1).F, U)
    left = (A1 - A2) @ H / s[None, :]
    info = describe(m1, "switch", strength=strength, to=json_names(m2.concept.names), singular_values=host(s).tolist())
    return affine_eraser(m1, left * D[:, None], strength * right / D[:, None], m1.mean_x, info)
