"""grpcurl as a caller: it knows the contract only by asking the service for it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from tests.contract.authored import Scenario

Json = dict[str, Any]
GRPCURL = Path(__file__).resolve().parents[2] / "build" / "bin" / "grpcurl"
DISPATCH = "lineside.v1.DispatchService/Dispatch"
_RESPONSE = re.compile(r"^Response contents:\n(.*?)\n\nResponse trailers received:", re.DOTALL | re.MULTILINE)
_PUSHBACK = re.compile(r"^grpc-retry-pushback-ms: (-?\d+)$", re.MULTILINE)
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}
_PLAIN = {"dispatch", "unary", "timeout_s", "metadata", "parent"}
_AT_ONCE = 4
"""Scenarios under way together: each step is a process, which starts slower than it calls."""


@dataclass(frozen=True, slots=True)
class Grpcurl:
    """Calls one service. ca: a PEM file of who to trust; None is plaintext."""

    address: str
    token: str
    ca: Path | None = None

    async def told(self, *words: str) -> str:
        """What it prints for `list` or `describe`."""
        status, out, err = await self._ran([*self._who(self.token)[:-2], self.address, *words], b"")
        assert status == 0, err
        return out

    async def answers(self, scenario: Scenario) -> Json:
        """What a runner would print for a scenario of plain steps."""
        token = scenario.do.get("token", self.token)
        told = [await self._answer(step, token) for step in scenario.do["steps"]]
        return {"id": scenario.id, "answers": told}

    async def all_answers(self, chosen: Iterable[Scenario]) -> list[Json]:
        """Of several, some at a time, in their order."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(scenario: Scenario) -> Json:
            async with room:
                return await self.answers(scenario)

        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(scenario)) for scenario in chosen]
        return [task.result() for task in running]

    async def _answer(self, step: Json, token: str) -> Json:
        method, request = _asked(step)
        headers = dict(step.get("metadata", {}))
        if "parent" in step:
            headers["traceparent"] = step["parent"]
        words = [word for header in headers.items() for word in ("-rpc-header", ": ".join(header))]
        limit = ["-max-time", str(step["timeout_s"])] if "timeout_s" in step else []
        asked = [*self._who(token), *words, *limit, "-v", "-format-error", "-d", "@", self.address, method]
        status, out, err = await self._ran(asked, json.dumps(request).encode())
        if status == 0:
            found = _RESPONSE.search(out)
            assert found is not None, out
            response = json.loads(found[1])
            return {"code": "OK", "response": response["answer"] if method == DISPATCH else response}
        return _refused(err, out)

    def _who(self, token: str) -> list[str]:
        """Reflection is asked with the good token, whatever the call's is."""
        good, own = (f"authorization: Bearer {one}" for one in (self.token, token))
        trust = ["-plaintext"] if self.ca is None else ["-cacert", str(self.ca)]
        return [*trust, "-reflect-header", good, "-rpc-header", own]

    async def _ran(self, words: list[str], stdin: bytes) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            str(GRPCURL),
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await process.communicate(stdin)
        finally:
            if process.returncode is None:
                process.kill()
        return await process.wait(), out.decode(), err.decode()


def can_be_run(scenario: Scenario) -> bool:
    """Whether it has only plain calls, of methods that exist, on the plain connection."""
    return "via" not in scenario.do and all(map(_can_be_said, scenario.do["steps"]))


def _can_be_said(step: Mapping[str, Any]) -> bool:
    """Whether grpcurl has words for it, and time: it reads no field mask, and a short limit may pass before
    it has heard what the error's details are.
    """
    has_time = step.get("timeout_s", 60) > 1
    is_known = "Nope" not in str(step.get("unary")) and "result_mask" not in step.get("dispatch", ())
    return has_time and is_known and set(step) <= _PLAIN


def _asked(step: Mapping[str, Any]) -> tuple[str, Json]:
    if "unary" in step:
        return step["unary"]["method"], step["unary"]["request"]
    return DISPATCH, {"call": step["dispatch"]}


def _refused(err: str, out: str) -> Json:
    try:
        status = json.loads(err)
    except ValueError:
        raise AssertionError(err) from None
    pushback = _PUSHBACK.search(out)
    return {
        "code": _CODES[status["code"]],
        "message": status.get("message", ""),
        "details": status.get("details", []),
        **({"pushback_ms": int(pushback[1])} if pushback else {}),
    }
