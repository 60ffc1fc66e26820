"""What the author of a Python tool imports: the context of a call, and the two errors with a meaning.

A tool is a plain function, async or not. It may take one parameter annotated `ToolContext`; what it returns
is the result. `TransientError` says "this did not take effect, try again", `ToolError` says "it ran, and the
answer is no"; any other exception is a failure whose text stays in the service's log.
"""

from __future__ import annotations

from lineside_service.tools.context import ToolContext, ToolError, TransientError

__all__ = ["ToolContext", "ToolError", "TransientError"]
