"""The command line: one file per command, each a thin call of the library."""

from __future__ import annotations

import sys
import traceback
from typing import Any

__all__ = ["main", "run"]


def main() -> None:
    """Entry point of `excise`. Exit status: 0 done or guarded, 1 not guarded, 2 misuse or failure, 130 interrupted."""
    try:
        from excise.cli.app import app
    except ImportError as error:
        if error.name not in ("typer", "rich", "tqdm"):
            raise
        print("the excise command needs a few more packages: pip install 'excise[cli]'", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted: nothing was written", file=sys.stderr)
        sys.exit(130)
    sys.exit(run(app))


def run(app: Any, arguments: list[str] | None = None) -> int:
    """Run the application and give the exit status. Errors of the user or of the system are one line."""
    from excise.errors import ExciseError, Interrupted, absent_package

    try:
        app(args=arguments)
    except SystemExit as left:  # Typer leaves with 130 after Ctrl-C
        return _stop("nothing was written") if left.code == 130 else _status(left.code)
    except Interrupted as stopped:
        return _stop(str(stopped))
    except KeyboardInterrupt:
        return _stop("nothing was written")
    except (ExciseError, OSError, MemoryError) as error:
        return _fail(str(error) or type(error).__name__)
    except ImportError as error:
        absent = absent_package(error)
        return _report_fault() if absent is None else _fail(str(absent))
    except Exception:
        return _report_fault()
    return 0


def _status(code: Any) -> int:
    return 2 if code not in (0, 1, 2, None) else int(code or 0)


def _stop(kept: str) -> int:
    print(f"interrupted: {kept}", file=sys.stderr)
    return 130


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


def _report_fault() -> int:
    traceback.print_exc()
    return _fail("this is a fault of excise; please report it with the lines above")
