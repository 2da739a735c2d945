"""The page on errors: one entry for every code in the source, and no entry without a code."""

from __future__ import annotations

import re
from pathlib import Path

import excise

SOURCE = Path(excise.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "errors.md"


def codes_in_source() -> dict[str, str]:
    """Each code, and the first file that has it."""
    found: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for code in re.findall(r"""code=["']([a-z0-9-]+)["']""", path.read_text(encoding="utf-8")):
            found.setdefault(code, str(path.relative_to(SOURCE)))
    return found


def entries() -> list[str]:
    return re.findall(r"^### ([a-z0-9-]+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def test_every_code_has_an_entry():
    missing = {code: file for code, file in codes_in_source().items() if code not in entries()}
    assert not missing, "docs/errors.md lacks an entry for: " + ", ".join(f"{c} ({f})" for c, f in missing.items())


def test_every_entry_has_a_code():
    stale = set(entries()) - set(codes_in_source())
    assert not stale, f"docs/errors.md has entries for codes that nothing raises: {', '.join(sorted(stale))}"
    assert len(entries()) == len(set(entries())), "an entry is there twice"


def test_every_entry_says_what_to_do():
    blocks = re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert all("**What to do.**" in block and len(block.split("\n\n")[1]) > 20 for block in blocks)


def test_codes_come_with_the_message():
    error = excise.InputError("what was wrong", code="not-finite")
    assert (str(error), error.code) == ("what was wrong [not-finite]", "not-finite")
