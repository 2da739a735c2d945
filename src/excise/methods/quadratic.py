"""Quadratic erasure: move every class to one common Gaussian, so that means *and* covariances of all classes agree.

Optimal transport between Gaussians: each class goes to the Wasserstein barycentre of all, by the linear map that moves
it least. Needs the label of every row when it is applied.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from excise.erasers.transport import TransportEraser, transport_map
from excise.errors import InputError, warn
from excise.methods.checks import check_number, describe, require_concept
from excise.moments.class_moments import ClassMoments
from excise.numerics.arrays import Array, namespace
from excise.numerics.correlation import Shrinkage, scales, shrink
from excise.numerics.linalg import inverse_root_psd, rank_psd, root_psd
from excise.numerics.memory import require_memory
from excise.numerics.precision import UNEQUAL

__all__ = ["quadratic"]


def quadratic(
    m: ClassMoments, shrinkage: Shrinkage = "none", tolerance: float = 1e-12, max_iterations: int = 500
) -> TransportEraser:
    """r(x, c) = T_c (x - mean_c) + mean with T_c = Sc^-1/2 (Sc^1/2 S* Sc^1/2)^1/2 Sc^-1/2, features standardised.

    mean is the mean of all rows; S* is the barycentre of the class covariances, weighted by class frequency: in closed form
    for two classes, by the fixed-point iteration S* <- S*^-1/2 (sum p_c (S*^1/2 Sc S*^1/2)^1/2)^2 S*^-1/2 otherwise.

    Args:
        m: a mean and covariance per class.
        shrinkage: shrinks each class's correlation matrix first; the covariances then agree only as far as it was right.
        tolerance: relative change of S* at which the iteration stops.
        max_iterations: the iteration gives up after this many, with a warning.

    Raises:
        ConceptError: one class only.
        InputError: a class with one row.
    """
    if not isinstance(m, ClassMoments):
        raise InputError(
            f"expected ClassMoments, got {type(m).__name__}: ClassMoments().update(X, z), or use excise.fit"
        )
    whole = m.to_moments()
    require_concept(whole)
    rows = m.rows
    if rows.min() < 2:
        few = m.names[int(np.argmin(rows))]
        raise InputError(f"class {few!r} has {rows.min()} row: quadratic erasure needs a covariance per class")
    check_number("tolerance", tolerance, positive=True)
    d = whole.d or 0
    require_memory(
        4 * 8 * len(rows) * d * d,
        f"quadratic erasure of {len(rows)} classes of {d} features",
        "erase fewer classes, or use leace",
    )
    D = whole.std_x
    units = D[:, None] * D[None, :]
    xp = namespace(D)
    covs, intensities = [], []
    for c, count in enumerate(m.n.tolist()):
        S = m.covs[c] / units
        own = scales(xp.linalg.diagonal(S))
        shrunk, a = shrink(S / own[:, None] / own[None, :], count, shrinkage)
        covs.append(shrunk * own[:, None] * own[None, :] if a > 0 else S)
        intensities.append(a)
    target, report = _barycentre(covs, m.n / m.n.sum(), tolerance, max_iterations)
    maps = [transport_map(S, target) for S in covs]
    left = max(float(xp.max(xp.abs(T @ S @ T.T - target))) for T, S in zip(maps, covs, strict=True))
    if left > UNEQUAL:
        warn(
            f"the class covariances cannot be made equal by linear maps (they still differ by {left:.2g}, in units of the "
            f"features' variances): some class does not vary where another does; pass shrinkage='oas', or drop those features",
            code="unequal-covariances",
        )
    info: dict[str, Any] = describe(
        whole, "quadratic", shrinkage=shrinkage, shrinkage_intensity=intensities, residual=left
    )
    return TransportEraser(
        xp.stack([T * D[:, None] / D[None, :] for T in maps]),
        m.means,
        xp.stack([S * units for S in covs]),
        whole.mean_x,
        D,
        m.names,
        m.concept,
        {**info, **report},
        m.feature_names,
    )


def _barycentre(covs: list[Array], weights: Any, tolerance: float, most: int) -> tuple[Array, dict[str, Any]]:
    xp = namespace(covs[0])
    if len(covs) == 2:
        # From the class of lower rank: no linear map can make variance where a class has none, so the other gives way.
        a, b = (0, 1) if rank_psd(covs[0]) <= rank_psd(covs[1]) else (1, 0)
        T = transport_map(covs[a], covs[b])
        eye = xp.eye(T.shape[0], dtype=T.dtype, device=T.device)
        mixed = float(weights[a]) * eye + float(weights[b]) * T
        return mixed @ covs[a] @ mixed.T, {"iterations": 0, "converged": True, "closed_form": True}
    S = sum(float(p) * C for p, C in zip(weights, covs, strict=True))
    change = float("inf")
    for iteration in range(1, most + 1):
        root, inverse = root_psd(S), inverse_root_psd(S)
        inner = sum(float(p) * root_psd(root @ C @ root) for p, C in zip(weights, covs, strict=True))
        new = inverse @ inner @ inner @ inverse
        new = (new + new.T) / 2
        change = float(xp.max(xp.abs(new - S))) / max(float(xp.max(xp.abs(new))), 1e-300)
        S = new
        if change < tolerance:
            return S, {"iterations": iteration, "converged": True, "closed_form": False}
    warn(
        f"the barycentre has not converged: after {most} iterations it still changes by {change:.2g} (tolerance "
        f"{tolerance:g}); raise max_iterations, or pass shrinkage='oas' if the class covariances are singular",
        code="not-converged",
    )
    return S, {"iterations": most, "converged": False, "closed_form": False, "last_change": change}
