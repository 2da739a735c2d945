"""Transport of one class onto another: counterfactual rows (MiMiC, Singh et al. 2024, arXiv 2402.09631)."""

from __future__ import annotations

from excise.concepts.labels import Name, name_order
from excise.erasers.transport import TransportEraser, transport_map
from excise.errors import ConceptError, InputError
from excise.methods.checks import describe, require_concept
from excise.moments.class_moments import ClassMoments
from excise.numerics.arrays import namespace
from excise.numerics.correlation import Shrinkage, scales, shrink

__all__ = ["transport"]


def transport(m: ClassMoments, source: Name, target: Name, shrinkage: Shrinkage = "none") -> TransportEraser:
    """r(x, z) = mean_t + T (x - mean_s) for rows of class `source`, T the Gaussian optimal map; x for all other rows.

    T = S_s^-1/2 (S_s^1/2 S_t S_s^1/2)^1/2 S_s^-1/2, features standardised: afterwards the rows of `source` have the mean and
    the covariance of `target`. Pass z=[source] * n to move rows whatever their class.

    Raises:
        ConceptError: no such class, or the same class twice.
        InputError: not ClassMoments, or a class of one row.

    >>> import numpy as np
    >>> X = np.array([[0.0], [2.0], [10.0], [14.0]])
    >>> e = transport(ClassMoments().update(X, ["a", "a", "b", "b"]), "a", "b")
    >>> e(X, ["a", "a", "b", "b"]).ravel().round(9).tolist()
    [10.0, 14.0, 10.0, 14.0]
    """
    if not isinstance(m, ClassMoments):
        raise InputError(f"transport needs ClassMoments, got {type(m).__name__}: ClassMoments().update(X, z)")
    whole = m.to_moments()
    require_concept(whole)
    places = {name_order(name): i for i, name in enumerate(m.names)}
    for name in (source, target):
        if name_order(name) not in places:
            raise ConceptError(f"there is no class {name!r}; there are {', '.join(map(repr, m.names[:8]))}")
    a, b = places[name_order(source)], places[name_order(target)]
    if a == b:
        raise ConceptError(f"source and target are the same class, {source!r}")
    if m.rows[[a, b]].min() < 2:
        raise InputError("source and target need at least two rows each: a covariance is estimated from them")
    D, covs, means = whole.std_x, m.covs, m.means
    xp = namespace(D)
    units = D[:, None] * D[None, :]
    pair, intensities = [], []
    for c in (a, b):
        S = covs[c] / units
        own = scales(xp.linalg.diagonal(S))
        shrunk, intensity = shrink(S / own[:, None] / own[None, :], float(m.n[c]), shrinkage)
        pair.append(shrunk * own[:, None] * own[None, :])
        intensities.append(intensity)
    T = transport_map(pair[0], pair[1]) * D[:, None] / D[None, :]
    eye = xp.eye(D.shape[0], dtype=D.dtype, device=D.device)
    maps = xp.stack([T if c == a else eye for c in range(len(m.names))])
    # All classes but the source stay: about the center, by the identity.
    starts = xp.stack([means[a] if c == a else means[b] for c in range(len(m.names))])
    info = describe(
        whole, "transport", source=source, target=target, shrinkage=shrinkage, shrinkage_intensity=intensities
    )
    return TransportEraser(maps, starts, covs, means[b], D, m.names, m.concept, info, m.feature_names)
