"""What is gathered at one site, the eraser that is fitted to it, and its figures."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from excise._array import host
from excise.eraser import AffineEraser
from excise.errors import ExciseError, InputError
from excise.fitting import Method, fit, fit_moments
from excise.methods.leace import leace
from excise.methods.sal import concept_rank
from excise.moments import Moments
from excise.scrubbing.controls import RandomEraser
from excise.scrubbing.labels import Data, Labels
from excise.scrubbing.scrubber import Eraser

__all__ = ["Gathered"]

ROWS_PER_FEATURE = 8  # that are held back: 8 d x d numbers of the model's dtype


class Gathered:
    """What is gathered at a site: moments, or the rows themselves for the methods that train on them."""

    def __init__(self, path: str, found: Method, data: Data) -> None:
        self.path, self.data = path, data
        self.arrays = found.takes == "arrays"
        self.moments = Moments(concept=data.concept, track_xx=found.function.__name__ != "_random")
        self.eps = 0.0  # of the activations
        self.rows: list[Any] = []  # not yet in the moments
        self.labels: list[Any] = []

    def add(self, x: torch.Tensor, labels: Labels) -> None:
        rows = x.detach().reshape(-1, x.shape[-1])
        if len(rows) != len(labels.keep):
            raise InputError(f"at {self.path}: {len(rows)} vectors for {len(labels.keep)} tokens; choose another site")
        if not labels.keep.any():
            return
        # A copy in either case: the model may write into its activations once we have looked at them.
        rows = rows.clone() if labels.keep.all() else rows[torch.from_numpy(labels.keep).to(rows.device)]
        self.eps = max(self.eps, min(torch.finfo(x.dtype).eps, torch.finfo(torch.float32).eps))
        self.rows.append(host(rows) if self.arrays else rows)
        self.labels.append(labels.values)
        if sum(map(len, self.rows)) >= ROWS_PER_FEATURE * x.shape[-1]:
            self.add_up()

    def add_up(self) -> None:
        """Rows that were held back: every addition to the moments costs some d x d work, however few the rows.

        Raises:
            InputError: NaN or infinite activations; the message names the site.
        """
        if self.arrays or not self.rows:
            return
        rows = self.rows[0] if len(self.rows) == 1 else torch.cat(self.rows)
        try:
            self.moments.update(rows, np.concatenate(self.labels))
        except InputError as error:
            raise InputError(f"at {self.path}: {error}") from None
        self.rows, self.labels = [], []

    def solve(self, method: str, options: dict[str, Any]) -> tuple[Eraser, dict[str, Any]]:
        """The eraser, as NumPy arrays: what is used is what is saved. And its figures.

        Raises:
            ExciseError: what the method raises, with the site.
        """
        try:
            eraser, figures = self._solve(method, options)
            return eraser if isinstance(eraser, RandomEraser) else eraser.to(device="numpy"), figures
        except ExciseError as error:
            raise type(error)(f"at {self.path}: {error}") from None

    def _solve(self, method: str, options: dict[str, Any]) -> tuple[Eraser, dict[str, Any]]:
        eraser: Any
        if method == "random":
            rank = options.get("rank")
            d = self.moments.d
            assert d is not None
            rank = concept_rank(self.moments) if rank is None else rank
            seed, strength = options.get("seed", 0), options.get("strength", 1.0)
            eraser = RandomEraser(d, min(d, rank), seed, strength, {"method": "random"})
            return eraser, {
                "rank": eraser.rank,
                "canonical_correlation": None,
                "spectral_norm": None,
                "trace_ratio": None,
            }
        if self.arrays:
            X, z = np.concatenate(self.rows), np.concatenate(self.labels)
            eraser = fit(X, z, method, kind="categorical" if z.ndim == 1 else "continuous", **options)
            before = eraser.info.get("canonical_before")
            return eraser, _figures(eraser, before, Moments(concept=self.data.concept).update(X, z))
        # A norm's output has a direction that nothing but rounding errors vary in: no eraser may lean on it, however
        # exactly the sums were formed. (On float32 data with d = 256 it did, with a spectral norm of 3e5.)
        known = self.moments.statistics
        self.moments = Moments.from_statistics(replace(known, eps=max(known.eps, self.eps)), self.moments.concept)
        eraser = fit_moments(self.moments, method, **options)
        if method == "leace" and options.get("shrinkage", "none") == "none":
            canonical = eraser.info["canonical_correlations"]
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                canonical = leace(self.moments).info["canonical_correlations"]
        return eraser, _figures(eraser, max(canonical, default=0.0), self.moments)


def _figures(eraser: Any, canonical: float | None, m: Moments) -> dict[str, Any]:
    affine = isinstance(eraser, AffineEraser)
    return {
        "rank": eraser.rank,
        "canonical_correlation": canonical,
        "spectral_norm": eraser.spectral_norm if affine else None,
        "trace_ratio": _trace_ratio(eraser, m) if affine else None,
    }


def _trace_ratio(eraser: AffineEraser, m: Moments) -> float:
    """tr(P S P^T) / tr(S) with P = I - U V^T, in O(d^2 r)."""
    S, U, V = host(m.cov_xx), host(eraser.left), host(eraser.right)
    total = float(np.trace(S))
    SV = S @ V
    change = -2.0 * float((SV * U).sum()) + float(((V.T @ SV) * (U.T @ U)).sum())
    return 1.0 + change / total if total > 0 else 1.0
