"""The Triton kernels: run in a process of their own, on the device or in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from excise.numerics import kernels

pytest.importorskip("triton")


def test_kernels_against_float64():
    """Triton decides when it is imported whether it interprets, so where there is no device it needs a new process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    file = Path(__file__).with_name("kernels_against_float64.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:randomly", str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, check=False, encoding="utf-8")
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(done.stdout.split(" passed")[0].split()[-1]) > 40
    assert "skipped" not in done.stdout


def test_without_a_device_nothing_of_triton_is_used():
    assert not kernels.available(torch.zeros(3, 3)) or torch.cuda.is_available()
