"""The command line, called in this process as a user calls it."""

from __future__ import annotations

from typer.testing import CliRunner

from excise.cli.app import app

__all__ = ["app", "excise_command", "runner"]

runner = CliRunner()


def excise_command(*arguments: object) -> str:
    """Run a command; errors come out as exceptions."""
    result = runner.invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output
