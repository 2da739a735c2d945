"""Fixtures and marks that every test can use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("same every time", derandomize=True, deadline=None)
settings.load_profile("same every time")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
