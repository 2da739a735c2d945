"""Examples in the documentation write files: each runs in a folder of its own. Files that need PyTorch need it."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

# What builds the site, and what the build writes.
collect_ignore_glob = ["docs/*.py", "docs/reference/*", "docs/gallery/*", "build/*"]
TORCH = re.compile(r"^( *>>> )?(import|from) (torch|transformers|triton|architectures|brute_force)\b", re.MULTILINE)
# Modules of the package import it where it is used; so do their examples.
TORCH_INSIDE = re.compile(r"^ {4}(import|from) torch\b", re.MULTILINE)
NO_TORCH = find_spec("torch") is None


def pytest_ignore_collect(collection_path):
    """Without PyTorch (`make test-minimum`), leave out the files that import it at the top."""
    if not NO_TORCH or collection_path.suffix not in (".py", ".md"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    inside = "src" in collection_path.parts and TORCH_INSIDE.search(text)
    return True if TORCH.search(text) or inside else None


@pytest.fixture(autouse=True)
def _own_folder_for_examples(request, tmp_path, monkeypatch):
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(tmp_path)
