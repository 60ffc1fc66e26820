"""The `lineside` command: tool calls from a shell. Needs the extra `cli` (typer and rich)."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line; without the extra it says how to install it and exits 2."""
    try:
        import rich
        import typer
    except ImportError as error:
        sys.stderr.write(
            f"lineside: the command line needs {error.name}, which is not installed.\n"
            "  pip install 'lineside[cli]'\n"
        )
        raise SystemExit(2) from None
    del rich, typer
    from lineside.cli.app import app

    app(prog_name="lineside")
