"""Idempotency keys for callers that derive them from what they do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_EXACT_FLOAT = 2.0**53  # beyond it a double no longer tells neighbouring integers apart


def step_key(step_id: str, tool: str, arguments: Mapping[str, Any] | bytes) -> str:
    """A key that is the same whenever the same step makes the same call: 72 characters, `step-v1-` and a
    SHA-256.

    step_id: the caller's name of the step, unique within what may be repeated (`run 7, turn 3, call 1`):
    two equal calls that are both meant must differ in it. Arguments are equal when the service takes them
    for equal: members in any order, integral floats within +-2^53 as integers, larger integers exact, -0 as
    0, text without Unicode normalisation, null apart from absent. With other arguments the step gets
    another key, hence another execution; use the bare step_id as the key to have such a change refused
    (`KeyReused`) instead.

    Raises ValueError for NaN and infinities, TypeError for what JSON has no form for.
    """
    value = json.loads(arguments) if isinstance(arguments, bytes) else arguments
    digest = hashlib.sha256()
    for part in (step_id, tool, canonical_json(value)):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return f"step-v1-{digest.hexdigest()}"


def canonical_json(value: Any) -> str:
    """JSON text that is equal exactly for values that the service's fingerprint takes for equal. ASCII
    only.
    """
    return json.dumps(_canonical(value), allow_nan=False, sort_keys=True, separators=(",", ":"))


def _canonical(value: Any) -> Any:
    if isinstance(value, float):
        # Covers -0.0, which is an integral float too.
        return int(value) if value.is_integer() and abs(value) <= _EXACT_FLOAT else value
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise TypeError(f"a member's name must be text, not {name!r}")
        return {name: _canonical(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(element) for element in value]
    return value
