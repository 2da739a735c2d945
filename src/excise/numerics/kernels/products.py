"""Products of 16-bit parts of rows on the tensor cores: summed in float32 over a stretch of rows, in float64 from there on.

Only one triangle of blocks of X^T X is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, combinations_with_replacement

import torch

__all__ = ["blocks_of", "class_sums", "product_of_parts", "product_of_rows", "split_in_two"]

STRETCH = 8192  # rows that are summed in float32: longer sums would be off by more than 1e-5 of the variances
SHORT_STRETCH = 256  # the same for class sums, which carry the guarantee

# Pairs of parts whose products count: what is left out is below the last bit of float32. The first is the largest.
PAIRS = {1: ((0, 0),), 2: ((0, 0), (0, 1), (1, 0)), 3: ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0))}


def product_of_parts(parts: torch.Tensor, one_part: Sequence[bool] | None = None) -> torch.Tensor:
    """(d, d) float64: X^T X of rows X = sum of parts (p, n, d), block by block of one triangle.

    `one_part` says which blocks of features (`blocks_of(d)`) are whole in their first part; products with their other
    parts are left out.
    """
    p, _, d = parts.shape
    out = torch.zeros((d, d), dtype=torch.float64, device=parts.device)
    edges = blocks_of(d)
    short = [False] * (len(edges) - 1) if one_part is None else list(one_part)
    for i, j in combinations_with_replacement(range(len(short)), 2):
        a, b = (slice(edges[block], edges[block + 1]) for block in (i, j))
        for left, right in PAIRS[p]:
            # On the diagonal a product and its mirror image are one.
            if (left and short[i]) or (right and short[j]) or (i == j and left > right):
                continue
            block = product_of_rows(parts[left, :, a], parts[right, :, b], STRETCH if left == right == 0 else None)
            out[a, b] += block + block.T if i == j and left != right else block
    for i, j in combinations(range(len(short)), 2):
        a, b = (slice(edges[block], edges[block + 1]) for block in (i, j))
        out[b, a] = out[a, b].T
    return out


def product_of_rows(a: torch.Tensor, b: torch.Tensor, stretch: int | None = STRETCH) -> torch.Tensor:
    """a^T b in float64 of 16-bit columns a (n, i) and b (n, j), summed in float32 over `stretch` rows at a time."""
    n = a.shape[0]
    if stretch is None or n <= stretch:
        return _matrix_product(a.T[None], b[None])[0].double()
    whole = n - n % stretch
    batched = [part[:whole].reshape(-1, stretch, part.shape[1]) for part in (a, b)]
    total = _matrix_product(batched[0].transpose(1, 2), batched[1]).sum(0, dtype=torch.float64)
    return total if whole == n else total + product_of_rows(a[whole:], b[whole:], None)


def class_sums(x: torch.Tensor, codes: torch.Tensor, k: int) -> torch.Tensor:
    """(k, d) float64 sums of the 16-bit rows x (n, d) of each class: products with 0 and 1, exact but for short sums."""
    labels = (codes[:, None] == torch.arange(k, device=x.device)[None, :]).to(x.dtype)
    return product_of_rows(labels, x, SHORT_STRETCH)


def _matrix_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Batched products of 16-bit matrices, summed and given out in float32."""
    if a.device.type == "cuda":
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())


def blocks_of(d: int) -> list[int]:
    """Edges of the blocks of features."""
    count = max(1, min(4, d // 1024))
    return [round(d * i / count) for i in range(count + 1)]


def split_in_two(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """x (float64) as the sum of two 16-bit parts."""
    high = x.to(dtype)
    return high, (x - high.double()).to(dtype)
