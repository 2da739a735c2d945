"""Many machines, one eraser: reductions of Moments by Dask, by torch.distributed, or by whoever can add bytes."""

from excise.distributed.conditions import conditions
from excise.distributed.dask_collections import apply, fit, moments
from excise.distributed.dask_files import apply_on, gather_on
from excise.distributed.packing import from_bytes, to_bytes
from excise.distributed.ranks import all_reduce
from excise.distributed.scheduler import connected

__all__ = [
    "all_reduce",
    "apply",
    "apply_on",
    "conditions",
    "connected",
    "fit",
    "from_bytes",
    "gather_on",
    "moments",
    "to_bytes",
]
