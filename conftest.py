"""Examples in the documentation write files: each runs in a folder of its own. Files that need PyTorch need it."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

TORCH = re.compile(r"^(>>> )?(import|from) (torch|transformers|triton|architectures|brute_force)\b", re.MULTILINE)
NO_TORCH = find_spec("torch") is None


def pytest_ignore_collect(collection_path):
    """Without PyTorch (`make test-minimum`), leave out the files that import it at the top."""
    if NO_TORCH and collection_path.suffix in (".py", ".md") and TORCH.search(collection_path.read_text()):
        return True
    return None


@pytest.fixture(autouse=True)
def _own_folder_for_examples(request, tmp_path, monkeypatch):
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(tmp_path)
