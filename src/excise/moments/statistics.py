"""Second-moment statistics of one batch, and the formula that joins two of them.

Sums that carry the guarantee (means, variances, class sums, the cross-products of X and Z) are float64. The d x d
product of 16- and 32-bit data with many features is float32, on which only the optimality of an edit depends; `eps`
records it, so that cut-offs know how far to trust the matrix.

All products are taken about a shift near the mean: each feature's median over a few rows. It is within one standard
deviation of the mean, so nothing cancels however large the offset is, and a constant feature is exactly zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from excise.concepts.encoded import Encoded
from excise.errors import InputError
from excise.moments.fingerprints import Fingerprints
from excise.moments.scatter import MatrixScatter, RowScatter, Scatter, VarianceScatter
from excise.numerics import kernels
from excise.numerics.arrays import (
    Array,
    convert,
    dtype_name,
    exact_products,
    host,
    is_16_bit,
    is_numpy,
    is_torch,
    namespace,
    on_host,
)
from excise.numerics.chunks import chunked, worker_count
from excise.numerics.correlation import scales
from excise.numerics.precision import CONSTANT, EPS32, EPS64, SMALLEST_SQUARE, unit_roundoff

__all__ = [
    "Statistics",
    "class_covariance",
    "join",
    "not_finite",
    "of_batch",
    "spread_columns",
    "stored_n2",
    "stored_rounding",
    "without",
]

FLOAT64_WIDTH = 256  # up to this many features a float64 product costs little beside reading X
WORKSPACE = 2**29  # bytes that the threads may hold in d x d matrices of their own
PILOT_ROWS = 63
SMALL = 2**16  # numbers in a batch that is added up in one piece


@dataclass(frozen=True)
class Statistics:
    """Of n weighted rows: means, and sums of centred products."""

    n: float  # total weight
    rows: int  # rows with a weight above zero
    mean_x: Array  # (d,)
    mean_z: Array  # (k,)
    s_xx: Scatter
    s_xz: Array  # (d, k)
    s_zz: Array | None  # (k, k); None for one block of classes, where n and mean_z say it all
    eps: float  # machine epsilon of the product in s_xx
    n2: float  # sum of the squared weights
    rounding: Array  # (d,) sum over rows of w (u x)^2, with u the unit roundoff of the digits that x has
    fingerprints: Fingerprints | None = None  # None if nobody looked

    @property
    def kish(self) -> float:
        """Effective number of rows: that many equal weights would let means be known as well."""
        return self.n * (self.n / self.n2)

    @cached_property
    def var_x(self) -> Array:
        """(d,) variances of the features; zero if they are no more than what rounding makes of a constant."""
        var = self.s_xx.diagonal() / self.n
        xp = namespace(var)
        var = xp.where(var > 0, var, xp.zeros_like(var))
        return xp.where(xp.sqrt(var) > CONSTANT * xp.abs(self.mean_x), var, xp.zeros_like(var))

    @cached_property
    def delta(self) -> Array:
        """(d,) what one rounding does to a feature, in its standard deviations."""
        rounding = self.rounding / self.n
        xp = namespace(rounding)
        return xp.sqrt(xp.where(self.var_x > 0, rounding, xp.zeros_like(rounding))) / self.std_x

    @property
    def unit_roundoff(self) -> float:
        """Of the digits that the features have, on average."""
        xp = namespace(self.mean_x)
        size = max(float(xp.sum(self.mean_x**2 + self.var_x)), 1e-300)
        return float(np.sqrt(float(xp.sum(self.rounding)) / self.n / size))

    @cached_property
    def host_var_x(self) -> np.ndarray[Any, Any]:
        """The same in NumPy."""
        return host(self.var_x)

    @cached_property
    def std_x(self) -> Array:
        """(d,) standard deviations to divide by; 1 for a constant feature."""
        return scales(self.var_x)


def class_covariance(mean_z: Array) -> Array:
    """(k, k) covariance of 0/1 columns of which exactly one is 1 in each row: diag(p) - p p^T."""
    xp = namespace(mean_z)
    return mean_z[:, None] * xp.eye(mean_z.shape[0], dtype=mean_z.dtype, device=mean_z.device) - (
        mean_z[:, None] * mean_z[None, :]
    )


@dataclass
class _Sums:
    """What one worker adds up, about the shift."""

    products: Any = None  # (d, d) or (d,)
    cross: Any = None  # (k, d): class sums, or Z^T (X - shift)
    total: Any = None  # (d,)
    squares: Any = None  # (d,) float64, where the products are float32
    doubtful: Any = None  # on a device: whether squares may have left the range of float32; looked at with all else


def of_batch(
    X: Array, z: Encoded, weight: np.ndarray[Any, Any] | None, track_xx: bool, look: bool = True
) -> Statistics:
    """Statistics of a batch X (n, d), on the device where X is.

    Raises:
        InputError: NaN or infinite features (with their number and the first position), or squares that overflow.
    """
    n = float(z.n if weight is None else weight.sum())
    labels = _labels(z, weight, n)
    with exact_products(X):
        xp = namespace(X)
        d = X.shape[1]
        keep_rows = track_xx and X.shape[0] < d
        wide = d > FLOAT64_WIDTH and dtype_name(X) != "float64" and track_xx and not keep_rows
        few = _few_rows(X)
        shift = _shift(X, few)
        add_up = _sum_rows if keep_rows else _sum_host if on_host(X) else _sum_device
        sums = add_up(X, shift, labels.z, weight, track_xx, wide)
        if sums.doubtful is not None and bool(sums.doubtful):  # the one wait for the device, if all is well
            sums = _sum_device(X, shift, labels.z, weight, track_xx, wide, by_kernels=False)
        well = sums.doubtful is not None
        products, cross, total = (convert(part, X) for part in (sums.products, sums.cross, sums.total))
        seen = products if sums.squares is None else convert(sums.squares, X)  # what is not finite shows in its square
        if not well and (not bool(xp.all(xp.isfinite(seen))) or not bool(xp.all(xp.isfinite(total)))):
            raise not_finite(X)
        offset = total / n  # (d,): the mean, about the shift
        s_xx: Scatter
        if keep_rows:
            s_xx = RowScatter((products,))
        elif not track_xx:
            s_xx = VarianceScatter(products - n * offset * offset)
        else:
            squares = None if sums.squares is None else convert(sums.squares, X) - n * offset * offset
            s_xx = MatrixScatter(_about_mean(products, n, offset, squares))
        if not well:
            _refuse_underflow(X, shift, s_xx.diagonal())
        small = convert(labels.small_mean, X)
        mean_z = small if labels.mean is labels.small_mean else convert(labels.mean, X)
        s_xz = cross.T - total[:, None] * small[None, :]
        s_zz = None if labels.s_zz is None else convert(labels.s_zz, X)
        mean_x = shift + offset
        pilot = host(few) if look or not is_16_bit(X) else None  # who looks at digits waits for the device
        return Statistics(
            n=n,
            rows=z.n,
            mean_x=mean_x,
            mean_z=mean_z,
            s_xx=s_xx,
            s_xz=s_xz,
            s_zz=s_zz,
            eps=EPS32 if wide else EPS64,
            n2=n if weight is None else float(weight @ weight),
            rounding=_rounding(n, mean_x, s_xx.diagonal(), unit_roundoff(pilot, dtype_name(X))),
            fingerprints=Fingerprints.of(X, pilot) if look else None,
        )


@dataclass(frozen=True)
class _Labels:
    """The labels of a batch, numbers taken about their mean."""

    z: Encoded
    small_mean: Any  # (k,) mean of z: the shares of classes; for numbers, what rounding left of it
    mean: Any  # (k,) mean of the labels as they came
    s_zz: Any


def _labels(z: Encoded, weight: Any, n: float) -> _Labels:
    if z.matrix is None:
        counts = z.counts if weight is None else np.bincount(np.asarray(z.codes), weights=weight, minlength=z.k)
        shares = counts / n
        return _Labels(z, shares, shares, None)
    weights = np.ones(z.n) if weight is None else weight
    with np.errstate(over="ignore", invalid="ignore"):
        shift = weights @ z.matrix / n  # numbers may have an offset too
        moved = z.matrix - shift
        small = weights @ moved / n
        centred = moved - small
        s_zz = (centred * weights[:, None]).T @ centred
    if not np.isfinite(s_zz).all():
        raise InputError("the squares of the labels overflow float64: rescale them, e.g. z / abs(z).max()")
    if (np.diag(s_zz) < SMALLEST_SQUARE)[(centred != 0).any(axis=0)].any():
        raise InputError(
            "the squares of the labels (times weights) underflow float64: rescale them, e.g. z / abs(z).max()"
        )
    return _Labels(Encoded(z.n, z.k, matrix=moved), small, small + shift, s_zz)


def _about_mean(products: Array, n: float, offset: Array, squares: Array | None) -> Array:
    """Products about the shift -> about the mean, in place; on the diagonal `squares`, which are more exact."""
    if is_torch(products):
        products.addr_(offset, offset, alpha=-n)
        if squares is not None:
            products.diagonal().copy_(squares)
        return products
    products = products - n * offset[:, None] * offset[None, :]
    if squares is not None:
        at = convert(np.arange(products.shape[0]), products)
        products[at, at] = squares
    return products


def _refuse_underflow(X: Array, shift: Array, squares: Array) -> None:
    xp = namespace(X)
    low = squares < SMALLEST_SQUARE
    if bool(xp.any(low)) and bool(xp.any(X[:, low] != xp.astype(shift[low], X.dtype))):
        raise InputError(
            "the squares of some features (times weights) underflow float64: multiply the features by their scale"
        )


def _few_rows(X: Array) -> Array:
    """At most PILOT_ROWS rows, evenly spread; an odd number, which has a middle."""
    n = X.shape[0]
    if n <= PILOT_ROWS:
        return X[: n - (n + 1) % 2]
    if not is_numpy(X) and not on_host(X):  # a view: nothing travels to the device
        return X[:: n // PILOT_ROWS][:PILOT_ROWS]
    rows = np.arange(PILOT_ROWS) * (n - 1) // (PILOT_ROWS - 1)
    return X[rows] if is_numpy(X) else X[convert(rows, X)]


def _rounding(n: float, mean: Array, squares: Array, unit: float) -> Array:
    """(d,) sum of the squared roundings of numbers with this mean and these centred squares."""
    return unit * unit * squares + n * (unit * mean) ** 2


def _shift(X: Array, few: Array) -> Array:
    """(d,) float64: the median of a few rows, feature by feature; a value that occurs, so constants stay exact."""
    middle = few.shape[0] // 2
    if is_numpy(X) or on_host(X):
        return convert(np.partition(host(few).astype(np.float64), middle, axis=0)[middle], X)
    xp = namespace(X)
    wide = xp.astype(few, xp.float64)
    median = xp.sort(wide, axis=0)[middle]
    if not is_16_bit(X):
        return median
    # 16-bit numbers stay exact factors where they are not shifted; small offsets can be corrected afterwards.
    spread = xp.sort(xp.abs(wide - median), axis=0)[middle]
    return xp.where(xp.abs(median) > 4.0 * spread, median, xp.zeros_like(median))


def _sum_rows(
    X: Array, shift: Array, z: Encoded, weight: np.ndarray[Any, Any] | None, track_xx: bool, wide: bool
) -> _Sums:
    """Fewer rows than features: the rows themselves, centred, in place of their products."""
    xp = namespace(X)
    if is_numpy(X) or on_host(X):
        x = np.subtract(host(X), host(shift), dtype=np.float64)
        w: Any = np.ones(z.n) if weight is None else weight
        if z.codes is not None:
            cross = _class_sums(x, z.codes, z.k, weight)
        else:
            assert z.matrix is not None
            cross = (z.matrix * w[:, None]).T @ x
        total = w @ x
        root = None if weight is None else np.sqrt(w)[:, None]
    else:
        x = X - shift  # float64, as the shift is
        w = convert(np.ones(z.n) if weight is None else weight, x)
        cross = (convert(z.dense(), x) * w[:, None]).T @ x
        total = w @ x
        root = None if weight is None else xp.sqrt(w)[:, None]
    rows = x - total / float(np.sum(np.ones(z.n) if weight is None else weight))
    return _Sums(rows if root is None else rows * root, cross, total)


def _sum_host(
    X: Array, shift: Array, z: Encoded, weight: np.ndarray[Any, Any] | None, track_xx: bool, wide: bool
) -> _Sums:
    n, d = X.shape
    shift64: np.ndarray[Any, Any] = host(shift)
    root = None if weight is None else np.sqrt(weight)
    bfloat16 = dtype_name(X) == "bfloat16"
    source = X if bfloat16 else host(X)

    def start() -> _Sums:
        return _Sums(
            np.zeros((d, d) if track_xx else d), np.zeros((z.k, d)), np.zeros(d), np.zeros(d) if wide else None
        )

    def work(sums: _Sums, begin: int, end: int) -> None:
        rows = host(source[begin:end]) if bfloat16 else source[begin:end]
        with np.errstate(over="ignore", invalid="ignore"):  # looked at once, in of_batch
            x = np.subtract(rows, shift64, dtype=np.float64)
            w = None if weight is None else weight[begin:end]
            if z.codes is not None:
                by_class = _class_sums(x, z.codes[begin:end], z.k, w)
                sums.cross += by_class
                sums.total += by_class.sum(axis=0)
            else:
                assert z.matrix is not None
                labels = z.matrix[begin:end]
                sums.cross += (labels if w is None else labels * w[:, None]).T @ x
                sums.total += x.sum(axis=0) if w is None else w @ x
            if root is not None:
                x *= root[begin:end, None]
            if not track_xx:
                sums.products += np.einsum("ij,ij->j", x, x)
                return
            narrow = x.astype(np.float32) if wide else x
            product = narrow.T @ narrow  # NumPy sees the symmetry and does half of the work
            if wide:
                sums.squares += np.einsum("ij,ij->j", x, x)
                if not _in_range(product, x):
                    product = x.T @ x
            sums.products += product

    if n * d <= SMALL:
        sums = start()
        work(sums, 0, n)
        return sums
    budget = WORKSPACE // (d * d * 12) if track_xx else None
    parts = chunked(n, max(2**21 // d, d // 4, 512), start, work, worker_count(budget) if n * d > 2**18 else 1)
    names = ("products", "cross", "total", "squares")
    return _Sums(*(sum(getattr(part, name) for part in parts) if wide or name != "squares" else None for name in names))


def _class_sums(x: Any, codes: Any, k: int, weight: Any) -> Any:
    """(k, d) sums of the rows of each class."""
    m = len(codes)
    if m * k <= SMALL:
        labels = np.zeros((k, m))
        labels[codes, np.arange(m)] = 1.0 if weight is None else weight
        return labels @ x
    from scipy.sparse import csr_array

    return csr_array((np.ones(m) if weight is None else weight, (codes, np.arange(m))), shape=(k, m)) @ x


def _in_range(product: Array, x: Array) -> bool:
    """Whether squares fitted into float32: no overflow, and no underflow but where a feature is constant."""
    xp = namespace(product)
    diagonal = xp.linalg.diagonal(product)
    low = diagonal < 1e-30
    if not bool(xp.all(xp.isfinite(diagonal))):
        return False
    return not bool(xp.any(low)) or not bool(xp.any(x[:, low] != 0))


def _sum_device(
    X: Array,
    shift: Array,
    z: Encoded,
    weight: np.ndarray[Any, Any] | None,
    track_xx: bool,
    wide: bool,
    by_kernels: bool = True,
) -> _Sums:
    """The same on an accelerator. Class sums are one-hot products there: deterministic, unlike atomic additions."""
    if by_kernels and wide and is_torch(X) and kernels.available(X):
        fast = _sum_by_kernels(X, shift, z, weight)
        if fast is not None:
            return fast
    xp = namespace(X)
    n, d = X.shape
    rows = max(2**25 // d, 512)
    sums = _Sums()
    w_all = None if weight is None else convert(weight, X)
    codes = z.codes_like(X) if z.has_classes else None
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
            if wide:
                squares = xp.sum(x * x, axis=0)
                sums.squares = squares if sums.squares is None else sums.squares + squares
            if wide and not _in_range(product, x):
                product = x.T @ x
            product = xp.astype(product, xp.float64)
        first = sums.total is None
        sums.products = product if first else sums.products + product
        sums.cross = cross if first else sums.cross + cross
        sums.total = total if first else sums.total + total
    return sums


def _sum_by_kernels(X: Array, shift: Array, z: Encoded, weight: np.ndarray[Any, Any] | None) -> _Sums | None:
    """On the tensor cores, for classes; None for too many of them."""
    from excise.numerics.kernels.gather import MOST_CLASSES, ROWS_AT_ONCE, gather_rows
    from excise.numerics.kernels.narrow import sums_of_narrow_rows
    from excise.numerics.kernels.products import product_of_parts

    narrow = is_16_bit(X)
    moved = np.flatnonzero(host(shift)) if narrow else np.zeros(0)
    if not z.has_classes or z.k > MOST_CLASSES or (narrow and (weight is not None or 4 * len(moved) > X.shape[1])):
        return None
    n, d = X.shape
    X = X if X.stride(-1) == 1 else X.contiguous()
    codes, weights = z.codes_like(X), None if weight is None else convert(weight, X)
    if narrow:
        found = sums_of_narrow_rows(X, shift, convert(moved, X), codes, z.k)
        sums = _Sums(found.products, found.cross, None, found.squares)
    else:
        sums = _Sums(0.0, 0.0, None, 0.0)
        for begin in range(0, n, rows := max(1, ROWS_AT_ONCE // d)):
            part = slice(begin, begin + rows)
            own = gather_rows(X[part], shift, codes[part], z.k, None if weights is None else weights[part])
            sums.products = sums.products + product_of_parts(own.parts)
            sums.cross, sums.squares = sums.cross + own.cross, sums.squares + own.squares
    sums.total = sums.cross.sum(0)  # every row has one class
    # Squares that are too small or too large for float32, or not finite at all, are looked at again without the kernels.
    # A sum of zero is that of a constant.
    off = (sums.products.diagonal() - sums.squares).abs()
    good = (off < 1e-2 * sums.squares) & (sums.squares >= SMALLEST_SQUARE) | (sums.squares == 0.0)
    sums.doubtful = ~(good.all() & sums.total.isfinite().all())
    return sums


def not_finite(X: Array) -> InputError:
    """The error for features that are not finite, or whose squares are not."""
    values = host(X)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0]
        return InputError(
            f"X has {len(bad)} values that are NaN or infinite (first at row {row}, feature {column}: "
            f"{values[row, column]}): remove or impute them",
            code="not-finite",
        )
    return InputError(
        f"the squares of X (times weights) overflow float64 (largest |x| is {float(np.abs(values).max()):.3g}): divide the "
        f"features by their scale",
        code="out-of-range",
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
    at = convert(np.array(positions, dtype=np.int64), s.s_xz)
    mean_z, s_xz = _zeros(s.s_xz, (k,)), _zeros(s.s_xz, (s.s_xz.shape[0], k))
    mean_z[at], s_xz[:, at] = s.mean_z, s.s_xz
    s_zz = None
    if s.s_zz is not None:
        s_zz = _zeros(s.s_xz, (k, k))
        s_zz[at[:, None], at[None, :]] = s.s_zz
    return replace(s, mean_z=mean_z, s_xz=s_xz, s_zz=s_zz)


def _zeros(like: Array, shape: tuple[int, ...]) -> Array:
    return namespace(like).zeros(shape, dtype=like.dtype, device=like.device)


def join(a: Statistics, b: Statistics) -> Statistics:
    """Statistics of both (Chan et al. 1983): products add up, plus those of the difference of the means."""
    n = a.n + b.n
    # Written so that join(a, b) and join(b, a) are the same to the last bit.
    dx, dz = b.mean_x - a.mean_x, b.mean_z - a.mean_z
    weight = a.n * (b.n / n) if a.n >= b.n else b.n * (a.n / n)
    first, second = (a, b) if _order(a) <= _order(b) else (b, a)
    s_zz = None
    if a.s_zz is not None or b.s_zz is not None:
        s_zz = _full_s_zz(a) + _full_s_zz(b) + weight * dz[:, None] * dz[None, :]
    return Statistics(
        n=n,
        rows=a.rows + b.rows,
        mean_x=_mean(a.n, a.mean_x, b.n, b.mean_x),
        mean_z=_mean(a.n, a.mean_z, b.n, b.mean_z),
        s_xx=first.s_xx.join(second.s_xx, weight, dx),
        s_xz=a.s_xz + b.s_xz + weight * dx[:, None] * dz[None, :],
        s_zz=s_zz,
        eps=max(a.eps, b.eps),
        n2=a.n2 + b.n2,
        rounding=a.rounding + b.rounding,
        fingerprints=None if a.fingerprints is None or b.fingerprints is None else a.fingerprints + b.fingerprints,
    )


def without(a: Statistics, b: Statistics) -> Statistics:
    """Statistics of the rows of a that are not in b, which a contains: `join` undone."""
    n = a.n - b.n
    mean_x = a.mean_x + (a.mean_x - b.mean_x) * (b.n / n)
    mean_z = a.mean_z + (a.mean_z - b.mean_z) * (b.n / n)
    dx, dz = b.mean_x - mean_x, b.mean_z - mean_z
    weight = -b.n * (n / a.n)
    s_xx: Scatter
    if isinstance(a.s_xx, VarianceScatter):
        s_xx = VarianceScatter(a.s_xx.diagonal() - b.s_xx.diagonal() + weight * dx * dx)
    else:
        s_xx = MatrixScatter(a.s_xx.matrix() - b.s_xx.matrix() + weight * dx[:, None] * dx[None, :])
    s_zz = None
    if a.s_zz is not None:
        s_zz = a.s_zz - _full_s_zz(b) + weight * dz[:, None] * dz[None, :]
    s_xz = a.s_xz - b.s_xz + weight * dx[:, None] * dz[None, :]
    # The products of both are off by a few roundings of the larger one.
    kept, whole = s_xx.diagonal(), a.s_xx.diagonal()
    xp = namespace(kept)
    growth = float(xp.max(xp.where(kept > 0, whole / xp.where(kept > 0, kept, xp.ones_like(kept)), xp.ones_like(kept))))
    return replace(
        a,
        n=n,
        rows=a.rows - b.rows,
        mean_x=mean_x,
        mean_z=mean_z,
        s_xx=s_xx,
        s_xz=s_xz,
        s_zz=s_zz,
        eps=a.eps * max(1.0, growth),
        n2=max(a.n2 - b.n2, 0.0) or n,
        rounding=xp.where(a.rounding > b.rounding, a.rounding - b.rounding, xp.zeros_like(a.rounding)),
        fingerprints=None if a.fingerprints is None or b.fingerprints is None else a.fingerprints - b.fingerprints,
    )


def _full_s_zz(s: Statistics) -> Array:
    return s.n * class_covariance(s.mean_z) if s.s_zz is None else s.s_zz


def _order(s: Statistics) -> tuple[float, ...]:
    """A key that two parts can be put in order by; only rows that are kept have an order at all."""
    return (s.n, *host(s.mean_x).tolist()) if isinstance(s.s_xx, RowScatter) else (s.n,)


def _mean(n_a: float, a: Array, n_b: float, b: Array) -> Array:
    """The joint mean as a step from the larger part: exact where the two are equal, so constants stay constant."""
    if n_a == n_b:
        return 0.5 * a + 0.5 * b
    if n_a < n_b:
        n_a, a, n_b, b = n_b, b, n_a, a
    return a + (b - a) * (n_b / (n_a + n_b))


def stored_n2(about: dict[str, Any], n: float, rows: int) -> float:
    """The sum of the squared weights as a file has it; older files know of equal weights only."""
    return float(about["n2"]) if "n2" in about else n * n / rows


def stored_rounding(arrays: dict[str, Array], about: dict[str, Any], n: float, squares: Array, mean: Array) -> Array:
    """The rounding of the features as a file has it; older files have the roundoff of their dtype."""
    if "rounding" in arrays:
        return arrays["rounding"]
    return _rounding(n, mean, squares, about.get("roundoff", 0.0))
