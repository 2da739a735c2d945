"""Moments of all ranks of a torch.distributed job together, in float64: the same numbers on every rank.

Nothing is pickled: concepts travel as JSON, numbers as tensors.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from excise.concepts.concept import Concept
from excise.errors import ConceptError, ExciseError, InputError, missing_extra
from excise.moments.fingerprints import Fingerprints
from excise.moments.moments import Moments
from excise.moments.scatter import MatrixScatter, RowScatter, VarianceScatter
from excise.moments.statistics import Statistics, spread_columns
from excise.numerics.arrays import convert, is_torch

__all__ = ["all_reduce", "join_concepts"]


def _torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError:
        raise missing_extra("moments of several ranks need PyTorch", "torch") from None
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise ExciseError(
            "torch.distributed is not initialised: call torch.distributed.init_process_group on every rank first",
            code="no-process-group",
        )
    return torch


def _device(torch: Any, group: Any) -> Any:
    """Where this group can send from: NCCL only knows GPUs."""
    if torch.distributed.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def gather_json(value: Any, group: Any = None) -> list[Any]:
    """The values of all ranks, in their order, on every rank."""
    torch = _torch()
    device = _device(torch, group)
    content = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device=device)
    ranks = torch.distributed.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(ranks)]
    torch.distributed.all_gather(sizes, torch.tensor([len(content)], device=device), group=group)
    longest = int(max(int(size) for size in sizes))
    padded = torch.zeros(longest, dtype=torch.uint8, device=device)
    padded[: len(content)] = content
    parts = [torch.zeros_like(padded) for _ in range(ranks)]
    torch.distributed.all_gather(parts, padded, group=group)
    return [
        json.loads(bytes(part[: int(size)].cpu().numpy().tobytes())) for part, size in zip(parts, sizes, strict=True)
    ]


def join_concepts(concept: Concept | None, group: Any = None) -> Concept:
    """The concept of all ranks: classes joined by name.

    Raises:
        ConceptError: the ranks have other kinds of concepts, or none has any.
    """
    stored = gather_json(None if concept is None else concept.to_dict(), group)
    known = [Concept.from_dict(entry) for entry in stored if entry is not None]
    if not known:
        raise ConceptError("no rank has any labels", code="no-labels")
    total = known[0]
    for other in known[1:]:
        total = total.join(other)
    return total


def all_reduce(m: Moments, group: Any = None) -> Moments:
    """The moments of all ranks together; every rank must call it, also one that has no rows.

    Args:
        m: of this rank; not changed.
        group: of torch.distributed; all ranks unless given.

    Raises:
        ExciseError: torch.distributed is not initialised.
        InputError, ConceptError: the ranks have other features or another kind of concept.
    """
    torch = _torch()
    own: Statistics | None = m._statistics
    about = {
        "d": m.d,
        "n": m.n,
        "rows": m.rows,
        "track_xx": m.track_xx,
        "concept": None if own is None else m.concept.to_dict(),
        "names": None if m.feature_names is None else list(m.feature_names),
        "eps": 0.0 if own is None else own.eps,
        "n2": 0.0 if own is None else own.n2,
        "fingerprints": None if own is None or own.fingerprints is None else own.fingerprints.to_dict(),
        "factor": own.s_xx.count if own is not None and isinstance(own.s_xx, RowScatter) else None,
    }
    all_about = gather_json(about, group)
    filled = [entry for entry in all_about if entry["concept"] is not None]
    if not filled:
        raise InputError("the Moments of all ranks are empty: call update(X, z) first", code="no-rows")
    _check_alike(filled)
    concepts = [Concept.from_dict(entry["concept"]) for entry in filled]
    concept = concepts[0]
    for other in concepts[1:]:
        concept = concept.join(other)
    device = _device(torch, group)
    like = torch.zeros(0, dtype=torch.float64, device=device)
    total = _Sum(torch, group, like, m, own, concept, filled)
    statistics = total.statistics(all_about)
    names = next((entry["names"] for entry in filled if entry["names"] is not None), None)
    out = Moments.from_statistics(statistics, concept, None if names is None else tuple(names))
    if own is not None and is_torch(own.mean_x):
        return out.to(own.mean_x.device)
    return out.to("numpy")


def _check_alike(filled: list[dict[str, Any]]) -> None:
    for name, what in (("d", "numbers of features"), ("track_xx", "track_xx")):
        values = sorted({entry[name] for entry in filled})
        if len(values) > 1:
            raise InputError(f"the ranks have other {what}: {', '.join(map(str, values))}", code="feature-count")
    names = {tuple(entry["names"]) for entry in filled if entry["names"] is not None}
    if len(names) > 1:
        raise InputError("the ranks have other names of features: gather with the same columns", code="feature-names")


def _looked(about: list[dict[str, Any]]) -> Fingerprints | None:
    found = [entry["fingerprints"] for entry in about if entry["concept"] is not None]
    if any(entry is None for entry in found):
        return None
    first, *rest = map(Fingerprints.from_dict, found)
    for other in rest:
        first = first + other
    return first


class _Sum:
    """The sums over ranks: the joint mean first, then products about it. (Chan et al. 1983, for many parts.)"""

    def __init__(
        self, torch: Any, group: Any, like: Any, m: Moments, own: Statistics | None, concept: Concept, filled: Any
    ) -> None:
        self.torch, self.group, self.like, self.concept = torch, group, like, concept
        self.d = filled[0]["d"]
        self.track_xx = filled[0]["track_xx"]
        self.own: Statistics | None = None
        if own is not None:
            spread = spread_columns(own, m.concept.positions_in(concept), concept.k)
            self.own = replace(
                spread,
                mean_x=convert(spread.mean_x, like),
                mean_z=convert(spread.mean_z, like),
                s_xz=convert(spread.s_xz, like),
                rounding=convert(spread.rounding, like),
                s_xx=spread.s_xx.to(like),
                s_zz=None if spread.s_zz is None else convert(spread.s_zz, like),
            )

    def total(self, value: Any, shape: tuple[int, ...]) -> Any:
        """The sum over ranks of a tensor; ranks without rows add nothing."""
        zeros = self.torch.zeros(shape, dtype=self.torch.float64, device=self.like.device)
        tensor = zeros if value is None else value.clone().reshape(shape).contiguous()
        self.torch.distributed.all_reduce(tensor, group=self.group)
        return tensor

    def statistics(self, about: list[dict[str, Any]]) -> Statistics:
        own, d, k = self.own, self.d, self.concept.k
        n = float(sum(entry["n"] for entry in about))
        # A step from the mean of the largest part: where all are equal, so is the result, to the bit.
        largest = int(np.argmax([entry["n"] for entry in about]))
        anchor = self._of_rank(largest, own)
        share = 0.0 if own is None else own.n / n
        mean_x = anchor[:d] + self.total(None if own is None else share * (own.mean_x - anchor[:d]), (d,))
        mean_z = anchor[d:] + self.total(None if own is None else share * (own.mean_z - anchor[d:]), (k,))
        s_xz = s_zz = None
        dx = dz = None
        if own is not None:
            dx, dz = own.mean_x - mean_x, own.mean_z - mean_z
            s_xz = own.s_xz + own.n * dx[:, None] * dz[None, :]
            if not self.concept.is_one_categorical:
                assert own.s_zz is not None
                s_zz = own.s_zz + own.n * dz[:, None] * dz[None, :]
        return Statistics(
            n=n,
            rows=sum(entry["rows"] for entry in about),
            mean_x=mean_x,
            mean_z=mean_z,
            s_xx=self._scatter(about, dx),
            s_xz=self.total(s_xz, (d, k)),
            s_zz=None if self.concept.is_one_categorical else self.total(s_zz, (k, k)),
            eps=max(entry["eps"] for entry in about),
            n2=float(sum(entry["n2"] for entry in about)),
            rounding=self.total(None if own is None else own.rounding, (d,)),
            fingerprints=_looked(about),
        )

    def _of_rank(self, rank: int, own: Statistics | None) -> Any:
        """The means of one rank, on all."""
        mine = self.torch.distributed.get_rank(self.group) == rank
        value = self.torch.cat([own.mean_x, own.mean_z]) if mine and own is not None else None
        return self.total(value, (self.d + self.concept.k,))

    def _scatter(self, about: list[dict[str, Any]], dx: Any) -> Any:
        own, d = self.own, self.d
        if not self.track_xx:
            value = None
            if own is not None:
                value = own.s_xx.diagonal() + own.n * dx * dx
            return VarianceScatter(self.total(value, (d,)))
        counts = [entry["factor"] for entry in about if entry["concept"] is not None]
        if all(count is not None for count in counts) and sum(counts) + len(counts) < d:
            return RowScatter((self._rows(about, dx),))
        value = None
        if own is not None:
            value = own.s_xx.matrix() + own.n * dx[:, None] * dx[None, :]
        return MatrixScatter(self.total(value, (d, d)))

    def _rows(self, about: list[dict[str, Any]], dx: Any) -> Any:
        """Fewer rows than features in all: a triangular factor of every rank's rows, never the rows themselves."""
        sizes = [0 if entry["concept"] is None else entry["factor"] + 1 for entry in about]
        begin = sum(sizes[: self.torch.distributed.get_rank(self.group)])
        out = self.torch.zeros((sum(sizes), self.d), dtype=self.torch.float64, device=self.like.device)
        if self.own is not None:
            factor = self.own.s_xx.stored()
            out[begin : begin + len(factor)] = factor
            out[begin + len(factor)] = float(np.sqrt(self.own.n)) * dx
        return self.total(out, tuple(out.shape))
