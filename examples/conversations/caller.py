"""The caller of the demo: an agent loop that sends each call until it knows what became of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from conversations.catalogue import effect_of
from conversations.config import CALL_TIMEOUT_S, EFFECT_TOOL
from conversations.corpus import Call, Conversation
from conversations.execution import Answer
from conversations.faults import CallerFaults, broken_arguments, caller_faults
from conversations.gateway import CallRecord, Gateway, Refused, Reply
from conversations.schemas import ToolSchema
from conversations.tally import Tally

__all__ = ["Caller", "PromiseBroken"]

SETTLING_S = 60.0
"""How long an unknown outcome may stay unsettled, in seconds; the reconcile tool answers within a few."""

MAX_SENDS = 20
"""How often a call is sent before its caller gives up; with these faults a few times are enough."""

POLL_S = 0.02
_SETTLED_IS_WORTH = 2  # attempts, when the longest story is chosen
_WELL_BEHAVED = CallerFaults(twice=False, again=False, broken=False)


class PromiseBroken(Exception):
    """The service did what it promises not to do."""


class Caller:
    """Runs conversations, each call in its turn, and counts what it sees.

    `seed` chooses how the caller misbehaves, None: not at all. `expected` are the answers of direct
    execution, by key. `most_eventful` is the call with the longest story, None if every call went smoothly.
    """

    def __init__(
        self,
        gateway: Gateway,
        tally: Tally,
        *,
        schemas: Mapping[str, ToolSchema],
        expected: Mapping[str, Answer],
        seed: int | None,
    ) -> None:
        self.most_eventful: CallRecord | None = None
        self._gateway = gateway
        self._tally = tally
        self._schemas = schemas
        self._expected = expected
        self._seed = seed

    async def run(self, conversation: Conversation) -> None:
        """Run one conversation to its end; raises PromiseBroken."""
        for call in conversation.calls:
            await self._run_call(call)
            self._tally.calls += 1
        self._tally.conversations += 1

    async def _run_call(self, call: Call) -> None:
        faults = _WELL_BEHAVED if self._seed is None else caller_faults(self._seed, call.key)
        if faults.broken:
            await self._send_broken(call)
        ends = await asyncio.gather(*(self._try(call) for _ in range(1 + faults.twice)))
        replies = [end for end in ends if isinstance(end, Reply)]
        if not replies:
            # Ids rise with time: of two executions the later one says how the key stands.
            latest = max((end for end in ends if isinstance(end, Refused)), key=lambda end: end.call_id)
            replies.append(await self._until_answered(call, latest))
        if faults.again:
            replies.append(await self._again(call))
        if any(reply.answer != self._expected[call.key] for reply in replies):
            self._tally.unequal_answers.append(call.key)
        await self._keep_if_eventful(replies[0])

    async def _send_broken(self, call: Call) -> None:
        arguments = broken_arguments(self._schemas[call.tool].input_schema, call.wire_arguments)
        try:
            await self._send(call.tool, arguments, key=None)
        except Refused as refused:
            if (refused.kind, refused.attempts) != ("schema", 0):
                raise PromiseBroken(f"{call.key} with broken arguments: {refused}") from refused
        else:
            raise PromiseBroken(f"{call.key} was run with broken arguments")

    async def _again(self, call: Call) -> Reply:
        reply = await self._send(call.tool, call.wire_arguments, key=call.key)
        if reply.source != "replayed":
            raise PromiseBroken(f"{call.key} was sent again and {reply.source}, not replayed")
        return reply

    async def _try(self, call: Call) -> Reply | Refused:
        try:
            return await self._send(call.tool, call.wire_arguments, key=call.key)
        except Refused as refused:
            return refused

    async def _until_answered(self, call: Call, end: Reply | Refused) -> Reply:
        """See to the reason of a refusal that leaves the call open, and send it again with its key.

        With its key a call can always be sent again: the ledger knows whether that runs it.
        """
        sent = 1
        while isinstance(end, Refused):
            if sent == MAX_SENDS:
                raise PromiseBroken(f"{call.key} is still refused after {sent} times: {end}")
            if end.outcome == "done":
                raise PromiseBroken(f"{call.key} was run, but its answer is kept back: {end}")
            if end.outcome == "not_run":
                self._tally.sent_again_after_not_run += 1
            elif end.outcome == "unknown" and effect_of(call.api, call.method) == "safe":
                self._tally.sent_again_as_safe += 1
            elif end.outcome == "unknown" and end.call_id:
                await self._settle(call, end.call_id)
            await asyncio.sleep(end.retry_after_s)
            end = await self._try(call)
            sent += 1
        return end

    async def _send(self, tool: str, arguments: dict[str, Any], *, key: str | None) -> Reply:
        began = time.monotonic()
        try:
            reply = await self._gateway.send(tool, arguments, key=key, timeout_s=CALL_TIMEOUT_S)
        except Refused as refused:
            self._tally.refused(refused.kind, refused.outcome, refused.call_id, refused.attempts)
            raise
        self._tally.answered(reply.source, reply.call_id, reply.attempts, time.monotonic() - began)
        return reply

    async def _settle(self, call: Call, call_id: str) -> None:
        """See an unknown outcome settled: by the reconcile tool, or else looked up as a person would."""
        give_up = time.monotonic() + SETTLING_S
        while True:
            record = await self._gateway.record(call_id)
            if record is None:
                raise PromiseBroken(f"{call.key}: the record of unknown call {call_id} is gone")
            if record.state != "unknown":
                break
            if time.monotonic() > give_up:
                raise PromiseBroken(f"{call.key}: call {call_id} is unknown for {SETTLING_S:g} s")
            if call.api.reconcile or not await self._settle_by_hand(call, record):
                await asyncio.sleep(POLL_S)
        self._tally.settled(record.call_id, record.settled_by)

    async def _settle_by_hand(self, call: Call, record: CallRecord) -> bool:
        found = await self._gateway.send(EFFECT_TOOL, {"key": call.key}, timeout_s=CALL_TIMEOUT_S)
        told = found.answer.result
        if told["state"] == "unknown":
            return False
        done = None
        if told["state"] == "done":
            tool_error = "tool_error" in told
            done = Answer(result=told["tool_error" if tool_error else "result"], tool_error=tool_error)
        reason = f"looked up {call.key} at the upstream: {told['state']}"
        return await self._gateway.settle(record, done, reason=reason)

    async def _keep_if_eventful(self, reply: Reply) -> None:
        """Read the call's record if it may tell a longer story than the one kept."""
        if reply.attempts + _SETTLED_IS_WORTH * (reply.source == "replayed") > _events(self.most_eventful):
            record = await self._gateway.record(reply.call_id)
            if _events(record) > _events(self.most_eventful):
                self.most_eventful = record


def _events(record: CallRecord | None) -> int:
    return 1 if record is None else len(record.attempts) + _SETTLED_IS_WORTH * bool(record.settled_by)
