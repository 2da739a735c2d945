"""The command line: one file per command, each a thin call of the library."""

from __future__ import annotations

import sys
import traceback
from typing import Any

__all__ = ["main", "run"]


def main() -> None:
    """Entry point of `excise`. Exit status: 0 done or guarded, 1 not guarded, 2 misuse or failure."""
    try:
        from excise.cli.app import app
    except ImportError as error:
        if error.name not in ("typer", "rich", "tqdm"):
            raise
        print("the excise command needs a few more packages: pip install 'excise[cli]'", file=sys.stderr)
        sys.exit(2)
    sys.exit(run(app))


def run(app: Any, arguments: list[str] | None = None) -> int:
    """Run the application and give the exit status. Errors of the user or of the system are one line."""
    from excise.errors import ExciseError

    try:
        app(args=arguments)
    except SystemExit as left:
        # Typer leaves with 130 when it was interrupted.
        return 2 if left.code not in (0, 1, 2, None) else int(left.code or 0)
    except (ExciseError, OSError, MemoryError) as error:
        said = str(error) or type(error).__name__
        print(f"error: {said}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 2
    except Exception:
        traceback.print_exc()
        print("error: this is a fault of excise; please report it with the lines above", file=sys.stderr)
        return 2
    return 0
