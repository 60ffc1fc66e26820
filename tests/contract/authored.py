"""scenarios.json as its authors write it, turned into what a runner does and what it must answer.

Anywhere in a step or an expectation a string may hold `${name}`, a value that the test hands in, and an
object may stand for a value:

    {"repeat": "x", "times": N}       the text N times over
    {"concat": [...]}                 its texts, one after the other
    {"count": N, "of": VALUE}         a list of N times the value, `${n}` in it being 0, 1, ...
    {"utf8": "text"}                  base64 of the text, as proto3 JSON has bytes
    {"json": VALUE}                   base64 of the value's JSON text (also a text that is made of the above)

A scenario's `note` says where a service may differ from the documents and is let pass.

In a call `args` is short for `arguments_json` of that value, and the step {"call": [TOOL, ARGS, FIELDS]} for
the dispatch of such a call, with further fields of it if any.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.contract.shorthand import Kinds, Shorthand

FILE = Path(__file__).with_name("scenarios.json")
_NAMED = re.compile(r"\$\{([\w.]+)\}")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario. do: as the runner gets it; wants: what each step must answer; tls: also run over TLS."""

    do: Mapping[str, Any]
    wants: tuple[Any, ...]
    tls: bool

    @property
    def id(self) -> str:
        """Its name."""
        name: str = self.do["id"]
        return name


def scenarios(names: Mapping[str, str], *, by_stub: bool = False) -> list[Scenario]:
    """All of them, in their order.

    names: what `${name}` stands for. by_stub: for a caller that has no error type of its own.
    """
    told = json.loads(FILE.read_text())
    kinds: Kinds = told["kinds"]
    return [_scenario(one, kinds, names, by_stub=by_stub) for one in told["scenarios"]]


def written(chosen: Sequence[Scenario], file: Path) -> Path:
    """The file that a runner reads."""
    file.write_text(json.dumps({"scenarios": [one.do for one in chosen]}))
    return file


def _scenario(told: Mapping[str, Any], kinds: Kinds, names: Mapping[str, str], *, by_stub: bool) -> Scenario:
    do = {name: expanded(told[name], names) for name in ("id", "via", "token") if name in told}
    do["steps"] = [expanded(step_of(step["do"]), names) for step in told["steps"]]
    wants = tuple(expanded(_want(step, kinds, by_stub=by_stub), names) for step in told["steps"])
    return Scenario(do, wants, tls=told.get("tls", False))


def step_of(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """A step without its short form."""
    match told:
        case {"call": [tool, args, *more], **options}:
            return {"dispatch": {"tool": tool, "args": args, **(more[0] if more else {})}, **options}
        case {"parallel": steps}:
            return {**told, "parallel": [step_of(step) for step in steps]}
    return told


def _want(step: Mapping[str, Any], kinds: Kinds, *, by_stub: bool) -> Any:
    kind = set(step["do"])
    by_stub = by_stub or bool(kind & {"frames", "unary"})
    return Shorthand(kinds, by_stub=by_stub, is_read="unary" in kind).want(step["want"])


def expanded(told: Any, names: Mapping[str, str]) -> Any:
    """The value that an author's form stands for."""
    match told:
        case str():
            return _NAMED.sub(lambda found: names.get(found[1], found[0]), told)
        case list():
            return [expanded(part, names) for part in told]
        case {"repeat": str() as text, "times": int() as times}:
            return text * times
        case {"concat": list() as parts}:
            return "".join(expanded(parts, names))
        case {"count": int() as count, "of": value}:
            return [expanded(value, {**names, "n": str(n)}) for n in range(count)]
        case {"utf8": text}:
            return _base64(expanded(text, names))
        case {"json": value}:
            return _base64(json.dumps(expanded(value, names), ensure_ascii=False, separators=(",", ":")))
        case {"args": value, **rest}:
            return {**expanded(rest, names), "arguments_json": expanded({"json": value}, names)}
        case dict():
            return {name: expanded(value, names) for name, value in told.items()}
    return told


def _base64(text: str) -> str:
    return base64.b64encode(text.encode("utf-8")).decode()
