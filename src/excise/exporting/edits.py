"""What a scrubber does to each linear layer that reads one of its sites, as numbers in float64.

With r(x) = x - U V^T (x - mu), a layer W r(x) + b is (W + B A) x + b + c, where A = V^T, B = -W U and c = W U V^T mu.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from excise.erasers.affine import AffineEraser
from excise.errors import ExciseError, warn
from excise.exporting.checks import affine_erasers, check_model, sample_inputs
from excise.exporting.quantised import weight_of
from excise.exporting.readers import Reader, readers_of
from excise.exporting.scrubbed import Scrubber
from excise.numerics.arrays import host

__all__ = ["Edit", "edits_of", "factors_of"]

STEEP = 1e4  # float32 has seven digits: an edit that multiplies its rounding errors by more leaves fewer than three
DROPPED = 1e-14  # singular values of I - P below this part of the largest are rounding


@dataclass(frozen=True)
class Edit:
    """The change of one layer: A (r, inputs), B (outputs, r), and c (outputs,), None where no mean is kept."""

    reader: Reader
    A: torch.Tensor
    B: torch.Tensor
    c: torch.Tensor | None

    @property
    def path(self) -> str:
        return self.reader.path

    @property
    def rank(self) -> int:
        return int(self.A.shape[0])


def edits_of(
    scrubber: Scrubber, model: torch.nn.Module, batch: Mapping[str, Any] | None = None, allow_quantised: bool = False
) -> list[Edit]:
    """The edits of all layers that read a site; the model is not changed.

    Raises:
        ExciseError: the scrubber cannot be moved into this model; see `affine_erasers`, `check_model` and `readers_of`.
    """
    erasers = affine_erasers(scrubber)
    check_model(model, scrubber, allow_quantised)
    readers = readers_of(model, erasers, sample_inputs(model, batch))
    out = []
    for path, eraser in erasers.items():
        left, right, offset = factors_of(eraser)
        for reader in readers.get(path, []):
            out.append(_edit(reader, left, right, offset))
    _warn_of_rounding(model, erasers)
    return out


def factors_of(eraser: AffineEraser) -> tuple[Any, Any, Any]:
    """left (d, q), right (d, q) and offset (d,) with r(x) = x - left right^T x + offset, features that it empties included.

    With D = diag(0 where a feature is emptied, else 1) the map is D (I - U V^T) x + offset, so
    I - P = [D U, E] [V, E]^T, where E has the unit vectors of those features.

    >>> import numpy as np
    >>> e = AffineEraser(np.array([[1.0], [0.5]]), np.array([[1.0], [0.0]]), np.zeros(2), emptied=np.array([0]))
    >>> left, right, offset = factors_of(e)
    >>> bool(np.allclose(np.eye(2) - left @ right.T, e.P)), left.shape[1]
    (True, 1)
    """
    left, right = (np.array(host(f), dtype=np.float64) for f in (eraser.left, eraser.right))
    offset = np.array(host(eraser.bias), dtype=np.float64)
    emptied = np.zeros(0, dtype=np.int64) if eraser.emptied is None else np.array(host(eraser.emptied), dtype=np.int64)
    if len(emptied):
        units = np.eye(eraser.d)[:, emptied]
        left[emptied] = 0.0
        left, right = _fewest(np.concatenate([left, units], axis=1), np.concatenate([right, units], axis=1))
    return left, right, offset


def _warn_of_rounding(model: torch.nn.Module, erasers: Mapping[str, AffineEraser]) -> None:
    if any(parameter.dtype == torch.float64 for parameter in model.parameters()):
        return
    norms = {path: eraser.spectral_norm for path, eraser in erasers.items()}
    path = max(norms, key=lambda path: norms[path])
    if norms[path] > STEEP:
        warn(
            f"the eraser at {path} lengthens some differences {norms[path]:.3g} times, so it multiplies rounding errors: hooks, "
            f"weights and adapters will differ by more than float32 rounding; scrub with more tokens, or in float64",
            code="steep-edit",
        )


def _fewest(left: Any, right: Any) -> tuple[Any, Any]:
    """The same product with as few columns as it has dimensions."""
    Q, R = np.linalg.qr(left)
    u, s, vt = np.linalg.svd(R @ right.T, full_matrices=False)
    keep = s > DROPPED * s[0] * np.sqrt(len(left))
    return Q @ u[:, keep] * s[keep], vt[keep].T


def _edit(reader: Reader, left: Any, right: Any, offset: Any) -> Edit:
    W = weight_of(reader.module, reader.transposed)
    U, A, offset = (torch.from_numpy(np.ascontiguousarray(f)).to(W.device) for f in (left, right.T, offset))
    if W.shape[1] != U.shape[0]:
        raise ExciseError(
            f"{reader.path} reads {W.shape[1]} features, the eraser at {reader.site} has {U.shape[0]}",
            code="feature-count",
        )
    edit = Edit(reader, A, -(W @ U), W @ offset if bool(offset.any()) else None)
    for part in (edit.A, edit.B, *([] if edit.c is None else [edit.c])):
        if not bool(part.isfinite().all()):
            raise ExciseError(
                f"the edit of {reader.path} is not finite (NaN or infinity in its weights, or in the eraser at {reader.site}): "
                f"nothing was changed",
                code="not-finite",
            )
    return edit
