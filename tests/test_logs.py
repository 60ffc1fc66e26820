"""How the log looks to people."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = r"""
import sys
from lineside_service.assembly.logs import get_log, set_up_logs
set_up_logs(level="info", json_lines=sys.argv[1] == "json")
log = get_log("lineside.tool")
log.error("tool.failed", error_type="ValueError", traceback="  frame 1\n  frame 2\n")
"""


def logged(form: str) -> str:
    """What a process of its own logs about a tool that failed."""
    ran = subprocess.run((sys.executable, "-c", _PROGRAM, form), capture_output=True, text=True, check=True)
    return ran.stderr


def test_a_console_shows_frames_on_lines_of_their_own() -> None:
    """Below the event, as a traceback is read; not as one text with escaped line ends."""
    event, *frames = logged("console").splitlines()
    assert "tool.failed" in event
    assert "error_type=ValueError" in event
    assert frames == ["  frame 1", "  frame 2"]


def test_a_json_line_keeps_its_frames_in_its_field() -> None:
    """One event is one line for machines."""
    (line,) = logged("json").splitlines()
    assert r'"traceback": "  frame 1\n  frame 2\n"' in line
