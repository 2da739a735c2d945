"""Fair PCA (Kleindessner et al. 2023): principal components that do not know the groups."""

from __future__ import annotations

from excise.erasers.affine import AffineEraser
from excise.errors import ExciseError
from excise.methods.checks import check_strength, check_whole, describe, require_concept, warn_few_rows
from excise.methods.geometry import affine_eraser, correlations
from excise.moments.class_moments import ClassMoments
from excise.moments.moments import Moments
from excise.numerics.arrays import Array, host, namespace
from excise.numerics.correlation import basis
from excise.numerics.linalg import complement

__all__ = ["fair_pca"]


def fair_pca(
    m: Moments | ClassMoments,
    n_components: int | None = None,
    constraint: str = "mean",
    candidates: int | None = None,
    strength: float = 1.0,
) -> AffineEraser:
    """Principal components inside the directions that are uncorrelated with the concept; back-projected to d.

    X is standardised; R is the null space of Cov(Z, X). "mean": the `n_components` of largest variance in R. "covariance"
    (from ClassMoments): first the `candidates` directions of R in which the groups' covariances differ least, then the
    largest variance among those. `eraser.transform(X)` gives the n_components coordinates.

    Args:
        m: Moments, or ClassMoments (needed for "covariance").
        n_components: how many; at most d less the rank of the concept, which is what None takes.
        constraint: "mean" or "covariance".
        candidates: for "covariance"; halfway between n_components and what there is, unless given.

    Raises:
        ExciseError: more components than there are directions, or "covariance" without ClassMoments.
        ConceptError, InputError: as leace.
    """
    check_strength(strength)
    if n_components is not None:
        check_whole("n_components", n_components, 1)
    if constraint not in ("mean", "covariance"):
        raise ExciseError(f"constraint must be 'mean' or 'covariance', got {constraint!r}")
    if constraint == "covariance" and not isinstance(m, ClassMoments):
        raise ExciseError("constraint='covariance' needs ClassMoments: the covariance of each group")
    whole = m.to_moments() if isinstance(m, ClassMoments) else m
    require_concept(whole)
    warn_few_rows(whole, shrinkage="does not apply")
    D = whole.std_x
    U = basis(correlations(whole, D))[0]
    R = complement(U)  # (d, d - r), orthonormal
    most = R.shape[1]
    if most == 0:
        raise ExciseError(f"the concept takes all {whole.d} dimensions of X: there is no direction left without it")
    n_components = most if n_components is None else n_components
    if n_components > most:
        raise ExciseError(
            f"n_components must be between 1 and {most} ({whole.d} features less {U.shape[1]} directions of the concept), "
            f"got {n_components}"
        )
    if isinstance(m, ClassMoments) and constraint == "covariance":
        keep = candidates if candidates is not None else (n_components + most + 1) // 2
        if not n_components <= keep <= most:
            raise ExciseError(f"candidates must be between {n_components} and {most}, got {keep}")
        R = R @ _least(_disagreement(m, D, R), keep)
    S = R.T @ whole.correlation_matrix() @ R
    xp = namespace(S)
    variances, vectors = xp.linalg.eigh(S)
    B = R @ vectors[:, -n_components:]
    N = complement(B)
    return affine_eraser(
        whole,
        N * D[:, None],
        strength * N / D[:, None],
        whole.mean_x,
        describe(
            whole,
            "fair_pca",
            constraint=constraint,
            n_components=n_components,
            strength=strength,
            explained=float(host(variances)[-n_components:].sum() / whole.d),
        ),
        components=B / D[:, None],
    )


def _disagreement(m: ClassMoments, D: Array, R: Array) -> Array:
    """sum over groups of p_g M_g^2 with M_g = R^T (S_g - S) R: small where the covariances agree."""
    covs = m.covs
    weights = m.n / m.n.sum()
    xp = namespace(R)
    projected = [R.T @ (covs[g] / D[:, None] / D[None, :]) @ R for g in range(len(weights))]
    average = sum(float(p) * S for p, S in zip(weights, projected, strict=True))
    total = xp.zeros_like(projected[0])
    for p, S in zip(weights, projected, strict=True):
        total = total + float(p) * (S - average) @ (S - average)
    return total


def _least(M: Array, count: int) -> Array:
    return namespace(M).linalg.eigh(M)[1][:, :count]
