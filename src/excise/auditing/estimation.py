"""What an eraser that is exact on its own rows can be expected to leave in new ones.

Class means are known from n rows only. In new rows the best linear model then finds about d / n of the concept's
variance, whatever the method: that is the price of estimation, and no sign of a bad eraser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from excise.auditing.audit_data import AuditData
from excise.auditing.linear import BITS, constant_loss

__all__ = ["Estimation", "as_information", "estimation_of", "expected_leftover"]


@dataclass(frozen=True)
class Estimation:
    """The audited eraser's own rows, and what estimation alone leaves in others."""

    rows: int
    features: int
    information: float
    measure: str  # "bits" or "R^2"


def estimation_of(data: AuditData, varying: int) -> Estimation | None:
    """None where the eraser does not say how many rows it saw. `varying`: features that are not constant."""
    info = getattr(data.eraser, "info", None)
    rows = info.get("rows") if isinstance(info, dict) else None
    if not isinstance(rows, (int, float)) or rows < 1:
        return None
    codes = data.target.codes
    return Estimation(
        int(rows), varying, expected_leftover(int(rows), varying, codes), "R^2" if codes is None else "bits"
    )


def expected_leftover(rows: int, d: int, codes: Any) -> float:
    """Bits for classes (`codes` of the rows that are measured), else the share of the variance."""
    share = min(1.0, d / rows)
    if codes is None:
        return share
    columns = len(np.unique(codes)) - 1
    return float(min(constant_loss(codes) * BITS, columns * as_information(np.sqrt(share))))


def as_information(correlation: float) -> float:
    """Bits that a canonical correlation is worth, for normal variables."""
    return float(-0.5 * np.log2(max(1.0 - correlation**2, 1e-12)))
