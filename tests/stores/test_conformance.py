"""What every store promises, told of each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from lineside_service.core.ledger import Row, RowState, SettledBy
from lineside_service.ports import Claim, RowFilter, StoreUnavailable, Swept
from tests.stores.conftest import Store
from tests.stores.rows import DAY_S, DEAD, HERE, NOW_S, claim_of, done, stored, unknown, with_everything

pytestmark = pytest.mark.asyncio


async def put(store: Store, *rows: Row) -> list[Row]:
    """Claim, save, and return the rows as they are stored now."""
    for row in rows:
        assert (await store.claim(row))[0] is Claim.CLAIMED
        assert await store.save(row)
    return [stored(row) for row in rows]


async def test_an_unknown_key_has_no_row(store: Store) -> None:
    """Nothing stored, nothing found, by id or by call id."""
    row = claim_of("k")
    assert await store.find(row.id) is None
    assert await store.by_call_id(row.call_id) is None


async def test_a_claim_is_exclusive_before_anything_is_stored(store: Store) -> None:
    """The second claim of a key stands aside, and there is no row to show yet."""
    row = claim_of("k")
    assert await store.claim(row) == (Claim.CLAIMED, None)
    assert await store.claim(replace(row, call_id="other")) == (Claim.STANDING, None)
    assert await store.find(row.id) is None


async def test_fifty_first_claims_at_once_make_one_owner(store: Store) -> None:
    """Of 50 concurrent first-time claims exactly one owns; the others stand aside without an error (R054)."""
    rows = [claim_of("k", call_id=f"call-{n}") for n in range(50)]

    async def arrive(row: Row) -> Claim:
        await store.find(row.id)
        await asyncio.sleep(0)
        return (await store.claim(row))[0]

    ends = await asyncio.gather(*map(arrive, rows))
    assert sorted(end.value for end in ends) == ["claimed"] + ["standing"] * 49
    owner = rows[ends.index(Claim.CLAIMED)]
    assert await store.save(done(owner))
    assert {await store.save(done(row)) for row in rows if row is not owner} == {False}
    assert await store.find(owner.id) == stored(done(owner))


async def test_a_saved_row_reads_back_whole_with_its_next_version(store: Store) -> None:
    """Every field survives; the version is one higher."""
    row = with_everything("k")
    await put(store, row)
    assert await store.find(row.id) == stored(row)
    assert await store.by_call_id(row.call_id) == stored(row)


async def test_an_intent_keeps_the_claim_and_a_finish_ends_it(store: Store) -> None:
    """While RUNNING is stored the key stays owned; once DONE is stored its exact version can be claimed."""
    (running,) = await put(store, claim_of("k"))
    assert await store.claim(replace(running, call_id="other")) == (Claim.STANDING, running)
    assert await store.save(done(running))
    finished = stored(done(running))
    assert await store.claim(claim_of("k", call_id="again")) == (Claim.STANDING, finished)
    again = claim_of("k", call_id="again", version=finished.version)
    assert await store.claim(again) == (Claim.CLAIMED, finished)


async def test_a_save_from_a_stale_version_changes_nothing(store: Store) -> None:
    """The version is compared: the loser hears False and the winner's row stands."""
    (row,) = await put(store, unknown(claim_of("k")))
    settled = replace(done(row), settled_by=SettledBy.PERSON)
    assert await store.save(settled)
    assert not await store.save(replace(done(row, b'"late"'), settled_by=SettledBy.RECONCILE))
    assert await store.find(row.id) == stored(settled)


async def test_a_save_under_another_incarnation_changes_nothing(store: Store) -> None:
    """The owning incarnation is compared, with and without a claim."""
    (row,) = await put(store, unknown(claim_of("k")))
    assert not await store.save(replace(done(row), incarnation=DEAD))
    again = claim_of("k", call_id="again", version=row.version)
    assert (await store.claim(again))[0] is Claim.CLAIMED
    assert not await store.save(replace(done(again), incarnation=DEAD))
    assert await store.find(row.id) == row
    assert await store.save(done(again))


async def test_an_earlier_execution_cannot_write_over_a_new_claim(store: Store) -> None:
    """A late save of an execution that gave its key back meets the new owner's claim and is refused."""
    early, late = claim_of("k", call_id="early"), claim_of("k", call_id="late")
    await store.claim(early)
    await store.release(early)
    assert (await store.claim(late))[0] is Claim.CLAIMED
    assert not await store.save(done(early))
    await store.release(early)
    assert (await store.claim(early))[0] is Claim.STANDING
    assert await store.save(done(late))


async def test_a_claim_over_a_standing_row_takes_it_from_its_owner(store: Store) -> None:
    """After the taking over the row's former owner can no longer save, the new one can."""
    (old,) = await put(store, unknown(claim_of("k", incarnation=DEAD)))
    new = replace(old, call_id="new", incarnation=HERE, state=RowState.RUNNING)
    assert await store.claim(new) == (Claim.CLAIMED, old)
    assert not await store.save(done(old))
    assert await store.save(new)
    assert await store.save(done(stored(new)))
    assert await store.by_call_id("new") == stored(done(stored(new)))
    assert await store.by_call_id(old.call_id) is None


async def test_a_save_of_a_row_that_has_gone_changes_nothing(store: Store) -> None:
    """Without a claim, only what is stored can be saved over."""
    row = done(claim_of("k", version=4))
    assert not await store.save(row)
    assert await store.find(row.id) is None


async def test_a_released_claim_leaves_nothing(store: Store) -> None:
    """A bare claim and a claim with a stored intent are both gone after release, and the key is free."""
    for row in (claim_of("bare"), claim_of("intent")):
        assert (await store.claim(row))[0] is Claim.CLAIMED
    assert await store.save(claim_of("intent"))
    for row in (claim_of("bare"), stored(claim_of("intent"))):
        await store.release(row)
        assert await store.find(row.id) is None
        assert await store.claim(claim_of(row.scope.key, call_id="next")) == (Claim.CLAIMED, None)


async def test_release_goes_by_the_claim_whatever_version_the_caller_remembers(store: Store) -> None:
    """An owner whose save was cancelled cannot know whether it was written; its release cleans up."""
    row = claim_of("k")
    await put(store, row)
    await store.release(row)
    assert await store.find(row.id) is None


async def test_release_leaves_a_row_that_the_claim_did_not_write(store: Store) -> None:
    """A claim over an UNKNOWN row that ends before its first write leaves the UNKNOWN row as it was."""
    (row,) = await put(store, unknown(claim_of("k")))
    again = claim_of("k", call_id="again", version=row.version)
    await store.claim(again)
    await store.release(again)
    assert await store.find(row.id) == row
    assert (await store.claim(again))[0] is Claim.CLAIMED


async def test_release_by_another_execution_does_not_end_the_claim(store: Store) -> None:
    """Only the owner gives a key back."""
    row = claim_of("k")
    await put(store, row)
    await store.release(replace(row, call_id="other"))
    await store.release(replace(row, incarnation=DEAD))
    assert await store.find(row.id) == stored(row)
    assert (await store.claim(replace(row, call_id="other")))[0] is Claim.STANDING


async def test_a_dead_process_row_can_be_recovered_or_released(store: Store) -> None:
    """Without a claim, exactly the stored version of a RUNNING row can be saved over or deleted."""
    left, gone = await put(store, claim_of("left", incarnation=DEAD), claim_of("gone", incarnation=DEAD))
    store._holds.clear()  # as when their process has died: what it held lived in its memory
    await store.release(replace(gone, version=7))
    await store.release(replace(gone, incarnation=HERE))
    assert await store.find(gone.id) == gone
    await store.release(gone)
    assert await store.find(gone.id) is None
    assert await store.save(unknown(left))
    assert await store.find(left.id) == stored(unknown(left))
    await store.release(stored(unknown(left)))
    assert await store.count(RowState.UNKNOWN) == 1


async def test_rows_are_listed_by_call_id_from_a_point_on(store: Store) -> None:
    """Order, start and limit of a list, whatever the order of writing."""
    await put(store, *(done(claim_of(f"k{n}", call_id=f"c{n}")) for n in (3, 1, 4, 0, 2)))
    assert [row.call_id for row in await store.list(RowFilter(), 10)] == ["c0", "c1", "c2", "c3", "c4"]
    assert [row.call_id for row in await store.list(RowFilter(after="c1"), 2)] == ["c2", "c3"]
    assert list(await store.list(RowFilter(after="c4"), 2)) == []


async def test_rows_are_listed_by_tenant_tool_and_state(store: Store) -> None:
    """Each filter narrows; rows come whole."""
    await put(
        store,
        done(claim_of("a", tenant="t1", tool="pay", call_id="c1")),
        unknown(claim_of("b", tenant="t1", tool="mail", call_id="c2")),
        unknown(claim_of("c", tenant="t2", tool="pay", call_id="c3")),
        claim_of("d", tenant="t2", tool="pay", call_id="c4"),
    )

    async def ids(**which: object) -> list[str]:
        return [row.call_id for row in await store.list(RowFilter(**which), 10)]  # type: ignore[arg-type]

    assert await ids(tenant="t1") == ["c1", "c2"]
    assert await ids(tool="pay") == ["c1", "c3", "c4"]
    assert await ids(state=RowState.UNKNOWN) == ["c2", "c3"]
    assert await ids(state=RowState.UNKNOWN, tenant="t2", tool="pay") == ["c3"]
    assert await ids(state=RowState.RUNNING, tenant="t1") == []
    assert [await store.count(state) for state in RowState] == [1, 1, 2, 0]
    assert list(await store.list(RowFilter(state=RowState.DONE), 1)) == [await store.by_call_id("c1")]


async def test_sweep_deletes_what_expired_oldest_first_within_its_limit(store: Store) -> None:
    """Expired DONE and NOT_RUN rows go in small batches; rows still kept stay."""
    rows = [done(claim_of(f"k{n}", call_id=f"c{n}"), expires_s=NOW_S + n) for n in (2, 1, 0, 9)]
    rows.append(replace(rows[0], id=b"n" * 32, call_id="c-not-run", state=RowState.NOT_RUN, expires_s=NOW_S))
    await put(store, *rows)
    assert await store.sweep(NOW_S + 2, 2) == Swept(deleted=2, alerted=0)
    assert [row.call_id for row in await store.list(RowFilter(), 10)] == ["c1", "c2", "c9"]
    assert await store.sweep(NOW_S + 2, 2) == Swept(deleted=2, alerted=0)
    assert await store.sweep(NOW_S + 2, 2) == Swept(deleted=0, alerted=0)
    assert [row.call_id for row in await store.list(RowFilter(), 10)] == ["c9"]


async def test_sweep_never_takes_running_or_unknown_rows(store: Store) -> None:
    """UNKNOWN and RUNNING rows stand, even if an expiry is left on them from an earlier life."""
    await put(store, claim_of("r", expires_s=NOW_S), unknown(claim_of("u", expires_s=NOW_S)))
    assert (await store.sweep(NOW_S + 3 * DAY_S, 100)).deleted == 0
    assert await store.count(RowState.RUNNING) == await store.count(RowState.UNKNOWN) == 1


async def test_a_row_kept_longer_is_not_swept_at_its_old_expiry(store: Store) -> None:
    """The expiry that counts is the one of the latest save."""
    (row,) = await put(store, done(claim_of("k"), expires_s=NOW_S))
    assert await store.save(replace(row, expires_s=NOW_S + 100))
    assert (await store.sweep(NOW_S + 50, 10)).deleted == 0
    assert (await store.sweep(NOW_S + 100, 10)).deleted == 1


async def test_an_old_unknown_row_is_reported_once_and_cut(store: Store) -> None:
    """At 7 days it keeps scope, fingerprint and call id, and its version: settlements under way fit."""
    row = unknown(replace(with_everything("k"), settled_by=None, settled_s=None), ended_s=NOW_S)
    young = unknown(claim_of("young"), ended_s=NOW_S + 1)
    await put(store, row, young)
    assert await store.sweep(NOW_S + 7 * DAY_S - 1, 10) == Swept(deleted=0, alerted=0)
    assert await store.sweep(NOW_S + 7 * DAY_S, 10) == Swept(deleted=0, alerted=1)
    lean = await store.find(row.id)
    assert lean is not None
    assert (lean.scope, lean.fingerprint, lean.call_id) == (row.scope, row.fingerprint, row.call_id)
    assert (lean.members, lean.record, lean.result) == ({}, b"{}", None)
    assert lean.etag == stored(row).etag
    assert await store.sweep(NOW_S + 7 * DAY_S, 10) == Swept(deleted=0, alerted=0)
    assert await store.sweep(NOW_S + 8 * DAY_S, 10) == Swept(deleted=0, alerted=1)
    assert await store.find(young.id) == stored(young)
    assert await store.save(done(stored(row)))


async def test_a_sweep_cuts_no_more_rows_than_its_limit(store: Store) -> None:
    """Ten old unknown rows, four at a time."""
    await put(store, *(unknown(claim_of(f"k{n}")) for n in range(10)))
    assert [(await store.sweep(NOW_S + 9 * DAY_S, 4)).alerted for _ in range(4)] == [4, 4, 2, 0]


async def test_over_the_bound_a_tenant_claims_nothing_and_loses_nothing(
    make_store: Callable[..., Awaitable[Store]],
) -> None:
    """Full: new keys are refused, standing ones are shown, other tenants go on, expiry makes room."""
    store = await make_store(tenant_bytes_limit=4096)
    first = done(claim_of("first"), b'"' + b"x" * 3000 + b'"')
    await put(store, first)
    refused = claim_of("second", call_id="c2")
    assert await store.claim(replace(refused, record=b"r" * 600)) == (Claim.TENANT_FULL, None)
    assert await store.claim(claim_of("first", call_id="c3")) == (Claim.STANDING, stored(first))
    assert (await store.claim(claim_of("second", tenant="t2")))[0] is Claim.CLAIMED
    await store.sweep(NOW_S + 61, 10)
    assert (await store.claim(replace(refused, record=b"r" * 600)))[0] is Claim.CLAIMED


async def test_stored_bytes_are_the_sum_of_the_rows(store: Store) -> None:
    """Saving, growing, settling, releasing, cutting and sweeping are each counted, by claim or without."""

    async def check() -> None:
        rows = await store.list(RowFilter(tenant="t1"), 100)
        assert store.stored_bytes("t1") == sum(row.stored_bytes for row in rows)

    await put(store, unknown(with_everything("cut"), expires_s=None), done(claim_of("other", tenant="t2")))
    await check()
    (running,) = await put(store, claim_of("grows"))
    await check()
    assert await store.save(done(running, b"y" * 500))
    await check()
    await store.release((await put(store, claim_of("released", record=b"z" * 99)))[0])
    await check()
    (left,) = await put(store, unknown(claim_of("settled")))
    assert await store.save(replace(done(left, b"w" * 77), expires_s=None))
    await check()
    assert await store.sweep(NOW_S + 8 * DAY_S, 10) == Swept(deleted=2, alerted=1)
    await check()
    assert store.stored_bytes("t1") > 0
    assert store.stored_bytes("t3") == 0


async def test_cutting_and_sweeping_under_a_claim_keep_the_sum_right(store: Store) -> None:
    """A row that shrinks or goes while somebody has claimed it is counted once."""
    old = unknown(with_everything("cut"), expires_s=None)
    for row in await put(store, old, done(claim_of("expired"))):
        again = claim_of(row.scope.key, call_id=f"again-{row.scope.key}", version=row.version)
        assert (await store.claim(again))[0] is Claim.CLAIMED
    assert await store.sweep(NOW_S + 8 * DAY_S, 10) == Swept(deleted=1, alerted=1)
    for key in ("cut", "expired"):
        again = done(claim_of(key, call_id=f"again-{key}", version=1), b"r" * 10)
        assert await store.save(again)
        assert await store.find(again.id) == stored(again)
    rows = await store.list(RowFilter(), 10)
    assert store.stored_bytes("t1") == sum(row.stored_bytes for row in rows)


async def test_saves_that_fail_the_comparison_do_not_disturb_their_neighbours(store: Store) -> None:
    """Of 200 saves at once every third is stale: those alone hear False."""
    rows = [unknown(claim_of(f"k{n}")) for n in range(200)]
    standing = await put(store, *rows)
    for row in standing:
        assert (await store.claim(replace(row, call_id=f"again-{row.scope.key}")))[0] is Claim.CLAIMED
    again = [
        replace(done(row), call_id=f"again-{row.scope.key}", version=row.version - (n % 3 == 0))
        for n, row in enumerate(standing)
    ]
    assert await asyncio.gather(*map(store.save, again)) == [n % 3 != 0 for n in range(200)]
    for n, row in enumerate(again):
        assert await store.find(row.id) == (stored(row) if n % 3 else standing[n])


async def test_a_call_id_of_another_row_is_refused_alone(store: Store) -> None:
    """Call ids are unique; a clash fails that save and none beside it."""
    rows = [claim_of("a", call_id="same"), claim_of("b", call_id="same"), claim_of("c")]
    for row in rows:
        await store.claim(row)
    ends = await asyncio.gather(*(store.save(done(row)) for row in rows), return_exceptions=True)
    assert [end is True for end in ends] == [True, False, True]
    assert isinstance(ends[1], StoreUnavailable)
    assert await store.find(rows[1].id) is None


async def test_a_cancelled_save_leaves_the_store_whole(store: Store) -> None:
    """Whether or not it was still written, the sums fit the rows and the others' saves stand."""
    rows = [claim_of(f"k{n}") for n in range(20)]
    for row in rows:
        await store.claim(row)
    saves = [asyncio.ensure_future(store.save(done(row))) for row in rows]
    await asyncio.sleep(0)
    for save in saves[::2]:
        save.cancel()
    await asyncio.gather(*saves, return_exceptions=True)
    assert [save.result() for save in saves[1::2]] == [True] * 10
    await put(store, claim_of("after"))
    found = await store.list(RowFilter(), 100)
    assert store.stored_bytes("t1") == sum(row.stored_bytes for row in found)
    assert {row.call_id for row in rows[1::2]} <= {row.call_id for row in found}


async def test_the_secret_is_32_bytes(store: Store) -> None:
    """It keys the hashes of argument members."""
    assert len(store.member_secret) == 32
    assert store.member_secret == store.member_secret


async def test_a_closed_store_says_so(store: Store) -> None:
    """Everything after close raises StoreUnavailable; closing again does nothing."""
    row = claim_of("k")
    await store.claim(row)
    await store.close()
    await store.close()
    for late in (
        lambda: store.find(row.id),
        lambda: store.by_call_id(row.call_id),
        lambda: store.claim(claim_of("l")),
        lambda: store.save(row),
        lambda: store.list(RowFilter(), 1),
        lambda: store.count(RowState.DONE),
        lambda: store.sweep(NOW_S, 1),
    ):
        with pytest.raises(StoreUnavailable):
            await late()
