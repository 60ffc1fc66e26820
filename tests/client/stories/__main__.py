"""Runs every story against a target, as the smallest test runner there is."""

from __future__ import annotations

import asyncio
import inspect
import sys

from tests.client.stories import STORIES


def main(target: str) -> None:
    """Prints each story's name once it holds; the first one that does not ends the run with its traceback."""
    for name, story in STORIES.items():
        if inspect.iscoroutinefunction(story):
            asyncio.run(story(target))
        else:
            story(target)
        print(name, flush=True)  # noqa: T201 - its output


main(sys.argv[1])
