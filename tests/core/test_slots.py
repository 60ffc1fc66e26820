"""Slots: the account of running and abandoned attempts, and the waiting list."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from lineside_service.core.slots import NOBODY, Slots, Waiter, WaiterState, Wake


def _waiter(tenant: str = "a", *, patient: bool = False, stream: int = 0) -> Waiter:
    return Waiter(tenant=tenant, patient=patient, stream=stream)


def _busy(concurrency: int = 1, limit_waiting: int = 64) -> Slots:
    slots = Slots(concurrency, limit_waiting)
    for _ in range(concurrency):
        assert slots.try_take("a")
    return slots


def _wait(slots: Slots, tenant: str, count: int = 1, **more: Any) -> list[Waiter]:
    waiters = [_waiter(tenant, **more) for _ in range(count)]
    for waiter in waiters:
        slots.enqueue(waiter)
    return waiters


def _drain(slots: Slots) -> list[Waiter]:
    """Release one slot after another; who was granted, in order."""
    order: list[Waiter] = []
    while slots.waiting or slots.overflow:
        order += slots.release().granted
    return order


class TestAccount:
    def test_slots_are_taken_up_to_the_concurrency_and_given_back(self) -> None:
        """Two of two, then none, then one again; exactly 0 at the end (R003)."""
        slots = Slots(2)
        assert [slots.try_take("a") for _ in range(3)] == [True, True, False]
        assert slots.release() is NOBODY
        assert slots.try_take("b")
        slots.release()
        slots.release()
        assert slots.running == 0

    def test_refusals_leave_the_account_alone(self) -> None:
        """Limit 2, queue 0: a wave of 10 and a wave of 50 each run 2 at once and refuse the rest (R003)."""
        slots = Slots(2, limit_waiting=0)
        for wave in (10, 50):
            taken = sum(slots.try_take("a") for _ in range(wave))
            for _ in range(wave - taken):
                waiter = _waiter()
                assert slots.enqueue(waiter).refused == (waiter,)
                assert waiter.refusal is not None
                assert waiter.refusal.reason == "OVERLOADED"
            assert (taken, slots.running) == (2, 2)
            for _ in range(taken):
                slots.release()
            assert slots.running == 0

    def test_nothing_is_given_back_twice(self) -> None:
        """A release, abandonment or reclaim without its counterpart raises and changes nothing (R003)."""
        slots = Slots(2)
        for step in (slots.release, slots.abandon, slots.reclaim):
            with pytest.raises(RuntimeError):
                step()
        assert (slots.running, slots.abandoned, slots.usable) == (0, 0, 2)

    def test_a_waiter_enters_once(self) -> None:
        """Enqueuing it again raises, whatever became of it."""
        slots = _busy()
        (waiter,) = _wait(slots, "a")
        with pytest.raises(RuntimeError):
            slots.enqueue(waiter)
        slots.leave(waiter)
        with pytest.raises(RuntimeError):
            slots.enqueue(waiter)

    @pytest.mark.parametrize(("concurrency", "limit"), [(0, 64), (-1, 64), (1, -1)])
    def test_bad_sizes_are_refused(self, concurrency: int, limit: int) -> None:
        """The error names the field and its bound."""
        with pytest.raises(ValueError, match="must be between"):
            Slots(concurrency, limit)

    @pytest.mark.parametrize(
        ("concurrency", "abandoned", "usable"),
        [(4, 0, 4), (4, 4, 4), (4, 5, 3), (4, 7, 1), (4, 8, 0), (4, 9, 0), (1, 1, 1), (1, 2, 0)],
    )
    def test_abandoned_attempts_take_slots_away_beyond_the_concurrency(
        self, concurrency: int, abandoned: int, usable: int
    ) -> None:
        """By the formula max(0, min(c, 2c - abandoned))."""
        slots = Slots(16)
        for _ in range(abandoned):
            slots.try_take("a")
            slots.abandon()
        slots.resize(concurrency)
        assert slots.usable == usable

    def test_an_abandoned_attempt_hands_its_slot_to_the_next(self) -> None:
        """It no longer counts as running."""
        slots = _busy()
        (waiter,) = _wait(slots, "a")
        assert slots.abandon().granted == (waiter,)
        assert (slots.running, slots.abandoned) == (1, 1)

    def test_a_stuck_tool_refuses_everybody_at_once(self) -> None:
        """Waiting, in the overflow, or new: refused STUCK with the numbers, patient ones too."""
        slots = _busy(1, limit_waiting=2)
        slots.abandon()
        assert slots.try_take("a")
        waiting = [*_wait(slots, "a", 2), *_wait(slots, "b", 2, patient=True)]
        wake = slots.abandon()
        assert slots.stuck
        assert set(wake.refused) == set(waiting)
        late = _waiter(patient=True)
        assert slots.enqueue(late).refused == (late,)
        assert not slots.try_take("a")
        for waiter in [*waiting, late]:
            assert waiter.state is WaiterState.REFUSED
            assert waiter.refusal is not None
            assert waiter.refusal.reason == "STUCK"
            assert waiter.refusal.numbers["abandoned"] == 2

    def test_a_stuck_tool_recovers_when_an_abandoned_attempt_ends(self) -> None:
        """One slot comes back for each that really ended."""
        slots = _busy(1)
        slots.abandon()
        slots.try_take("a")
        slots.abandon()
        assert slots.reclaim() is NOBODY
        assert slots.try_take("a")
        (waiter,) = _wait(slots, "a")
        assert slots.reclaim() is NOBODY
        assert slots.release().granted == (waiter,)

    def test_a_slot_that_comes_back_goes_to_whoever_waits(self) -> None:
        """With some slots still usable, the end of an abandoned attempt starts a waiting one."""
        slots = Slots(2)
        for _ in range(3):
            assert slots.try_take("a")
            slots.abandon()
        assert (slots.usable, slots.try_take("a")) == (1, True)
        (waiter,) = _wait(slots, "a")
        assert slots.reclaim().granted == (waiter,)
        assert (slots.running, slots.usable) == (2, 2)

    def test_growing_grants_and_shrinking_lets_running_attempts_end(self) -> None:
        """No attempt is cut; grants go on only below the new size."""
        slots = _busy(1)
        waiters = _wait(slots, "a", 3)
        assert slots.resize(3).granted == tuple(waiters[:2])
        assert slots.resize(1) is NOBODY
        assert slots.running == 3
        assert slots.release() is NOBODY
        assert slots.release() is NOBODY
        assert slots.release().granted == (waiters[2],)


class TestLeaving:
    def test_leaving_is_idempotent(self) -> None:
        """A waiter that left is passed over, and leaving again does nothing; so for one that never came."""
        slots = _busy()
        first, second = _wait(slots, "a", 2)
        assert slots.leave(first) is NOBODY
        assert slots.leave(first) is NOBODY
        assert slots.leave(_waiter()) is NOBODY
        assert slots.release().granted == (second,)

    def test_a_granted_waiter_that_leaves_gives_the_slot_on(self) -> None:
        """Its cancel came in the same step as its grant: the next one runs, once (R015)."""
        slots = _busy()
        first, second = _wait(slots, "a", 2)
        assert slots.release().granted == (first,)
        assert slots.leave(first).granted == (second,)
        assert slots.leave(first) is NOBODY
        assert (first.state, slots.running) == (WaiterState.LEFT, 1)

    def test_no_live_waiter_is_stranded_behind_a_cancelled_one(self) -> None:
        """The head is cancelled, two slots come free, a fourth arrives: all live ones run (R017)."""
        slots = _busy(2)
        head, second, third = _wait(slots, "a", 3)
        slots.leave(head)
        slots.release()
        slots.release()
        (fourth,) = _wait(slots, "a")
        assert [w.state for w in (second, third)] == [WaiterState.GRANTED] * 2
        assert slots.release().granted == (fourth,)

    def test_a_waiter_that_leaves_makes_room_for_the_overflow(self) -> None:
        """The place in the list goes to a patient one, which keeps waiting."""
        slots = _busy(1, limit_waiting=1)
        (listed,) = _wait(slots, "a")
        (patient,) = _wait(slots, "a", patient=True)
        assert (slots.waiting, slots.overflow) == (1, 1)
        slots.leave(listed)
        assert (slots.waiting, slots.overflow, patient.state) == (1, 0, WaiterState.WAITING)
        slots.leave(patient)
        assert (slots.waiting, slots.overflow) == (0, 0)

    def test_a_hundred_thousand_interleavings_lose_nobody(self) -> None:
        """Grants, cancels, releases in seeded random order: waiting > 0 means no free slot (R015, R017)."""
        chance = random.Random(15)
        slots = Slots(3, limit_waiting=4)
        waiting: list[Waiter] = []
        held = 0
        for _ in range(100_000):
            step = chance.randrange(4)
            wake = NOBODY
            if step == 0:
                if slots.try_take("a"):
                    held += 1
                else:
                    waiting.append(_waiter(chance.choice("abc"), patient=chance.random() < 0.3))
                    wake = slots.enqueue(waiting[-1])
            elif step == 1 and held:
                held -= 1
                wake = slots.release()
            elif step == 2 and waiting:
                wake = slots.leave(waiting.pop(chance.randrange(len(waiting))))
            for waiter in wake.granted:
                waiting.remove(waiter)
                if chance.random() < 0.5:  # cancelled before it ran
                    wake_next = slots.leave(waiter)
                    for other in wake_next.granted:
                        waiting.remove(other)
                        held += 1
                else:
                    held += 1
            for waiter in wake.refused:
                waiting.remove(waiter)
            assert slots.running == held
            assert slots.waiting + slots.overflow == len(waiting)
            assert not waiting or slots.running == 3


class TestFairness:
    def test_tenants_take_turns_and_each_is_first_come_first_served(self) -> None:
        """A tenant with many waiting is served no more often than one with few."""
        slots = _busy()
        a = _wait(slots, "a", 4)
        b = _wait(slots, "b", 2)
        c = _wait(slots, "c", 1)
        assert _drain(slots) == [a[0], b[0], c[0], a[1], b[1], a[2], a[3]]

    def test_a_tenant_that_returns_goes_behind_those_that_wait(self) -> None:
        """Coming and going does not win turns."""
        slots = _busy()
        _wait(slots, "a")
        b = _wait(slots, "b", 2)
        slots.release()
        (again,) = _wait(slots, "a")
        assert _drain(slots) == [b[0], again, b[1]]

    def test_a_free_slot_never_goes_past_a_waiter(self) -> None:
        """A newcomer's `try_take` fails as long as somebody waits."""
        slots = _busy()
        (waiter,) = _wait(slots, "a")
        slots.release()
        assert waiter.state is WaiterState.GRANTED
        assert not slots.try_take("b")


class TestFullList:
    def test_the_newest_of_the_tenant_with_most_waiting_is_refused(self) -> None:
        """A quiet tenant gets in; the noisy one loses its latest, with the numbers."""
        slots = _busy(1, limit_waiting=4)
        noisy = _wait(slots, "a", 4)
        quiet = _waiter("b")
        assert slots.enqueue(quiet) == Wake(refused=(noisy[3],))
        assert quiet.state is WaiterState.WAITING
        assert noisy[3].refusal is not None
        assert noisy[3].refusal.reason == "OVERLOADED"
        assert noisy[3].refusal.numbers["limit_waiting"] == 4

    def test_the_newcomer_counts_and_loses_a_tie(self) -> None:
        """If its own tenant has most waiting, or as many as the longest, it is the one that goes."""
        slots = _busy(1, limit_waiting=4)
        _wait(slots, "a", 4)
        own = _waiter("a")
        assert slots.enqueue(own).refused == (own,)
        tied = _busy(1, limit_waiting=3)
        _wait(tied, "a", 2)
        _wait(tied, "b", 1)
        newcomer = _waiter("b")
        assert tied.enqueue(newcomer).refused == (newcomer,)

    def test_the_list_holds_sixty_four(self) -> None:
        """The sixty-fifth is refused."""
        slots = _busy()
        waiters = _wait(slots, "a", 65)
        assert [w.state for w in waiters] == [WaiterState.WAITING] * 64 + [WaiterState.REFUSED]


class TestPatient:
    def test_batch_items_are_never_refused_for_a_full_list(self) -> None:
        """They wait in their stream and enter the list as places free."""
        slots = _busy(1, limit_waiting=2)
        items = _wait(slots, "a", 10, patient=True)
        assert (slots.waiting, slots.overflow) == (2, 8)
        assert _drain(slots) == items

    def test_streams_of_a_tenant_take_turns(self) -> None:
        """A long stream does not hold up a short one."""
        slots = _busy(1, limit_waiting=1)
        (listed,) = _wait(slots, "a")
        long = _wait(slots, "a", 3, patient=True, stream=1)
        short = _wait(slots, "a", 1, patient=True, stream=2)
        assert _drain(slots) == [listed, long[0], short[0], long[1], long[2]]

    def test_many_streams_win_a_tenant_no_turns(self) -> None:
        """In the overflow tenants come first, then their streams."""
        slots = _busy(1, limit_waiting=1)
        _wait(slots, "a")
        for stream in range(5):
            _wait(slots, "a", 1, patient=True, stream=stream)
        (single,) = _wait(slots, "b", 1, patient=True, stream=9)
        assert _drain(slots).index(single) == 2

    def test_a_batch_that_fills_the_list_steps_back_for_another_tenant(self) -> None:
        """Its newest item gives its place up, is not refused, and is the first of its stream to return."""
        slots = _busy(1, limit_waiting=2)
        items = _wait(slots, "a", 4, patient=True)
        unary = _waiter("b")
        assert slots.enqueue(unary) is NOBODY
        assert (slots.waiting, slots.overflow) == (2, 3)
        assert _drain(slots) == [items[0], unary, *items[1:]]

    def test_without_places_the_overflow_is_served_directly(self) -> None:
        """A list of no places refuses the impatient, and still passes slots on to patient ones in order."""
        slots = _busy(1, limit_waiting=0)
        items = _wait(slots, "a", 3, patient=True)
        assert _drain(slots) == items


TENANTS = st.sampled_from("abc")


class SlotsMachine(RuleBasedStateMachine):
    """Every waiter is followed from outside; the promises of the module are checked after every step."""

    waiters = Bundle("waiters")

    @initialize(
        concurrency=st.integers(min_value=1, max_value=3),
        limit=st.integers(min_value=0, max_value=5),
        hanging=st.integers(min_value=0, max_value=5),
    )
    def start(self, concurrency: int, limit: int, hanging: int) -> None:
        """A tool of a few slots, a short list and some abandoned attempts, so that every edge is near."""
        self.slots = Slots(concurrency, limit)
        self.held = 0
        self.abandoned = 0
        while self.abandoned < hanging and self.slots.try_take("a"):
            self.slots.abandon()
            self.abandoned += 1
        self.following: set[Waiter] = set()
        self.served: dict[tuple[str, str], int] = {}

    def _listed(self, tenant: str | None = None) -> list[Waiter]:
        return [w for w in self.following if not w.in_overflow and tenant in {None, w.tenant}]

    def _tenants(self) -> set[str]:
        return {w.tenant for w in self._listed()}

    def _carry_out(self, wake: Wake, before: dict[str, list[Waiter]]) -> None:
        """What the shell does, and what it may rely on."""
        for waiter in wake.granted:
            assert waiter.state is WaiterState.GRANTED
            self.following.remove(waiter)
            self.held += 1
        if wake.granted:
            assert self.slots.running <= self.slots.usable
        for waiter in wake.refused:
            assert waiter.state is WaiterState.REFUSED
            assert waiter.refusal is not None
            assert waiter.refusal.reason == ("STUCK" if self.slots.stuck else "OVERLOADED")
            assert self.slots.stuck or not waiter.patient
            self.following.remove(waiter)
        if len(wake.granted) == 1 and before:
            self._check_turn(wake.granted[0], before)
        elif wake.granted:
            self.served.clear()
        still = self._tenants()
        self.served = {(w, o): n for (w, o), n in self.served.items() if w in still}

    def _check_turn(self, granted: Waiter, before: dict[str, list[Waiter]]) -> None:
        """First come first served inside a tenant; nobody is served twice while another tenant waits."""
        assert granted is before[granted.tenant][0]
        for tenant in before:
            if tenant == granted.tenant:
                self.served = {pair: n for pair, n in self.served.items() if pair[0] != tenant}
            else:
                pair = (tenant, granted.tenant)
                self.served[pair] = self.served.get(pair, 0) + 1
                assert self.served[pair] <= 1

    def _standing(self) -> dict[str, list[Waiter]]:
        return {t: sorted(self._listed(t), key=lambda w: w.arrived) for t in self._tenants()}

    @rule(target=waiters, tenant=TENANTS, patient=st.booleans(), stream=st.integers(min_value=0, max_value=2))
    def arrive(self, tenant: str, stream: int, *, patient: bool) -> Waiter:
        """As the shell does it: take, else wait."""
        waiter = Waiter(tenant=tenant, patient=patient, stream=stream)
        free = self.slots.running < self.slots.usable
        assert self.slots.try_take(tenant) == free
        if free:
            waiter.state = WaiterState.LEFT  # never waited
            self.held += 1
            return waiter
        longest = max((len(self._listed(t)) + (t == tenant) for t in self._tenants() | {tenant}), default=0)
        self.following.add(waiter)
        wake = self.slots.enqueue(waiter)
        assert not wake.granted
        if wake.refused and not self.slots.stuck:
            (victim,) = wake.refused
            assert len(self._listed(victim.tenant)) == longest
            assert victim.arrived == max(w.arrived for w in self._listed(victim.tenant))
        self._carry_out(wake, {})
        return waiter

    @precondition(lambda self: self.held)
    @rule()
    def release(self) -> None:
        """An attempt ends."""
        before = self._standing()
        self.held -= 1
        self._carry_out(self.slots.release(), before)

    @precondition(lambda self: self.held)
    @rule()
    def abandon(self) -> None:
        """An attempt outlives its limit."""
        before = self._standing()
        self.held -= 1
        self.abandoned += 1
        self._carry_out(self.slots.abandon(), before)

    @precondition(lambda self: self.abandoned)
    @rule()
    def reclaim(self) -> None:
        """An abandoned attempt really ends."""
        before = self._standing()
        self.abandoned -= 1
        self._carry_out(self.slots.reclaim(), before)

    @rule(concurrency=st.integers(min_value=1, max_value=4))
    def resize(self, concurrency: int) -> None:
        """The configuration changes."""
        before = self._standing()
        self._carry_out(self.slots.resize(concurrency), before)

    @rule(waiter=consumes(waiters))
    def leave(self, waiter: Waiter) -> None:
        """Cancelled while it waits; a refused or gone one may say so again."""
        if waiter.state is WaiterState.GRANTED:
            return  # it took its slot up in `_carry_out`; `cancelled_at_the_grant` has the other case
        self.following.discard(waiter)
        assert self.slots.leave(waiter) is NOBODY
        assert self.slots.leave(waiter) is NOBODY

    @precondition(lambda self: self.held)
    @rule()
    def cancelled_at_the_grant(self) -> None:
        """A slot comes free, and whoever gets it is cancelled before it runs."""
        before = self._standing()
        self.held -= 1
        wake = self.slots.release()
        self._carry_out(wake, before)
        for waiter in wake.granted:
            before = self._standing()
            self.held -= 1
            self._carry_out(self.slots.leave(waiter), before)
            assert waiter.state is WaiterState.LEFT

    @precondition(lambda self: not self.held)
    @rule()
    def release_too_often(self) -> None:
        """Raises and changes nothing."""
        with pytest.raises(RuntimeError):
            self.slots.release()

    @invariant()
    def the_account_is_right(self) -> None:
        """Held and abandoned as seen from outside; usable by its formula."""
        slots = self.slots
        assert (slots.running, slots.abandoned) == (self.held, self.abandoned)
        assert slots.usable == max(0, min(slots.concurrency, 2 * slots.concurrency - slots.abandoned))

    @invariant()
    def nobody_waits_beside_a_free_slot(self) -> None:
        """Waiting means busy; overflow means that the list is full; stuck means nobody waits."""
        slots = self.slots
        assert not slots.waiting or slots.running >= slots.usable
        assert not slots.overflow or slots.waiting == slots.limit_waiting
        assert not slots.stuck or not slots.waiting + slots.overflow
        assert slots.waiting <= slots.limit_waiting

    @invariant()
    def nobody_is_lost(self) -> None:
        """Everyone who came and was neither granted, refused nor gone still stands, where it is counted."""
        assert all(w.state is WaiterState.WAITING for w in self.following)
        assert len(self._listed()) == self.slots.waiting
        assert len(self.following) == self.slots.waiting + self.slots.overflow

    def teardown(self) -> None:
        """In the end everybody is served."""
        if not hasattr(self, "slots"):
            return
        while self.abandoned:
            self.reclaim()
        while self.held:
            self.release()
        assert not self.following


SlotsMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestSlotsMachine: Callable[..., Any] = SlotsMachine.TestCase
