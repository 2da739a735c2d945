"""The command line: one file per command, each a thin call of the library."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Entry point of `excise`; says what to install where the extra is missing."""
    try:
        from excise.cli.app import app
    except ImportError as error:
        if error.name not in ("typer", "rich", "tqdm"):
            raise
        sys.exit("the excise command needs a few more packages: pip install 'excise[cli]'")
    from excise.errors import ExciseError

    try:
        app()
    except (ExciseError, OSError) as error:
        sys.exit(f"error: {error}")
