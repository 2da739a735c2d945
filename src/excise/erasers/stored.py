"""Which class reads which kind of eraser file."""

from __future__ import annotations

from typing import Any

from excise.erasers.affine import AffineEraser
from excise.erasers.oracle import OracleEraser
from excise.erasers.random import RandomEraser
from excise.erasers.transport import TransportEraser

__all__ = ["ERASERS"]

ERASERS: dict[str, Any] = {
    "AffineEraser": AffineEraser,
    "OracleEraser": OracleEraser,
    "TransportEraser": TransportEraser,
    "RandomEraser": RandomEraser,
}
