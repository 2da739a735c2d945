"""The GPU benchmark of scrubbing at a tiny size on the CPU: it runs, and its probe tells before from after."""

from __future__ import annotations

import pytest
import torch


def test_scrubs_at_a_tiny_size():
    scrubbing_gpu = pytest.importorskip("benchmarks.scrubbing_gpu")

    class Bench:
        def __init__(self):
            self.rows = {}

        def note(self, what, **figures):
            self.rows[what.split()[0]] = figures

    bench = Bench()
    scrubbing_gpu.scrubs(
        bench,
        width=64,
        layers=2,
        tokens=4096,
        shape=(4, 64),
        vocabulary=400,
        dtype=torch.float32,
        device="cpu",
        repeat=1,
    )
    assert bench.rows["scrub"]["passes"] > 0
    assert bench.rows["attached"]["ratio"] > 0
    found = bench.rows["probe"]
    assert found["before"] > found["majority"] + 0.05
    assert abs(found["after"] - found["majority"]) < 0.02
