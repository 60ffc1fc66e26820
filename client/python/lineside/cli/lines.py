"""Calls from JSON text: the arguments of `call`, the lines of `batch`."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lineside.call import Call
from lineside.errors import SchemaError
from lineside.keys import step_key
from lineside.status import refused_here

_FIELDS: dict[str, tuple[type, ...]] = {
    "tool": (str,),
    "arguments": (dict,),
    "idempotency_key": (str,),
    "item_id": (str,),
    "timeout_s": (int, float),
    "attempt_timeout_s": (int, float),
    "budget_tool_calls_remaining": (int,),
    "validate_only": (bool,),
    "traceparent": (str,),
    "tracestate": (str,),
}


@dataclass(slots=True)
class Lines:
    """The calls of a JSON Lines text.

    key_prefix: gives every call without a key one that is derived from it, the line's number and what it
    calls. numbers: the line of each call, by position. faults: lines that are no call, with their error, for
    `take_faults`.
    """

    source: Iterable[str]
    key_prefix: str | None = None
    numbers: list[int] = field(default_factory=list)
    faults: list[tuple[int, SchemaError]] = field(default_factory=list)
    _item_ids: dict[int, str] = field(default_factory=dict)

    def calls(self) -> Iterator[Call]:
        """The calls, line by line; empty lines are passed over."""
        for number, line in enumerate(self.source, 1):
            if not line.strip():
                continue
            try:
                call = call_of(line)
                if self.key_prefix is not None and call.idempotency_key is None:
                    key = step_key(f"{self.key_prefix} line {number}", call.tool, call.arguments)
                    call = dataclasses.replace(call, idempotency_key=key)
            except SchemaError as fault:
                self._refuse(number, line, fault)
            except ValueError as error:
                self._refuse(number, line, refused_here("arguments", str(error), "NOT_JSON"))
            else:
                self.numbers.append(number)
                yield call

    def item_id(self, number: int) -> str:
        """The item_id that a line at fault states; its number if it states none."""
        return self._item_ids.pop(number, str(number))

    def _refuse(self, number: int, line: str, fault: SchemaError) -> None:
        with contextlib.suppress(ValueError, RecursionError):  # then it states none
            members = json.loads(line)
            if isinstance(members, dict) and isinstance(members.get("item_id"), str) and members["item_id"]:
                self._item_ids[number] = members["item_id"]
        self.faults.append((number, fault))

    def take_faults(self) -> list[tuple[int, SchemaError]]:
        """The faults since they were taken last."""
        taken = self.faults[:]  # the calls are read on another thread: only what was seen is removed
        del self.faults[: len(taken)]
        return taken


def call_of(line: str) -> Call:
    """The call that one JSON object states. Raises SchemaError naming the member at fault."""
    try:
        members = json.loads(line, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise refused_here("line", f"is not JSON: {error}", "NOT_JSON") from error
    if not isinstance(members, dict):
        raise refused_here(
            "line", 'must be an object such as {"tool": "echo", "arguments": {}}', "NOT_OBJECT"
        )
    for name, value in members.items():
        if name not in _FIELDS:
            near = difflib.get_close_matches(name, _FIELDS, 1)
            meant = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(_FIELDS)}"
            raise refused_here(name, f"is not a member of a call{meant}", "UNKNOWN_MEMBER")
        types = _FIELDS[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            wanted = {dict: "an object", str: "text", bool: "true or false"}.get(types[0], "a number")
            raise refused_here(name, f"must be {wanted}, not {json.dumps(value)[:40]}", "TYPE")
    if "tool" not in members:
        raise refused_here("tool", "is missing", "REQUIRED")
    return Call(**members)


def open_text(path: str) -> Iterable[str]:
    """The lines of a file, or of stdin for `-`."""
    return sys.stdin if path == "-" else Path(path).open(encoding="utf-8")


def json_text(text: str, name: str) -> bytes:
    """One JSON value as given, or from stdin for `-`, as it will travel. Raises ValueError with `name`."""
    raw = sys.stdin.buffer.read() if text == "-" else text.encode("utf-8", "surrogateescape")
    try:
        json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON: {error}") from error
    return raw


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"member {twice!r} is given twice")
    return members
