"""Coverage: what every matrix of a scrubbed model still receives of the concept.

While a model is fitted, each reader is looked at in the pass in which all erasers before it are at work: so what is
measured is what it receives in the scrubbed model, on all fitting tokens, without a pass of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from excise.concepts.concept import Concept
from excise.errors import InputError
from excise.numerics.arrays import host
from excise.numerics.precision import UNIT_ROUNDOFF, leak_bound
from excise.scrubbing.capture import Stop, Visits, hooked
from excise.scrubbing.labels import BatchLabels, Labels
from excise.scrubbing.readers import Target
from excise.tables import markdown, show

__all__ = ["Coverage", "CoverageRow", "Look", "Status", "with_status"]

Status = Literal["erased", "mixed", "missed", "inside", "outside"]
LISTED = 8
SUMS = 32.0  # roundings of sums in the activations' own dtype, in place of the norm of an edit
FLOOR = 1e-6  # correlations below this are rounding, even in float64: covariances are sums of squares


@dataclass(frozen=True)
class CoverageRow:
    """A matrix that reads vectors, and what is left there.

    `status`: "erased", it reads a linear function of a site; "mixed", the same, but over several tokens; "missed", it reads
    hidden states that no site covers; "inside", it reads what a sublayer made of them; "outside", it is in no block.
    """

    reader: str
    status: Status
    site: str | None  # where it is erased, or would be
    left: float | None  # largest |correlation| of a feature with the concept; None: no vector per token to look at
    above_rounding: bool = False


@dataclass(frozen=True)
class Coverage:
    """A row per reader, in the order in which they read."""

    rows: tuple[CoverageRow, ...]

    @property
    def missed(self) -> list[CoverageRow]:
        """Readers of hidden states that no site covers, unless nothing of the concept is there."""
        return [row for row in self.rows if row.status == "missed" and (row.left is None or row.above_rounding)]

    @property
    def leaking(self) -> list[CoverageRow]:
        """Readers that a site should have covered, and in which the concept is left all the same."""
        return [row for row in self.rows if row.status == "erased" and row.above_rounding]

    @property
    def line(self) -> str:
        """One line: how many readers of hidden states are covered, and what is left at worst."""
        erased = [row for row in self.rows if row.status == "erased"]
        worst = max((row.left for row in erased if row.left is not None), default=0.0)
        first = [row for row in self.rows if row.status in ("erased", "missed", "mixed")]
        said = f"coverage: {len(erased)} of {len(first)} matrices that read hidden states are erased, correlation left {worst:.1e}"
        mixed = sum(row.status == "mixed" for row in self.rows)
        if mixed:
            said += f"; {mixed} read several erased tokens at once"
        if self.missed:
            left = max((row.left or 0.0 for row in self.missed), default=0.0)
            said += f"; {len(self.missed)} missed, up to {left:.2f} ({self.missed[0].reader})"
        return said

    def to_dict(self) -> dict[str, Any]:
        return {"rows": [asdict(row) for row in self.rows]}

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Coverage:
        return Coverage(tuple(CoverageRow(**row) for row in stored["rows"]))

    def to_markdown(self) -> str:
        rows = [[row.reader, row.status, row.site or "-", show(row.left, digits=6)] for row in self.rows]
        return markdown(["reader", "status", "site", "correlation left"], rows)

    def __str__(self) -> str:
        return f"{self.line}\n\n{self.to_markdown()}"

    def advice(self, sites: Sequence[str]) -> str | None:
        """What to say where readers were missed: which, how much is left, and the sites to pass; None if there are none."""
        if not self.missed:
            return None
        listed = [
            f"  {row.reader}: " + ("cannot be measured" if row.left is None else f"correlation {row.left:.3f}")
            for row in self.missed[:LISTED]
        ]
        if len(self.missed) > LISTED:
            listed.append(f"  and {len(self.missed) - LISTED} others")
        more = [row.site for row in self.missed if row.site is not None and row.left is not None]
        hint = (
            f"to erase there too, pass sites={[*sites, *dict.fromkeys(more)]!r}"
            if more
            else "they cannot be erased by hooks on modules"
        )
        return (
            f"{len(self.missed)} matrices of this model read hidden states that no site covers; what is left of the concept there:\n"
            + "\n".join(listed)
            + f"\n{hint if len(hint) < 2000 else 'see scrubber.coverage for the sites to add'}"
        )


class _Tally:
    """Sums of a tensor over all counted vectors, about the mean of the first batch.

    16-bit vectors on a device are not shifted, and their variances are those of the first batch: one product on the
    tensor cores is then all that a batch costs.
    """

    def __init__(self) -> None:
        self.shift: torch.Tensor | None = None
        self.n = 0
        self.sums: dict[str, Any] = {}
        self.dtype = "float64"
        self.spread: torch.Tensor | None = None  # (d,) variances, where they are known from the first batch

    def add(self, x: torch.Tensor, labels: Labels, concept: Concept) -> None:
        """x (..., d)."""
        rows = labels.kept(x.detach().reshape(-1, x.shape[-1]))
        self.dtype = str(rows.dtype).removeprefix("torch.")
        if rows.is_cuda and rows.dtype in (torch.bfloat16, torch.float16) and labels.kind == "categorical":
            self._add_narrow(rows, labels, concept)
        else:
            self._add_exact(rows, labels, concept)
        self.n += len(rows)

    def _add_narrow(self, rows: torch.Tensor, labels: Labels, concept: Concept) -> None:
        if self.spread is None:
            first = rows[:2048].float()
            self.shift, self.spread = torch.zeros_like(first[0]), first.var(dim=0, correction=0)
        Z = labels.columns(concept, rows.device, rows.dtype)
        sums = torch.mm(Z, rows, out_dtype=torch.float32).double()  # (k, d)
        counts = labels.encoded(concept, rows.device).counts
        for name, value in {"xz": sums, "z": counts, "zz": counts}.items():
            self.sums[name] = value if name not in self.sums else self.sums[name] + value

    def _add_exact(self, rows: torch.Tensor, labels: Labels, concept: Concept) -> None:
        rows = rows if rows.dtype in (torch.float32, torch.float64) else rows.float()
        if self.shift is None:
            self.shift = rows.mean(dim=0)
        rows = rows - self.shift
        Z = labels.columns(concept, rows.device, rows.dtype)
        one = rows.new_ones(1, len(rows))
        # Products with a few rows: sums along the first dimension are several times slower.
        found = {"z": Z.sum(dim=1), "zz": (Z * Z).sum(dim=1), "xz": Z @ rows, "x": (one @ rows)[0]}
        found["xx"] = (one @ rows.square_())[0]
        for name, value in found.items():
            wide = value.double()
            self.sums[name] = wide if name not in self.sums else self.sums[name] + wide

    def left(self) -> tuple[float, bool]:
        """The largest |correlation|, and whether any is more than rounding of x can make."""
        s = {name: host(value) for name, value in self.sums.items()}
        assert self.shift is not None
        s.setdefault("x", s["xz"].sum(axis=0))  # every counted vector has one class
        mean, mean_z = s["x"] / self.n, s["z"] / self.n
        if self.spread is None:
            var = np.maximum(s["xx"] / self.n - mean**2, 0.0)
        else:
            var = host(self.spread).astype(np.float64)
        var_z = np.maximum(s["zz"] / self.n - mean_z**2, 0.0)
        size = np.abs(host(self.shift).astype(np.float64) + mean)
        eps = UNIT_ROUNDOFF.get(self.dtype, UNIT_ROUNDOFF["float64"])
        # What varies by no more than the rounding of its own digits is constant.
        varies = np.sqrt(var) > 4.0 * eps * (size + np.sqrt(var.max(initial=0.0)))
        cov = np.abs(s["xz"] / self.n - np.outer(mean_z, mean))[:, varies]
        spread = np.sqrt(np.outer(var_z, var[varies]))
        r = np.divide(cov, spread, out=np.zeros_like(cov), where=spread > 0)
        noise = np.maximum(leak_bound(eps, SUMS, size, np.sqrt(var)), FLOOR)[varies]
        return float(r.max(initial=0.0)), bool((r > noise).any())


class Look:
    """Looks at what readers receive, each in one pass."""

    def __init__(self, targets: Sequence[Target], concepts: Mapping[str, Any], extra: str | None) -> None:
        self.targets, self.concepts, self.extra = list(targets), concepts, extra
        self.tallies = {target.key: _Tally() for target in targets if target.side in concepts}
        self.pending = set(self.tallies)
        self._seen: set[int] = set()

    @contextmanager
    def at(
        self, model: torch.nn.Module, labels: Mapping[str, BatchLabels], horizon: float, visits: Visits, last: bool
    ) -> Iterator[None]:
        """Look at one batch. `horizon`: the first site that is not erased yet. `last`: leave once all was seen."""
        wanted: dict[str, Target] = {}
        for target in self.targets:
            if target.key in self.pending and target.moment < horizon:
                wanted.setdefault(target.address, target)
        by_key = {target.key: target for target in reversed(wanted.values())}  # one reader for each tensor
        wanted = {target.address: target for target in by_key.values()}
        left = set(by_key)

        def visit(site: str, x: torch.Tensor) -> None:
            target = wanted[site]
            assert target.side is not None
            own = labels.get(target.side)
            if own is not None:
                self._add(target, x, own)
            left.discard(target.key)
            if last and not left:
                raise Stop

        with hooked(model, wanted, visit, visits):
            yield

    def _add(self, target: Target, x: torch.Tensor, own: BatchLabels) -> None:
        x = x.transpose(0, 1) if target.time_first else x
        rows = x.shape[:-1].numel() // own.examples
        try:
            found = own.at(rows, self.extra)
        except InputError:
            return  # no vector per token
        if not len(found.values):
            return
        self.tallies[target.key].add(x, found, self.concepts[str(target.side)])
        self._seen.add(target.key)

    def passed(self, horizon: float) -> None:
        """A pass is over: what it showed is final."""
        self.pending -= self._seen
        self._seen = set()

    def table(self) -> Coverage:
        """What was seen."""
        out = []
        found = {key: tally.left() for key, tally in self.tallies.items() if tally.n}
        for target in self.targets:
            left, above = found.get(target.key, (None, False))
            out.append(CoverageRow(target.reader, target.status, target.site, left, above))
        return Coverage(tuple(out))


def with_status(coverage: Coverage, mixed: set[str]) -> Coverage:
    """The table with some readers known to read several tokens at once."""
    return Coverage(tuple(replace(row, status="mixed") if row.reader in mixed else row for row in coverage.rows))
