"""The same promises of the blocking client."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import lineside
from tests.client.stories.telling import new_name


def blocking_answer_is_whole(target: str) -> None:
    """An answer comes back with every field, and every parameter reaches the service."""
    with lineside.Client(target) as client:
        name = new_name()
        answer = client.dispatch(
            "echo",
            {"name": name},
            idempotency_key="k1",
            timeout_s=20,
            attempt_timeout_s=1.5,
            budget_tool_calls_remaining=4,
        )
        assert answer.result == {"name": name}
        assert (answer.attempts, answer.source, answer.run_time_s) == (2, "executed", 1.5)
        call = _seen(client, name)["calls"][0]
        assert (call["key"], call["attempt_timeout_s"], call["budget"]) == ("k1", 1.5, 4)
        assert 19 < call["call_timeout_s"] <= 20


def blocking_calls_are_sent_again_under_a_key_only(target: str) -> None:
    """A cut connection: a keyed call is sent again, a keyless one ends with outcome UNKNOWN after one
    effect.
    """
    with lineside.Client(target) as client:
        keyed, keyless = new_name(), new_name()
        client.dispatch("cut", {"name": keyed, "times": 2}, idempotency_key="k")
        assert _seen(client, keyed)["arrivals"] == 3
        error = _failure(client, "cut", {"name": keyless})
        assert isinstance(error, lineside.ConnectionLost)
        assert error.outcome == "unknown"
        assert _seen(client, keyless)["effects"] == 1


def blocking_errors_are_typed(target: str) -> None:
    """A refusal, a silent deadline and a service that is not there each have their class and outcome."""
    with lineside.Client(target) as client:
        told = {"kind": "key_reused", "outcome": "not_run", "call_id": "c-1"}
        error = _failure(client, "refuse", {"name": new_name(), "status": told})
        assert isinstance(error, lineside.KeyReused)
        assert (error.call_id, error.reason) == ("c-1", "KEY_REUSED")
        late = _failure(client, "hang", {"name": new_name()}, timeout_s=0.2)
        assert (type(late), late.outcome) == (lineside.CallTimeout, "unknown")
    with lineside.Client("127.0.0.1:1") as nobody:
        assert _failure(nobody, "echo", {}).outcome == "not_run"


def blocking_questions_are_answered(target: str) -> None:
    """Records, settlements and tools arrive as plain values, lists page after page."""
    with lineside.Client(target) as client:
        assert client.get_call("known").result == [1, None]
        assert [call.call_id for call in client.list_calls()] == [f"call-{n}" for n in range(5)]
        assert client.settle_call("c", "e-known", done={"a": 1}, reason="r").result == {"a": 1}
        assert [tool.name for tool in client.list_tools(full=True)] == [f"tool-{n}" for n in range(5)]
        assert client.get_tool("echo").input_schema == {"type": "object"}
        with contextlib.suppress(lineside.NotFound):
            client.get_tool("none")
            raise AssertionError("no error")


def blocking_answers_come_in_order(target: str) -> None:
    """dispatch_all answers in the order of the calls, an error in its place."""
    with lineside.Client(target) as client:
        calls = [lineside.Call(tool="echo", arguments={"n": n}) for n in range(600)]
        told = {"name": new_name(), "status": {"kind": "overloaded", "outcome": "not_run"}}
        calls[500] = lineside.Call(tool="refuse", arguments=told)
        answers = client.dispatch_all(calls)
        assert isinstance(answers[500], lineside.Overloaded)
        ran = [answer.result["n"] for answer in answers if isinstance(answer, lineside.Answer)]
        assert ran == [n for n in range(600) if n != 500]


def blocking_batch_feeds_on_its_results(target: str) -> None:
    """A call may be made of the result before it."""
    with lineside.Client(target) as client:
        said = threading.Semaphore(0)

        def chain() -> Iterator[lineside.Call]:
            for step in range(20):
                if step:
                    said.acquire()
                yield lineside.Call(tool="echo", arguments={"step": step})

        told = []
        for result in client.batch(chain()):
            told.append(result.unwrap().result["step"])
            said.release()
        assert told == list(range(20))


def blocking_batch_is_read_as_it_is_taken(target: str) -> None:
    """At most 256 calls are read ahead of their results, from an endless iterable too; leaving it cancels."""
    with lineside.Client(target) as client:
        name = new_name()
        read = 0

        def endless() -> Iterator[lineside.Call]:
            nonlocal read
            while True:
                read += 1
                yield lineside.Call(tool="echo", arguments={"n": read})
                if read == 2000:
                    yield lineside.Call(tool="hang", arguments={"name": name})

        for count, result in enumerate(client.batch(endless()), 1):
            assert result.answer is not None
            assert read <= count + 257
            if count == 2100:
                break
        client.dispatch("await_cancelled", {"name": name}, timeout_s=2)


def blocking_batch_resumes(target: str) -> None:
    """A drain sends again what was not taken; a cut sends again what has a key and ends the rest UNKNOWN."""
    with lineside.Client(target) as client:
        drain, late, held, cut = new_name(), new_name(), new_name(), new_name()
        drained = threading.Event()

        def calls() -> Iterator[lineside.Call]:
            yield lineside.Call(tool="drain", arguments={"name": drain})
            client.dispatch("await_arrival", {"name": drain})
            for n in range(50):
                yield lineside.Call(tool="echo", arguments={"name": late, "n": n})
            client.dispatch("open_gate", {"name": drain})
            drained.wait()
            yield lineside.Call(tool="gate", arguments={"name": held}, idempotency_key="a", item_id="keyed")
            yield lineside.Call(tool="gate", arguments={"name": held}, item_id="keyless")
            _arrived(client, held, 2)
            yield lineside.Call(tool="cut", arguments={"name": cut}, idempotency_key="b")
            _arrived(client, cut, 2)
            client.dispatch("open_gate", {"name": held})

        results = []
        for result in client.batch(calls()):
            results.append(result)
            if len(results) == 51:
                drained.set()
        assert len(results) == 54
        lost = {result.item_id: result.error for result in results if result.error}
        assert list(lost) == ["keyless"], lost
        assert lost["keyless"] is not None
        assert lost["keyless"].outcome == "unknown"
        assert _seen(client, late)["arrivals"] == 50
        assert _seen(client, held)["arrivals"] == 3


def blocking_batch_gives_up(target: str) -> None:
    """A batch that finds nobody ends within its time: what was read is reported, and the iteration raises."""
    with lineside.Client("127.0.0.1:1") as client:
        answers = client.dispatch_all([lineside.Call(tool="echo")] * 300, timeout_s=0.3)
        assert {type(answer) for answer in answers} == {lineside.ConnectionLost}
        assert len(answers) == 300


def blocking_close_ends_what_is_under_way(target: str) -> None:
    """A client that is closed by another thread ends its calls in words, each call of a batch reported."""
    watcher = lineside.Client(target)
    client = lineside.Client(target)
    name = new_name()

    def close() -> None:
        _arrived(watcher, name, 3)
        client.close()

    closing = threading.Thread(target=close)
    closing.start()
    ends = client.dispatch_all([lineside.Call(tool="hang", arguments={"name": name})] * 3)
    closing.join()
    watcher.close()
    assert [(type(end), end.outcome) for end in ends if isinstance(end, lineside.DispatchError)] == [
        (lineside.Cancelled, "unknown")
    ] * 3
    try:
        client.dispatch("echo", {})
        said = ""
    except lineside.LinesideError as error:
        said = str(error)
    assert "closed" in said


def _seen(client: lineside.Client, name: str) -> dict[str, Any]:
    told: dict[str, Any] = client.dispatch("seen", {"name": name}, idempotency_key=new_name()).result
    return told


def _arrived(client: lineside.Client, name: str, count: int) -> None:
    while _seen(client, name)["arrivals"] < count:
        pass


def _failure(
    client: lineside.Client, tool: str, arguments: dict[str, Any], **kw: Any
) -> lineside.DispatchError:
    try:
        client.dispatch(tool, arguments, **kw)
    except lineside.DispatchError as error:
        return error
    raise AssertionError("no error")
