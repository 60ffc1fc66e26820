"""The tables of a Markdown page, for tests that hold the page to the code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_TICKED = re.compile(r"`([^`]+)`")


def rows_of(page: str, *header: str) -> list[dict[str, str]]:
    """The rows of every table of `docs/PAGE` whose first columns have these names, by column."""
    found = [row for table in _tables(page) if tuple(table[0])[: len(header)] == header for row in table]
    assert found, f"{page} has no table with the columns {header}"
    return found


def ticked(text: str) -> list[str]:
    """What stands in backticks."""
    return _TICKED.findall(text)


def _tables(page: str) -> Iterator[Sequence[dict[str, str]]]:
    lines: list[str] = []
    for line in [*(ROOT / "docs" / page).read_text().splitlines(), ""]:
        if line.startswith("|"):
            lines.append(line)
        elif lines:
            names = _cells(lines[0])
            yield [dict(zip(names, _cells(row), strict=True)) for row in lines[2:]]
            lines = []


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
