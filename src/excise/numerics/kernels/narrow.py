"""Sums over 16-bit rows on a CUDA device: the rows themselves are the factors of tensor-core products.

Features with a small offset are not shifted: a 16-bit number that is shifted is no 16-bit number any more, and a small
offset can be corrected afterwards. The few with a large offset are shifted in float64 and multiplied in two parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from excise.numerics.kernels.gather import sums_of_squares
from excise.numerics.kernels.products import class_sums, product_of_parts, product_of_rows, split_in_two

__all__ = ["NarrowSums", "sums_of_narrow_rows"]


@dataclass(frozen=True)
class NarrowSums:
    """About the shift, in float64."""

    products: torch.Tensor  # (d, d)
    cross: torch.Tensor  # (k, d)
    squares: torch.Tensor  # (d,)


def sums_of_narrow_rows(
    x: torch.Tensor, shift: torch.Tensor, moved: torch.Tensor, codes: torch.Tensor, k: int
) -> NarrowSums:
    """Sums of bfloat16 or float16 rows x (n, d) with classes `codes` (n,).

    Args:
        shift: (d,) float64; zero but for the features `moved` (f,).
    """
    products = product_of_parts(x[None])
    cross = class_sums(x, codes, k)
    squares = sums_of_squares(x)
    if moved.numel():
        own = x[:, moved].double() - shift[moved]  # (n, f)
        high, low = split_in_two(own, x.dtype)
        columns = product_of_rows(x, high) + product_of_rows(x, low)  # (d, f): the others are not shifted
        columns[moved] = own.T @ own
        products[:, moved], products[moved, :] = columns, columns.T
        labels = (codes[:, None] == torch.arange(k, device=x.device)[None, :]).double()
        cross[:, moved] = labels.T @ own
        squares[moved] = products.diagonal()[moved]
    return NarrowSums(products, cross, squares)
