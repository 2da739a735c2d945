"""Fixtures and marks that every test can use."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before anything imports huggingface_hub, which reads it once

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("same every time", derandomize=True, deadline=None)
settings.load_profile("same every time")

# Rooms whose tests run small models: these gain nothing from threads, and threads that wait for each other cost much
# while other tests run beside them.
SMALL_MODELS = ("scrubbing", "measuring", "exporting", "text")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _one_thread_for_small_models(request):
    if not any(room in request.path.parts for room in SMALL_MODELS):
        yield
        return
    torch = pytest.importorskip("torch")
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(limits=1):
        yield
    torch.set_num_threads(before)


def pytest_terminal_summary(terminalreporter):
    """Say how many tests were left out because the folder of models and data is absent."""
    skipped = terminalreporter.stats.get("skipped", [])
    absent = sum("folder of models and data" in str(report.longrepr) for report in skipped)
    if absent:
        terminalreporter.write_line(f"{absent} tests were skipped because ../shared is absent")
