"""The parts of a call, each measured alone: where the road's own cost goes."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable

from lineside_service.core.attempt import AttemptEnd, Verdict
from lineside_service.core.call import Call
from lineside_service.core.errors import Outcome
from lineside_service.core.jsontext import decode_arguments, encode_result
from lineside_service.core.ledger import RowState
from lineside_service.engine.eager import EagerTasks
from lineside_service.engine.history import History
from lineside_service.engine.rows import KeyedCall, claimed_row
from lineside_service.engine.waiters import Waiters
from lineside_service.stores.sqlite_rows import encode
from tests.load.rig import ARGUMENTS, Rig

_REPEATS, _LOOPS = 7, 2_000


async def stage_costs(rig: Rig) -> dict[str, list[float]]:
    """Microseconds per call of each part, one number per repeat. The last five only a keyed call has."""
    dispatcher = rig.dispatcher
    registered = dispatcher.registry.find("echo", "bench")
    if registered is None:
        raise LookupError("the rig has no echo tool")
    state, schema, now = registered.state, registered.schema, time.monotonic
    call = Call(tenant="bench", tool="echo", arguments=ARGUMENTS, arrival=0.0, deadline=60.0, key="key")
    keyed = KeyedCall.of(call, "key")

    def slot() -> None:
        state.gate.slots.try_take("bench")
        state.gate.release()

    def permit() -> None:
        granted = state.breaker.acquire(now(), 30.0)
        if granted is None:
            raise RuntimeError("the breaker is open")
        state.breaker.settle(granted, Verdict.SUCCESS, now())

    eager = EagerTasks()

    async def nothing() -> None:
        return None

    def row() -> object:
        return claimed_row(
            keyed, registered.spec, None, call_id="id", incarnation="bench", secret=b"s" * 32, wall_s=0.0
        )

    claimed = claimed_row(
        keyed, registered.spec, None, call_id="id", incarnation="bench", secret=b"s" * 32, wall_s=0.0
    )
    end = AttemptEnd(kind=None, outcome=Outcome.DONE, result=b"1")
    history = History("id", 0.0, Outcome.NOT_RUN)
    history.started(0.0, 0.0, 0.0).end = end
    parts: dict[str, Callable[[], object]] = {
        "decode_arguments": lambda: decode_arguments(b'{"city":"Oslo","days":3}'),
        "find_tool": lambda: dispatcher.registry.find("echo", "bench"),
        "check_schema": lambda: schema.check(ARGUMENTS),
        "call_id": dispatcher.sources.new_call_id,
        "waiters": lambda: Waiters(0.0),
        "slot": slot,
        "breaker_permit": permit,
        "retry_budget": lambda: state.retry_budget.record_call(now()),
        "eager_task": lambda: eager.start(nothing(), "bench", contextvars.copy_context()),
        "encode_result": lambda: encode_result({"city": "Oslo", "days": 3}, 1 << 20),
        "key_hashes": lambda: KeyedCall.of(call, "key"),
        "claimed_row": row,
        "ended_row": lambda: claimed.but(state=RowState.DONE, result=b"1"),
        "attempt_log": history.to_json,
        "row_to_columns": lambda: encode(claimed, 1),
    }
    costs: dict[str, list[float]] = {}
    for name, part in parts.items():
        costs[name] = []
        for _ in range(_REPEATS):
            costs[name].append(_us(part))
            await asyncio.sleep(0)  # the tasks that a part leaves behind
    return costs


def _us(part: Callable[[], object]) -> float:
    started = time.perf_counter_ns()
    for _ in range(_LOOPS):
        part()
    return (time.perf_counter_ns() - started) / _LOOPS / 1000
