"""Second-moment statistics of one batch, and the formula that joins two of them.

Sums that carry the guarantee (means, class sums, the cross-products of X and Z) are float64. The d x d product of
16- and 32-bit data with many features is float32, which only the optimality of an edit depends on; `eps` remembers
it, so that cut-offs know how far to trust the matrix.

All products are taken about a shift near the mean: each feature's median over a few rows. It is within one standard
deviation of the mean, so nothing cancels however large the offset is, and a constant feature is exactly zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from excise._array import Array, convert, dtype_name, exact_products, host, is_numpy, namespace, on_host
from excise._chunks import chunked, worker_count
from excise._linalg import data_eps
from excise.concept import Encoded
from excise.errors import InputError

__all__ = ["Statistics", "join", "not_finite", "of_batch", "spread_columns"]

EPS32, EPS64 = float(np.finfo(np.float32).eps), float(np.finfo(np.float64).eps)
FLOAT64_WIDTH = 256  # up to so many features a float64 product costs little beside reading X
WORKSPACE = 2**29  # bytes that the threads may hold in d x d matrices of their own
PILOT_ROWS = 63
TINY = 1e-290  # sums of squares below this have lost digits


@dataclass(frozen=True)
class Statistics:
    """Of n weighted rows: means, and sums of centred products."""

    n: float  # total weight
    rows: int  # rows with a weight above zero
    mean_x: Array  # (d,)
    mean_z: Array  # (k,)
    s_xx: Array  # (d, d), or (d,) where only variances are kept
    s_xz: Array  # (d, k)
    s_zz: Array  # (k, k)
    eps: float  # machine epsilon of the product in s_xx
    roundoff: float = 0.0  # of the numbers in X: half a unit in their last place, relative to their size


@dataclass
class _Sums:
    """What one worker adds up, about the shift."""

    products: Any = None  # (d, d) or (d,)
    cross: Any = None  # (k, d): class sums, or Z^T (X - shift)
    total: Any = None  # (d,)


def of_batch(X: Array, z: Encoded, weight: np.ndarray[Any, Any] | None, track_xx: bool) -> Statistics:
    """Statistics of a batch X (n, d), on the device where X is.

    Raises:
        InputError: NaN or infinite features (with their number and the first position), or squares that overflow.
    """
    with exact_products(X):
        d = X.shape[1]
        wide = d > FLOAT64_WIDTH and dtype_name(X) != "float64" and track_xx
        eps = EPS32 if wide else EPS64
        shift = _shift(X)
        weights = np.ones(z.n) if weight is None else weight
        n = float(weights.sum())
        if z.matrix is not None:  # numbers may have an offset too
            shift_z = weights @ z.matrix / n
            z = Encoded(z.n, z.k, matrix=z.matrix - shift_z)
        add_up = _sum_host if on_host(X) else _sum_device
        sums = add_up(X, shift, z, weight, track_xx, wide)
        xp = namespace(X)
        products, cross, total = (convert(part, X) for part in (sums.products, sums.cross, sums.total))
        if not bool(xp.all(xp.isfinite(products))) or not bool(xp.all(xp.isfinite(total))):
            raise not_finite(X)

        # About the shift -> about the mean.
        offset = total / n  # (d,)
        if z.codes is not None:
            counts = np.bincount(z.codes, weights=weights, minlength=z.k)
            mean_z = counts / n
            s_zz = np.diag(counts) - np.outer(counts, mean_z)
        else:
            assert z.matrix is not None
            mean_z = weights @ z.matrix / n  # what rounding left
            centred = z.matrix - mean_z
            s_zz = (centred * weights[:, None]).T @ centred
            if (np.diag(s_zz) < TINY)[(centred != 0).any(axis=0)].any():
                raise InputError(
                    "the squares of the labels (times weights) underflow float64: rescale them, e.g. z / abs(z).max()"
                )
        if not np.isfinite(s_zz).all():
            raise InputError("the squares of the labels overflow float64: rescale them, e.g. z / abs(z).max()")
        mean_z, s_zz = convert(mean_z, X), convert(s_zz, X)
        low = (products if not track_xx else xp.linalg.diagonal(products)) < TINY
        if bool(xp.any(low)) and bool(xp.any(X[:, low] != xp.astype(shift[low], X.dtype))):
            raise InputError(
                "the squares of some features (times weights) underflow float64: multiply the features by their scale"
            )
        s_xz = cross.T - total[:, None] * mean_z[None, :]
        s_xx = products - n * offset[:, None] * offset[None, :] if track_xx else products - n * offset * offset
        center_z = mean_z if z.codes is not None else mean_z + convert(shift_z, X)
        return Statistics(n, z.n, shift + offset, center_z, s_xx, s_xz, s_zz, eps, _roundoff(X))


def _few_rows(X: Array) -> Array:
    n = X.shape[0]
    rows = np.unique(np.linspace(0, n - 1, min(n, PILOT_ROWS)).astype(np.int64))
    rows = rows[: len(rows) - (len(rows) + 1) % 2]  # an odd number has a middle
    return X[rows] if is_numpy(X) else X[convert(rows, X)]


def _roundoff(X: Array) -> float:
    """Of the numbers in X; float64 on the host that holds float32 numbers has the roundoff of float32."""
    dtype = dtype_name(X)
    return data_eps(host(_few_rows(X)) if dtype == "float64" and on_host(X) else np.zeros(0), dtype)


def _shift(X: Array) -> Array:
    """(d,) float64: the median of a few rows, feature by feature; a value that occurs, so constants stay exact."""
    few = _few_rows(X)
    if is_numpy(X) or on_host(X):
        return convert(np.median(host(few).astype(np.float64), axis=0), X)
    xp = namespace(X)
    return xp.sort(xp.astype(few, xp.float64), axis=0)[few.shape[0] // 2]


def _sum_host(
    X: Array, shift: Array, z: Encoded, weight: np.ndarray[Any, Any] | None, track_xx: bool, wide: bool
) -> _Sums:
    from scipy.sparse import csr_array

    n, d = X.shape
    product_dtype = np.float32 if wide else np.float64
    shift64: np.ndarray[Any, Any] = host(shift)
    root = None if weight is None else np.sqrt(weight)
    bfloat16 = dtype_name(X) == "bfloat16"
    source = X if bfloat16 else host(X)

    def start() -> _Sums:
        return _Sums(np.zeros((d, d) if track_xx else d), np.zeros((z.k, d)), np.zeros(d))

    def work(sums: _Sums, begin: int, end: int) -> None:
        rows = host(source[begin:end]) if bfloat16 else source[begin:end]
        with np.errstate(over="ignore", invalid="ignore"):  # looked at once, in of_batch
            x = np.subtract(rows, shift64, dtype=np.float64)
            w = np.ones(end - begin) if weight is None else weight[begin:end]
            if z.codes is not None:
                labels = csr_array((w, (z.codes[begin:end], np.arange(end - begin))), shape=(z.k, end - begin))
                by_class = labels @ x
                sums.cross += by_class
                sums.total += by_class.sum(axis=0)
            else:
                assert z.matrix is not None
                sums.cross += (z.matrix[begin:end] * w[:, None]).T @ x
                sums.total += w @ x
            if root is not None:
                x *= root[begin:end, None]
            if not track_xx:
                sums.products += np.einsum("ij,ij->j", x, x)
                return
            narrow = x.astype(product_dtype, copy=False)
            product = narrow.T @ narrow  # NumPy sees the symmetry and does half of the work
            if wide and not _in_range(product, x):
                product = x.T @ x
            sums.products += product

    budget = WORKSPACE // (d * d * 12) if track_xx else None
    parts = chunked(n, max(2**21 // d, d // 4, 512), start, work, worker_count(budget) if n * d > 2**18 else 1)
    return _Sums(*(sum(getattr(part, name) for part in parts) for name in ("products", "cross", "total")))


def _in_range(product: Array, x: Array) -> bool:
    """Whether squares fitted into float32: no overflow, and no underflow but where a feature is constant."""
    xp = namespace(product)
    diagonal = xp.linalg.diagonal(product)
    low = diagonal < 1e-30
    if not bool(xp.all(xp.isfinite(diagonal))):
        return False
    return not bool(xp.any(low)) or not bool(xp.any(x[:, low] != 0))


def _sum_device(
    X: Array, shift: Array, z: Encoded, weight: np.ndarray[Any, Any] | None, track_xx: bool, wide: bool
) -> _Sums:
    """The same on an accelerator. Class sums are one-hot products there: deterministic, unlike atomic additions."""
    xp = namespace(X)
    n, d = X.shape
    rows = max(2**25 // d, 512)
    sums = _Sums()
    w_all = None if weight is None else convert(weight, X)
    codes = None if z.codes is None else convert(z.codes, X)
    matrix = None if z.matrix is None else convert(z.matrix, X)
    classes = convert(np.arange(z.k), X)
    for begin in range(0, n, rows):
        part = X[begin : begin + rows]
        x = part - shift  # float64, as the shift is
        if codes is not None:
            labels = xp.astype(codes[begin : begin + rows, None] == classes[None, :], xp.float64)
        else:
            assert matrix is not None
            labels = matrix[begin : begin + rows]
        w = None if w_all is None else w_all[begin : begin + rows, None]
        cross = (labels if w is None else labels * w).T @ x
        # Every row has one class, so the class sums add up to the total; numbers need a sum of their own.
        total = xp.sum(cross, axis=0) if codes is not None else xp.sum(x if w is None else x * w, axis=0)
        if w is not None:
            x = x * xp.sqrt(w)
        if not track_xx:
            product = xp.sum(x * x, axis=0)
        else:
            product = _symmetric(xp.astype(x, xp.float32) if wide else x)
            if wide and not _in_range(product, x):
                product = x.T @ x
            product = xp.astype(product, xp.float64)
        first = sums.total is None
        sums.products = product if first else sums.products + product
        sums.cross = cross if first else sums.cross + cross
        sums.total = total if first else sums.total + total
    return sums


def not_finite(X: Array) -> InputError:
    """The error for features that are not finite, or whose squares are not."""
    values = host(X)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0]
        return InputError(
            f"X has {len(bad)} values that are NaN or infinite (first at row {row}, feature {column}: "
            f"{values[row, column]}): remove or impute them"
        )
    return InputError(
        f"the squares of X (times weights) overflow float64 (largest |x| is {float(np.abs(values).max()):.3g}): divide the "
        f"features by their scale"
    )


def _symmetric(x: Array) -> Array:
    """x^T x by blocks of columns, one triangle of them: five eighths of the work where there are many columns."""
    xp = namespace(x)
    d = x.shape[1]
    if d < 2048:
        return x.T @ x
    edges = [round(d * i / 4) for i in range(5)]
    out = xp.empty((d, d), dtype=x.dtype, device=x.device)
    for i in range(4):
        for j in range(i + 1):
            a, b = slice(edges[i], edges[i + 1]), slice(edges[j], edges[j + 1])
            block = x[:, a].T @ x[:, b]
            out[a, b] = block
            if i != j:
                out[b, a] = block.T
    return out


def spread_columns(s: Statistics, positions: list[int], k: int) -> Statistics:
    """The same statistics with more classes: columns moved to `positions`, zeros elsewhere (exact: never seen)."""
    if positions == list(range(k)):
        return s
    xp = namespace(s.s_xz)
    move = np.zeros((len(positions), k))
    move[np.arange(len(positions)), positions] = 1.0
    m = convert(move, s.s_xz)
    # Products with a 0/1 selection matrix are exact, and the same in every array library.
    return replace(s, mean_z=s.mean_z @ m, s_xz=s.s_xz @ m, s_zz=xp.matmul(xp.matmul(m.T, s.s_zz), m))


def join(a: Statistics, b: Statistics) -> Statistics:
    """Statistics of both (Chan et al. 1983): products add up, plus those of the difference of the means."""
    n = a.n + b.n
    # Written so that join(a, b) and join(b, a) are the same to the last bit.
    dx, dz = b.mean_x - a.mean_x, b.mean_z - a.mean_z
    weight = a.n * (b.n / n) if a.n >= b.n else b.n * (a.n / n)
    outer = weight * dx[:, None] * dx[None, :] if a.s_xx.ndim == 2 else weight * dx * dx
    return Statistics(
        n=n,
        rows=a.rows + b.rows,
        mean_x=_mean(a.n, a.mean_x, b.n, b.mean_x),
        mean_z=_mean(a.n, a.mean_z, b.n, b.mean_z),
        s_xx=a.s_xx + b.s_xx + outer,
        s_xz=a.s_xz + b.s_xz + weight * dx[:, None] * dz[None, :],
        s_zz=a.s_zz + b.s_zz + weight * dz[:, None] * dz[None, :],
        eps=max(a.eps, b.eps),
        roundoff=max(a.roundoff, b.roundoff),
    )


def _mean(n_a: float, a: Array, n_b: float, b: Array) -> Array:
    """The joint mean as a step from the larger part: exact where the two are equal, so constants stay constant."""
    if n_a == n_b:
        return 0.5 * a + 0.5 * b
    if n_a < n_b:
        n_a, a, n_b, b = n_b, b, n_a, a
    return a + (b - a) * (n_b / (n_a + n_b))
