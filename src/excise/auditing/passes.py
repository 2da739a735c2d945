"""Two walks over the audited rows gather all that the conditions and the cost need: each applies the eraser once.

The first adds up moments before and after. The second, which knows the directions to look along, adds up class means of
scores row by row, the triangle of a QR, and how far each row was moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.auditing.audit_data import AuditData
from excise.auditing.directions import Whitened, unit_scale
from excise.moments.moments import Moments
from excise.numerics.arrays import host

__all__ = ["FirstPass", "SecondPass", "first_pass", "second_pass"]

EXACT_NUMBERS = 2**28  # n d up to which covariances are added up in float64


@dataclass(frozen=True)
class FirstPass:
    """Moments before and after, and class means summed directly."""

    before: Moments
    after: Moments
    scale: Any  # (d,) standard deviations of the features before
    size: Any  # (d,) root mean square after: what rounding is relative to
    gap_before: Any  # (d,) largest difference of class means, or None
    gap: Any


def first_pass(data: AuditData) -> FirstPass:
    before, after = Moments(), Moments()
    k, codes = data.target.k, data.target.codes
    sums, sums_before = np.zeros((k, data.d)), np.zeros((k, data.d))
    shift = data.before(slice(0, min(data.n, 256))).mean(axis=0)
    squares = np.zeros(data.d)
    exact = data.n * data.d <= EXACT_NUMBERS
    for part in data.batches(3):
        labels = data.labels(part)
        raw = data.raw_before(part)
        before.update(raw, labels)
        own = data.raw_after(part) if data.edited else raw
        x = np.asarray(own, dtype=np.float64)
        after.update(x if exact else own, labels)
        squares += np.einsum("ij,ij->j", x, x)
        if codes is not None:
            add_class_sums(sums, x - shift, codes[part])
            add_class_sums(sums_before, np.asarray(raw, dtype=np.float64) - shift, codes[part])
    gaps = [None, None]
    if codes is not None:
        counts = np.bincount(codes, minlength=k)
        present = counts > 0
        gaps = [np.ptp(s[present] / counts[present][:, None], axis=0) for s in (sums_before, sums)]
    size = np.sqrt(squares / data.n)
    return FirstPass(before, after, unit_scale(before, after), size, gaps[0], gaps[1])


@dataclass(frozen=True)
class SecondPass:
    scores: Any  # (d, w) linear scores that were looked at
    score_gaps_before: Any  # (w,) differences of class means of the scores, or None
    score_gaps: Any
    white_sums: Any  # (k, r) sums of the whitened rows of each class, or None
    triangle: Any  # of a QR of [x / scale, z / spread], after; None if it was not asked for
    triangle_before: Any
    sizes: Any  # (n,) length of each row's edit
    cosines: Any  # (n,) between each row before and after
    within: float  # sum of squared edits in units of the covariance before
    second: Any  # (d, d) sum of edits' products; None if the rank of the edit is known


def second_pass(
    data: AuditData, g: FirstPass, white: Whitened, white_before: Whitened, W: Any, with_triangle: bool
) -> SecondPass:
    """`W` (d, w) are the scores to look at."""
    k, codes = data.target.k, data.target.codes
    gaps = {when: np.zeros((k, W.shape[1])) for when in ("before", "after")}
    class_sums = np.zeros((k, data.d))
    span = _span_of_edits(data)
    inside = white_before.basis if span is None else span.T @ white_before.basis
    triangles: dict[str, Any] = {"before": np.zeros((0, 0)), "after": np.zeros((0, 0))}
    Z = _standard_labels(data) if with_triangle else None
    sizes, cosines, within = np.zeros(data.n), np.ones(data.n), 0.0
    second = np.zeros((data.d, data.d)) if data.edited and getattr(data.eraser, "rank", None) is None else None
    means = {"before": np.asarray(g.before.mean_x), "after": np.asarray(g.after.mean_x)}
    for part in data.batches(4):
        x = data.before(part)
        after = data.after(part) if data.edited else x
        for when, rows in (("before", x), ("after", after)):
            if codes is not None:
                add_class_sums(gaps[when], (rows - white.mean) @ W, codes[part])
            if Z is not None and (when == "after" or data.edited):
                block = np.concatenate([(rows - means[when]) / g.scale, Z[part]], axis=1)
                old = triangles[when] if triangles[when].size else np.zeros((0, block.shape[1]))
                triangles[when] = np.linalg.qr(np.concatenate([old, block]), mode="r")
        if codes is not None:
            add_class_sums(class_sums, after - white.mean, codes[part])
        if not data.edited:
            continue
        edit = after - x
        sizes[part] = np.sqrt(np.einsum("ij,ij->i", edit, edit))
        within += float((((edit if span is None else edit @ span) @ inside) ** 2).sum())
        lengths = np.sqrt(np.einsum("ij,ij->i", x, x) * np.einsum("ij,ij->i", after, after))
        inner = np.einsum("ij,ij->i", x, after)
        cosines[part] = np.where(lengths > 0, inner / np.where(lengths > 0, lengths, 1.0), 1.0)
        if second is not None:
            second += edit.T @ edit
    spans: dict[str, Any] = {"before": None, "after": None}
    if codes is not None:
        counts = np.bincount(codes, minlength=k)
        present = counts > 0
        spans = {when: np.ptp(s[present] / counts[present][:, None], axis=0) for when, s in gaps.items()}
    if Z is None:
        triangles = {"before": None, "after": None}
    elif not data.edited:
        triangles["before"] = triangles["after"]
    return SecondPass(
        W,
        spans["before"],
        spans["after"],
        class_sums @ white.basis if codes is not None else None,
        triangles["after"],
        triangles["before"],
        sizes,
        cosines,
        within,
        second,
    )


def _span_of_edits(data: AuditData) -> Any:
    """(d, r) orthonormal basis of all edits, where the eraser says it; it spares a d x d product for every row."""
    left = getattr(data.eraser, "left", None)
    if left is None or data.unit or getattr(data.eraser, "normalize", False):
        return None
    return np.linalg.qr(np.asarray(host(left), dtype=np.float64))[0]


def _standard_labels(data: AuditData) -> Any:
    """(n, q) columns of the labels that vary, centred, of unit variance."""
    values = data.target.values
    spread = values.std(axis=0)
    return (values - values.mean(axis=0))[:, spread > 0] / spread[spread > 0]


def add_class_sums(sums: Any, x: Any, codes: Any) -> None:
    labels = np.zeros((len(sums), len(codes)))
    labels[codes, np.arange(len(codes))] = 1.0
    sums += labels @ x
