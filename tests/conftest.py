"""Fixtures and marks that every test can use."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import Counter

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before anything imports huggingface_hub, which reads it once

import numpy as np
import pytest
from hypothesis import settings

MADE = "EXCISE_TESTS_MADE"
OWN_FOLDER = pytest.StashKey[str]()

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


def pytest_configure(config):
    """A folder for what is made once per run, small trained models for example, that all workers share."""
    if MADE not in os.environ:
        os.environ[MADE] = tempfile.mkdtemp(prefix="excise-tests-")
        config.stash[OWN_FOLDER] = os.environ[MADE]


def pytest_unconfigure(config):
    if (folder := config.stash.get(OWN_FOLDER, None)) is not None:
        shutil.rmtree(folder, ignore_errors=True)
        del os.environ[MADE]


def pytest_terminal_summary(terminalreporter):
    """One line per reason: how many tests were skipped, and what would include them."""
    skipped = {report.nodeid: report.longrepr for report in terminalreporter.stats.get("skipped", [])}
    reasons = Counter(_reason(why[2] if isinstance(why, tuple) else str(why)) for why in skipped.values())
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")


def _reason(why):
    why = why.removeprefix("Skipped: ")
    absent = re.match(r"could not import '(\w+)", why)
    return f"needs a package: pip install {absent[1].replace('_', '-')}" if absent else why
