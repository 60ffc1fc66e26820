"""What the client does on a real wire, told without pytest, so that any interpreter with the client can run
it.

`python -m tests.client.stories TARGET` runs all of them against a scripted service and names each one that
holds. A story that is a plain function tells of the blocking client.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tests.client.stories import batch, blocking, unary

Story = Callable[[str], Any]


def _of(module: ModuleType) -> dict[str, Story]:
    own = inspect.getmembers(
        module, lambda value: inspect.isfunction(value) and value.__module__ == module.__name__
    )
    return {name: story for name, story in own if not name.startswith("_")}


STORIES: dict[str, Story] = _of(unary) | _of(batch) | _of(blocking)
