"""Times on the command line, written as in the service's config: 5, 5s, 500ms, 1.5m."""

from __future__ import annotations

import re
from typing import Final

import typer

MAX_S: Final = 600.0
"""The service takes no longer time for a call."""
_FORM: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|)")
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0}


def seconds(text: str) -> float:
    """The time in seconds. Raises BadParameter unless it is more than 0 and at most MAX_S."""
    form = _FORM.fullmatch(text.strip())
    if form is None:
        raise typer.BadParameter(f"{text!r} is no time; write 5, 5s, 500ms or 1.5m")
    time_s = float(form[1]) * _UNITS_S[form[2]]
    if not 0 < time_s <= MAX_S:
        raise typer.BadParameter(f"{text} must be more than 0 and at most {MAX_S:g} seconds")
    return time_s
