"""What is gathered at one site, the eraser that is fitted to it, and its figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from excise.concepts.concept import Concept
from excise.concepts.encoded import Encoded
from excise.erasers.protocol import Eraser
from excise.erasers.random import RandomEraser
from excise.errors import ExciseError, InputError
from excise.fitting import fit, fit_moments
from excise.methods.geometry import concept_rank, geometry
from excise.methods.table import Method
from excise.moments.labelled_rows import read_labelled_rows
from excise.moments.moments import Moments
from excise.numerics.arrays import host, namespace
from excise.scrubbing.labels import Labels

__all__ = ["SiteFit"]

ROWS_PER_FEATURE = 8  # that are held back: 8 d x d numbers of the model's dtype
HELD_ON_DEVICE = 2**27  # numbers that are held back on a device, where an addition costs as much as its launches


class SiteFit:
    """What is gathered at a site: moments, or the rows themselves for the methods that train on them."""

    def __init__(self, path: str, found: Method, concept: Concept) -> None:
        self.path, self.concept, self.found = path, concept, found
        self.moments = Moments(concept=concept, track_xx=not found.redrawn)
        self.rows: list[torch.Tensor] = []  # not yet in the moments
        self.labels: list[Any] = []

    @property
    def trains(self) -> bool:
        """Whether the method trains on the rows themselves."""
        return self.found.needs == "rows"

    def add(self, x: torch.Tensor, labels: Labels) -> None:
        rows = x.detach().reshape(-1, x.shape[-1])
        if len(rows) != len(labels.keep):
            raise InputError(f"at {self.path}: {len(rows)} vectors for {len(labels.keep)} tokens; choose another site")
        if not len(labels.values):
            return
        enough = ROWS_PER_FEATURE * x.shape[-1]
        if not x.is_cpu:
            enough = max(enough, HELD_ON_DEVICE // x.shape[-1])
        if not self.trains and not self.rows and labels.all_kept and len(rows) >= enough:
            self.rows, self.labels = [rows], [labels.encoded(self.concept, rows.device)]
            self.add_up()
            return
        # A copy in either case: the model may write into its activations once we have looked at them.
        rows = rows.clone() if labels.all_kept else labels.kept(rows)
        self.rows.append(rows.cpu() if self.trains else rows)
        self.labels.append(labels.values if self.trains else labels.encoded(self.concept, rows.device))
        if sum(map(len, self.rows)) >= enough:
            self.add_up()

    def add_up(self) -> None:
        """Rows that were held back: every addition to the moments costs some d x d work, however few the rows.

        Raises:
            InputError: NaN or infinite activations; the message names the site.
        """
        if self.trains or not self.rows:
            return
        rows = self.rows[0] if len(self.rows) == 1 else torch.cat(self.rows)
        try:
            given = read_labelled_rows(rows, self.moments.d)
            self.moments.update_encoded(given.rows, self.concept, _joined(self.labels), look=False)
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
            return eraser.to(device="numpy"), figures
        except ExciseError as error:
            raise type(error)(f"at {self.path}: {error}") from None

    def _solve(self, method: str, options: dict[str, Any]) -> tuple[Eraser, dict[str, Any]]:
        if self.found.redrawn:
            control = self._control(**options)
            return control, _figures(control, None, None)
        if self.trains:
            X, z = np.concatenate([host(rows) for rows in self.rows]), np.concatenate(self.labels)
            eraser = fit(X, z, method, kind="categorical" if z.ndim == 1 else "continuous", **options)
            before = eraser.info.get("canonical_before")
            return eraser, _figures(eraser, before, Moments(concept=self.concept).update(X, z))
        eraser = fit_moments(self.moments, method, **options)
        canonical = eraser.info.get("canonical_correlations")
        if canonical is None:  # of another method, or of a covariance that was shrunk
            canonical = geometry(self.moments).canonical() or []
        return eraser, _figures(eraser, max(canonical, default=0.0), self.moments)

    def _control(self, rank: int | None = None, seed: int = 0, strength: float = 1.0) -> RandomEraser:
        d = self.moments.d
        assert d is not None
        rank = concept_rank(self.moments) if rank is None else rank
        return RandomEraser(d, min(d, rank), seed, strength, {"method": "random"})


def _joined(parts: list[Encoded]) -> Encoded:
    """Labels of several batches, on the device that they are on."""
    if len(parts) == 1:
        return parts[0]
    n, k = sum(part.n for part in parts), parts[0].k
    if not parts[0].has_classes:
        return Encoded(n, k, matrix=np.concatenate([part.dense() for part in parts]))
    counts = np.sum([part.counts for part in parts], axis=0)
    codes: list[Any] = [part.on_device for part in parts]
    if codes[0] is None:
        return Encoded(n, k, codes=np.concatenate([np.asarray(part.codes) for part in parts]), counts=counts)
    return Encoded(n, k, device_codes=torch.cat(codes), counts=counts)


def _figures(eraser: Any, canonical: float | None, m: Moments | None) -> dict[str, Any]:
    affine = m is not None and hasattr(eraser, "spectral_norm")
    return {
        "rank": eraser.rank,
        "canonical_correlation": canonical,
        "spectral_norm": eraser.spectral_norm if affine else None,
        "trace_ratio": _trace_ratio(eraser, m) if affine and m is not None else None,
    }


def _trace_ratio(eraser: Any, m: Moments) -> float:
    """tr(P S P^T) / tr(S) with P = I - U V^T: 1 + (tr(U V^T S V U^T) - 2 tr(U V^T S)) / tr(S), in O(d^2 r)."""
    total = float(namespace(m.mean_x).sum(m.var_x))
    crossed = float((m.cov_xx_times(eraser.right) * eraser.left).sum())
    change = m.mean_squared_edit(eraser.left, eraser.right) - 2.0 * crossed
    return 1.0 + change / total if total > 0 else 1.0
