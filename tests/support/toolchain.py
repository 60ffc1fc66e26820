"""What a test needs of this machine besides Python."""

from __future__ import annotations

import os
import shutil

import pytest

SWITCH = "LINESIDE_REQUIRE_ALL"
"""Set to anything but "" and "0", as CI does: what is missing fails instead of skipping."""


def need(command: str, what: str) -> None:
    """Go on only with a command on PATH; without it skip, or fail where all is required.

    what: what is not tested without it, for the reader of the report.
    """
    if shutil.which(command) is not None:
        return
    reason = f"no `{command}` on PATH: {what} is not tested here"
    if os.environ.get(SWITCH, "") not in ("", "0"):  # noqa: TID251 - a switch of the test run
        pytest.fail(f"{reason}, and {SWITCH} is set")
    pytest.skip(reason)
