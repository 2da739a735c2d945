"""Examples in the documentation write files: each runs in a folder of its own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _own_folder_for_examples(request, tmp_path, monkeypatch):
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(tmp_path)
