"""How an unknown outcome is settled: by a person, by the tool's reconcile tool, after a restart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lineside_service.core.call import Answer
from lineside_service.core.errors import ErrorKind, Failure, Outcome, Source
from lineside_service.core.ledger import Evidence, Row, RowState, SettledBy
from lineside_service.core.retry import RetryRules
from lineside_service.engine.calls import CallView
from tests.support.commanded_store import CommandedStore, reopened
from tests.support.engine_rig import BY_KEY, IDEMPOTENT, SAFE, Rig, expect_answer, value_of
from tests.support.scripted_tool import answer, hang, raises, says_no, swallow_cancel, transient

pytestmark = pytest.mark.parametrize("virtual_loop", range(3), indirect=True)

DONE = Evidence(by=SettledBy.PERSON, done=True, result=b'{"id":7}', reason="saw the mail")
NOT_RUN = Evidence(by=SettledBy.PERSON, done=False, reason="nothing in the outbox")


async def _unknown(rig: Rig, tool: str = "mail", key: str = "k") -> Row:
    """A call of this key that nobody knows the end of."""
    failure = await rig.failed(tool, key)
    assert failure.outcome is Outcome.UNKNOWN
    await rig.at(rig.loop.time() + 0.01)  # the cancelled attempt has really ended, unless it is deaf
    return await rig.standing(tool, key)


async def _settle(rig: Rig, row: Row, evidence: Evidence, etag: str | None = None) -> CallView | Failure:
    return await rig.calls.settle("acme", row.call_id, row.etag if etag is None else etag, evidence)


def _settled(view: CallView | Failure) -> Row:
    assert isinstance(view, CallView), view
    return view.row


def _refused(view: CallView | Failure) -> str:
    assert isinstance(view, Failure), view
    assert view.kind is ErrorKind.CONFLICT
    return view.reason_token


# -- by a person -------------------------------------------------------------------------------------------


async def test_a_person_settles_as_done(rig: Rig) -> None:
    """DONE with the given result, kept for 7 days, replayed; nothing runs."""
    tool = rig.add("mail", hang(), timeout_s=1.0)
    row = _settled(await _settle(rig, await _unknown(rig), DONE))
    assert (row.state, row.settled_by, row.settled_reason) == (
        RowState.DONE,
        SettledBy.PERSON,
        "saw the mail",
    )
    assert row.expires_s == pytest.approx(rig.loop.wall() + 7 * 86_400)
    reply = await rig.answered("mail", "k")
    assert (value_of(reply), reply.source, tool.attempts) == ({"id": 7}, Source.REPLAYED, 1)
    assert rig.ledger.settlements.unknown_count == 0


async def test_a_person_settles_as_not_run(rig: Rig) -> None:
    """The key executes again."""
    tool = rig.add("mail", hang(), answer(), timeout_s=1.0)
    row = _settled(await _settle(rig, await _unknown(rig), NOT_RUN))
    assert row.state is RowState.NOT_RUN
    reply = await rig.answered("mail", "k")
    assert (reply.source, tool.attempts) == (Source.EXECUTED, 2)
    assert reply.call_id != row.call_id


@pytest.mark.parametrize("evidence", [DONE, NOT_RUN])
async def test_the_same_settlement_twice_is_fine(rig: Rig, evidence: Evidence) -> None:
    """It is compared first: the etag of the second does not matter, nothing changes."""
    rig.add("mail", hang(), timeout_s=1.0)
    row = await _unknown(rig)
    first = _settled(await _settle(rig, row, evidence))
    again = _settled(await _settle(rig, row, evidence, etag="stale"))
    assert again == first


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (DONE, NOT_RUN),
        (NOT_RUN, DONE),
        (DONE, Evidence(by=SettledBy.PERSON, done=True, result=b"8")),
        (DONE, Evidence(by=SettledBy.PERSON, done=True, result=DONE.result, tool_error=True)),
    ],
)
async def test_the_first_settlement_stands(rig: Rig, one: Evidence, other: Evidence) -> None:
    """A different one is a conflict, even with the fresh etag; it is logged."""
    rig.add("mail", hang(), timeout_s=1.0)
    row = await _unknown(rig)
    first = _settled(await _settle(rig, row, one))
    assert _refused(await _settle(rig, first, other)) == "SETTLED"
    assert await rig.standing("mail", "k") == first
    assert "ledger.evidence_differs" in rig.log.events()


async def test_a_stale_etag_is_refused(rig: Rig) -> None:
    """While UNKNOWN: the call has changed since it was read."""
    rig.add("mail", hang(), timeout_s=1.0)
    row = await _unknown(rig)
    assert _refused(await _settle(rig, row, DONE, etag=f"{row.call_id}-0")) == "STALE_ETAG"
    assert (await rig.standing("mail", "k")).state is RowState.UNKNOWN


async def test_not_run_is_refused_while_the_attempt_runs(rig: Rig) -> None:
    """Nobody can say yet that it did not; done may be said; afterwards both."""
    rig.add("mail", swallow_cancel(raises(ValueError, after=10)), timeout_s=1.0)
    row = await _unknown(rig)
    view = await rig.calls.get("acme", row.call_id)
    assert isinstance(view, CallView)
    assert view.attempt_in_flight
    assert _refused(await _settle(rig, row, NOT_RUN)) == "STILL_RUNNING"
    await rig.at(11)
    assert _settled(await _settle(rig, row, NOT_RUN)).state is RowState.NOT_RUN


async def test_done_may_be_said_while_the_attempt_runs(rig: Rig) -> None:
    """The person saw it; the late completion says something else and is only logged."""
    rig.add("mail", swallow_cancel(answer("other", after=10)), timeout_s=1.0)
    row = await _unknown(rig)
    _settled(await _settle(rig, row, DONE))
    await rig.at(11)
    standing = await rig.standing("mail", "k")
    assert (standing.result, standing.settled_by) == (DONE.result, SettledBy.PERSON)
    assert "ledger.evidence_differs" in rig.log.events()


async def test_a_running_call_cannot_be_settled(rig: Rig) -> None:
    """Neither as done nor as not run, with whatever etag."""
    rig.add("mail", answer(after=5))
    task = rig.start("mail", "k")
    await rig.at(1)
    view = await rig.calls.get_by_key("acme", "mail", "k")
    assert isinstance(view, CallView)
    for evidence in (DONE, NOT_RUN):
        assert _refused(await _settle(rig, view.row, evidence)) == "STILL_RUNNING"
    await task


async def test_a_known_outcome_cannot_be_settled(rig: Rig) -> None:
    """It was never unknown."""
    rig.add("mail", answer())
    await rig.answered("mail", "k")
    assert _refused(await _settle(rig, await rig.standing("mail", "k"), DONE)) == "NOT_UNKNOWN"


async def test_a_keyless_or_foreign_call_cannot_be_settled(rig: Rig) -> None:
    """A keyless one is not kept; another tenant's does not exist."""
    rig.add("mail", hang(), timeout_s=1.0)
    row = await _unknown(rig)
    foreign = await rig.calls.settle("other", row.call_id, row.etag, DONE)
    assert isinstance(foreign, Failure)
    assert foreign.kind is ErrorKind.NOT_FOUND
    task = rig.start("mail")
    await rig.at(1.5)
    (call_id,) = rig.dispatcher._alone
    assert _refused(await rig.calls.settle("acme", call_id, "", DONE)) == "NOT_KEYED"
    await task


async def test_a_re_sent_call_cannot_be_settled_while_it_runs(rig: Rig) -> None:
    """A by_key call that executes again is running, whatever its stored row says."""
    rig.add("put", hang(), answer(after=5), timeout_s=6.0, **BY_KEY)
    await rig.failed("put", "k", budget=1, attempt_timeout_s=1.0)
    row = await rig.standing("put", "k")
    task = rig.start("put", "k")
    await rig.at(3)
    for evidence in (DONE, NOT_RUN):
        assert _refused(await _settle(rig, row, evidence)) == "STILL_RUNNING"
    assert expect_answer(await task).call_id == row.call_id
    assert (await rig.standing("put", "k")).settled_by is None


async def test_settling_and_re_sending_at_one_moment(rig: Rig) -> None:
    """On a slow store the two overlap in every way: one of them wins, nothing hangs, at most one effect."""
    for offset in range(8):
        key = f"k{offset}"
        rig.store.delay_s = {}
        rig.add("put", answer(), timeout_s=6.0, upstream_keys=1e9, **{**BY_KEY, "key_ttl_s": 1e6})
        rig.tools["put"].choose = lambda request: hang(effect_at=0.0) if request.number == 1 else answer()
        await rig.failed("put", key, budget=1, attempt_timeout_s=1.0)
        row = await rig.standing("put", key)
        rig.store.delay_s = {"find": 0.3, "claim": 0.3, "save": 0.3, "by_call_id": 0.3}
        task = rig.start("put", key, budget=1, attempt_timeout_s=1.0)
        await rig.at(rig.loop.time() + offset * 0.1)
        await _settle(rig, row, DONE)
        await task
        standing = await rig.standing("put", key)
        assert standing.state in (RowState.DONE, RowState.UNKNOWN)
        assert rig.effects.count(f"acme/put/{key}") == 1
    unknown = await rig.store.inner.count(RowState.UNKNOWN)
    assert rig.ledger.settlements.unknown_count == unknown


async def test_a_call_that_comes_during_a_settlement_waits_for_it(rig: Rig) -> None:
    """A by_key call is repeated while somebody's word is being written: it finds the settled row."""
    tool = rig.add("put", hang(), answer(), timeout_s=1.0, **BY_KEY)
    await rig.failed("put", "k", budget=1)
    row = await rig.standing("put", "k")
    rig.store.delay_s = {"save": 1.0}
    settling = rig.loop.create_task(_settle(rig, row, DONE))
    await rig.at(rig.loop.time() + 0.2)
    reply = await rig.answered("put", "k")
    assert (value_of(reply), reply.source) == ({"id": 7}, Source.REPLAYED)
    assert tool.attempts == 1
    assert _settled(await settling).state is RowState.DONE
    assert rig.ledger.settlements.unknown_count == 0


async def test_a_settlement_that_comes_during_a_look_up_is_seen(rig: Rig) -> None:
    """The look-up read the row as unknown, then it is settled, slowly: the key is looked up again."""
    tool = rig.add("put", hang(), answer(), timeout_s=1.0, **BY_KEY)
    await rig.failed("put", "k", budget=1)
    row = await rig.standing("put", "k")
    rig.store.delay_s = {"find": 1.0, "save": 1.0}
    task = rig.start("put", "k")
    await rig.at(rig.loop.time() + 0.7)
    settling = rig.loop.create_task(_settle(rig, row, DONE))
    reply = expect_answer(await task)
    assert (reply.source, tool.attempts) == (Source.REPLAYED, 1)
    assert _settled(await settling).state is RowState.DONE


async def test_a_settlement_that_comes_during_a_claim_is_refused(rig: Rig) -> None:
    """The by_key call is being sent again: what was known of its earlier attempt settles nothing now."""
    rig.add("put", hang(), answer(), timeout_s=1.0, **BY_KEY)
    await rig.failed("put", "k", budget=1)
    row = await rig.standing("put", "k")
    rig.store.delay_s = {"claim": 1.0}
    task = rig.start("put", "k")
    await rig.at(rig.loop.time() + 0.5)
    assert _refused(await _settle(rig, row, NOT_RUN)) == "STILL_RUNNING"
    assert value_of(await task) == "ok"
    assert (await rig.standing("put", "k")).settled_by is None


# -- by reconcile ------------------------------------------------------------------------------------------


def _says(**said: Any) -> Any:
    return answer(said, effect_at=None)


def _add_pair(rig: Rig, *says: Any, **spec: Any) -> tuple[Any, Any]:
    tool = rig.add("mail", hang(), timeout_s=1.0, reconcile="outbox", **spec)
    return tool, rig.add("outbox", *says, **SAFE)


async def test_reconcile_is_asked_as_the_tenant_without_a_key(rig: Rig) -> None:
    """It gets tool, call_id and downstream_key, spends nothing and leaves nothing in the ledger."""
    tool, outbox = _add_pair(rig, _says(state="done", result={"id": 7}))
    row = await _unknown(rig)
    await rig.at(1.1)
    (request,) = outbox.requests
    assert request.arguments == {
        "tool": "mail",
        "call_id": row.call_id,
        "downstream_key": tool.requests[0].downstream_key,
    }
    assert (request.tenant, request.key) == ("acme", None)
    standing = await rig.standing("mail", "k")
    assert (standing.state, standing.settled_by) == (RowState.DONE, SettledBy.RECONCILE)
    assert value_of(await rig.dispatch("mail", "k")) == {"id": 7}


@pytest.mark.parametrize(
    ("said", "state", "result", "tool_error"),
    [
        ({"state": "done", "result": 7}, RowState.DONE, b"7", False),
        ({"state": "done", "result": None}, RowState.DONE, b"null", False),
        ({"state": "done", "tool_error": "no"}, RowState.DONE, b'"no"', True),
        ({"state": "not_run"}, RowState.NOT_RUN, None, False),
    ],
)
async def test_what_reconcile_says_settles(
    rig: Rig, said: dict[str, Any], state: RowState, result: bytes | None, tool_error: bool
) -> None:
    """Done with a result or a tool_error, or not run."""
    _add_pair(rig, _says(**said))
    await _unknown(rig)
    await rig.at(2)
    row = await rig.standing("mail", "k")
    assert (row.state, row.result, row.tool_error) == (state, result, tool_error)
    assert (row.settled_by, rig.ledger.settlements.unknown_count) == (SettledBy.RECONCILE, 0)


@pytest.mark.parametrize(
    "step",
    [
        _says(state="unknown"),
        _says(state="maybe"),
        _says(),
        answer([1], effect_at=None),
        answer(None, effect_at=None),
        says_no("?"),
        raises(ValueError),
        transient(),
    ],
)
async def test_anything_else_counts_as_unknown_and_is_asked_again(rig: Rig, step: Any) -> None:
    """At once, then after 1, 2, 4 ... 256 and each 300 seconds, until it knows."""
    _, outbox = _add_pair(rig, step)
    rig.change("outbox", retry=RetryRules(max_attempts=1))
    await _unknown(rig)
    ended = 1.0
    await rig.at(ended + 1200)
    asked = [round(at - ended) for at in outbox.started_s]
    assert asked == [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 811, 1111]
    outbox.script = [_says(state="not_run")]
    await rig.at(ended + 1500)
    assert (await rig.standing("mail", "k")).state is RowState.NOT_RUN
    assert outbox.attempts == 13


async def test_reconcile_waits_for_the_attempts_real_end(rig: Rig) -> None:
    """It is not asked while the abandoned attempt runs, and at once when it ends without a word."""
    tool, outbox = _add_pair(rig, _says(state="not_run"))
    tool.script = [swallow_cancel(raises(ValueError, after=30))]
    await _unknown(rig)
    await rig.at(29)
    assert outbox.attempts == 0
    await rig.at(31)
    assert outbox.started_s == [30.0]
    assert (await rig.standing("mail", "k")).state is RowState.NOT_RUN


async def test_a_late_completion_comes_before_reconcile(rig: Rig) -> None:
    """The attempt's own word settles; nobody is asked."""
    tool, outbox = _add_pair(rig, _says(state="not_run"))
    tool.script = [swallow_cancel(answer("late", after=30))]
    await _unknown(rig)
    await rig.at(100)
    assert (await rig.standing("mail", "k")).settled_by is SettledBy.LATE_COMPLETION
    assert outbox.attempts == 0


async def test_a_person_may_be_faster(rig: Rig) -> None:
    """Settled by hand between two questions: nobody is asked again."""
    _, outbox = _add_pair(rig, _says(state="unknown"))
    row = await _unknown(rig)
    await rig.at(5)
    _settled(await _settle(rig, row, DONE))
    await rig.at(500)
    assert outbox.attempts == 3
    assert rig.reconciler._pursuits == {}


async def test_a_re_sent_call_is_not_reconciled_while_it_runs(rig: Rig) -> None:
    """A by_key call executes again: nobody is asked until that has ended too."""
    tool, outbox = _add_pair(rig, _says(state="unknown"), **BY_KEY)
    await rig.failed("mail", "k", budget=1)
    await rig.at(1.5)
    tool.script = [answer("again", after=0.9)]
    assert value_of(await rig.dispatch("mail", "k")) == "again"
    assert outbox.started_s == [1.0]
    await rig.at(100)
    assert (await rig.standing("mail", "k")).settled_by is None


async def test_an_answer_about_an_earlier_send_settles_nothing(rig: Rig) -> None:
    """Asked before a by_key call was sent again, answered after that ended unknown too: asked once more."""
    tool, outbox = _add_pair(rig, answer({"state": "not_run"}, after=1.5, effect_at=None), **BY_KEY)
    await rig.failed("mail", "k", budget=1)
    await rig.at(1.2)
    tool.script = [hang(effect_at=0.1)]
    await rig.failed("mail", "k", budget=1)
    outbox.script = [_says(state="done", result=7)]
    await rig.at(2.6)
    assert outbox.attempts == 1
    assert (await rig.standing("mail", "k")).state is RowState.UNKNOWN
    await rig.at(10)
    row = await rig.standing("mail", "k")
    assert (row.state, row.result, outbox.attempts) == (RowState.DONE, b"7", 2)
    assert len(rig.effects) == 1


async def test_only_a_few_questions_at_once(rig: Rig) -> None:
    """Fifty unknown calls: eight are asked about at a time, and all are settled."""
    _, outbox = _add_pair(rig, answer({"state": "not_run"}, after=0.5, effect_at=None))
    rig.change("mail", concurrency=64)
    rig.change("outbox", concurrency=64)
    tasks = [rig.start("mail", f"k{number}") for number in range(50)]
    for task in tasks:
        await task
    await rig.at(20)
    assert outbox.peak == 8
    assert await rig.store.inner.count(RowState.NOT_RUN) == 50


async def test_a_store_that_fails_during_reconcile_is_asked_again(rig: Rig) -> None:
    """The evidence is not lost for good: the next question brings it again."""
    _add_pair(rig, answer({"state": "done", "result": 7}, after=0.2, effect_at=None))
    await _unknown(rig)
    rig.store.fail["save"] = 1
    await rig.at(1.5)
    assert (await rig.standing("mail", "k")).state is RowState.UNKNOWN
    await rig.at(10)
    assert (await rig.standing("mail", "k")).state is RowState.DONE


async def test_asking_ends_with_the_drain(rig: Rig) -> None:
    """A service that goes down asks no more."""
    _, outbox = _add_pair(rig, _says(state="unknown"))
    await _unknown(rig)
    await rig.at(2.5)
    assert outbox.attempts == 2
    assert await rig.dispatcher.drain(30)
    await rig.at(100)
    assert outbox.attempts == 2
    await rig.reconciler.stop()


# -- after a restart ---------------------------------------------------------------------------------------


def _left(task: asyncio.Task[Any]) -> None:
    """Take the task of a caller that will not live to see the answer."""
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


async def _died(rig: Rig) -> Rig:
    """Another process over what this one had written, at this moment; the first one's tasks are gone."""
    store = CommandedStore(reopened(rig.store.inner))
    me = asyncio.current_task()
    for task in rig.loop.pending_tasks():
        if task is not me:
            task.cancel()
    await asyncio.sleep(0)
    for tool in rig.tools.values():
        tool.let_go()
    rig.is_dead = True
    await rig.at(rig.loop.time() + 1)
    return Rig(rig.loop, store=store, effects=rig.effects, incarnation="two")


@pytest.mark.parametrize(
    ("spec", "state"),
    [({}, RowState.UNKNOWN), (BY_KEY, RowState.UNKNOWN), (IDEMPOTENT, None), (SAFE, None)],
)
async def test_what_a_dead_process_left_running(
    rig: Rig, spec: dict[str, Any], state: RowState | None
) -> None:
    """Non-idempotent and by_key become UNKNOWN, idempotent ones are released, at start-up (R049)."""
    rig.add("mail", answer(after=5, effect_at=1), **spec)
    _left(rig.start("mail", "k"))
    await rig.at(2)
    heir = await _died(rig)
    tool = heir.add("mail", answer("new", effect_at=None), **spec)
    assert await heir.ledger.settlements.recover() == (0 if spec is SAFE else 1)
    row = await heir.row("mail", "k")
    assert (None if row is None else row.state) is state
    assert heir.ledger.settlements.unknown_count == (1 if state else 0)
    reply = await heir.dispatch("mail", "k")
    if spec == {}:
        assert isinstance(reply, Failure)
        assert (reply.kind, tool.attempts) == (ErrorKind.OUTCOME_UNKNOWN, 0)
    else:
        assert isinstance(reply, Answer)
        assert tool.attempts == 1
    heir.assert_clean()


async def test_a_claim_without_an_attempt_dies_with_its_process(rig: Rig) -> None:
    """Killed while it waited for a slot: nothing had started, the key is free (R049)."""
    rig.add("mail", answer(after=50), concurrency=1)
    _left(rig.start("mail"))
    await rig.at(1)
    _left(rig.start("mail", "k"))
    await rig.at(2)
    heir = await _died(rig)
    heir.add("mail", answer())
    assert await heir.ledger.settlements.recover() == 0
    await heir.answered("mail", "k")


async def test_a_by_key_call_of_a_dead_process_keeps_its_time(rig: Rig) -> None:
    """The first send was written with the intent: key_ttl runs from there, through the restart."""
    tool = rig.add("put", answer(after=50, effect_at=1), upstream_keys=100.0, timeout_s=60.0, **BY_KEY)
    _left(rig.start("put", "early"))
    _left(rig.start("put", "late"))
    await rig.at(2)
    heir = await _died(rig)
    again = heir.add("put", answer(), **BY_KEY)
    await heir.ledger.settlements.recover()
    await heir.answered("put", "early")
    assert again.requests[0].downstream_key in {request.downstream_key for request in tool.requests}
    await rig.at(101)
    assert (await heir.failed("put", "late")).kind is ErrorKind.OUTCOME_UNKNOWN


async def test_done_and_unknown_rows_of_a_dead_process_stand(rig: Rig) -> None:
    """They replay, refuse and are counted as before."""
    rig.add("mail", answer(1))
    rig.add("odd", hang(), timeout_s=1.0)
    await rig.answered("mail", "k")
    await rig.failed("odd", "k")
    heir = await _died(rig)
    heir.add("mail", answer(2))
    heir.add("odd", answer(2))
    assert await heir.ledger.settlements.recover() == 0
    assert value_of(await heir.dispatch("mail", "k")) == 1
    assert (await heir.failed("odd", "k")).kind is ErrorKind.OUTCOME_UNKNOWN
    assert heir.ledger.settlements.unknown_count == 1


async def test_reconcile_is_asked_at_start_up(rig: Rig) -> None:
    """Everything that is UNKNOWN then, recovered calls included, page by page."""
    rig.add("mail", hang(), timeout_s=600.0, concurrency=2000, reconcile="outbox")
    for number in range(600):
        _left(rig.start("mail", f"k{number:04}", timeout_s=600))
    await rig.at(1)
    heir = await _died(rig)
    heir.add("mail", hang(), reconcile="outbox")
    outbox = heir.add("outbox", _says(state="not_run"), concurrency=64, **SAFE)
    assert await heir.ledger.settlements.recover() == 600
    await heir.reconciler.start()
    await rig.at(5)
    assert (outbox.attempts, heir.ledger.settlements.unknown_count) == (600, 0)
    assert await heir.store.inner.count(RowState.NOT_RUN) == 600


async def test_a_dead_processs_unknown_can_be_settled(rig: Rig) -> None:
    """By a person, in the next process, although another incarnation wrote it."""
    rig.add("mail", hang(), timeout_s=1.0)
    row = await _unknown(rig)
    heir = await _died(rig)
    heir.add("mail", answer())
    await heir.ledger.settlements.recover()
    view = await heir.calls.settle("acme", row.call_id, row.etag, DONE)
    assert _settled(view).state is RowState.DONE
    assert heir.ledger.settlements.unknown_count == 0


async def test_another_living_process_is_left_alone(rig: Rig) -> None:
    """A RUNNING row of another incarnation is busy elsewhere: come back, IN_PROGRESS, nothing runs."""
    rig.add("mail", answer(after=5))
    task = rig.start("mail", "k")
    await rig.at(1)
    other = Rig(rig.loop, store=CommandedStore(reopened(rig.store.inner)), incarnation="two")
    tool = other.add("mail", answer())
    failure = await other.failed("mail", "k")
    assert (failure.kind, failure.outcome) == (ErrorKind.UNAVAILABLE, Outcome.IN_PROGRESS)
    assert failure.retry_after_s is not None
    assert tool.attempts == 0
    await task
