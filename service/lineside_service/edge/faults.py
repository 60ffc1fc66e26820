"""An unexpected exception as a log may show it: its type and place, never its text.

Texts of exceptions quote what they were given: arguments, headers, URLs with keys in them.
"""

from __future__ import annotations

import traceback
from pathlib import Path


def fault_fields(error: BaseException) -> dict[str, object]:
    """Log fields: `error_type`, and `where`, the frames innermost last, at most 12."""
    frames = traceback.extract_tb(error.__traceback__)[-12:]
    where = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    chain = [error]
    while (before := chain[-1].__cause__) is not None and len(chain) < 4:
        chain.append(before)
    kinds = " from ".join(f"{type(link).__module__}.{type(link).__qualname__}" for link in chain)
    return {"error_type": kinds, "where": where}
