from __future__ import annotations

from collections import Counter

from conversations.corpus import Call
from conversations.faults import MAX_HANGS_IN_A_ROW, Fault, caller_faults, fault_at

SEED = 1


def test_faults_come_in_the_stated_shares(calls: list[Call]) -> None:
    """20 % fail before the effect, 5 % hang before it, 1 % after it; callers misbehave in 10, 10 and 3 %."""
    drawn = Counter(fault_at(SEED, call.key, arrival) for call in calls for arrival in range(20))
    share = {fault: count / drawn.total() for fault, count in drawn.items()}
    assert abs(share[Fault.FAIL_BEFORE] - 0.20) < 0.01
    assert abs(share[Fault.HANG_BEFORE] - 0.05) < 0.005
    assert abs(share[Fault.HANG_AFTER] - 0.01) < 0.003
    misbehaved = [caller_faults(SEED, call.key) for call in calls]
    for name, expected in (("twice", 0.10), ("again", 0.10), ("broken", 0.03)):
        assert abs(sum(getattr(one, name) for one in misbehaved) / len(calls) - expected) < 0.025, name


def test_a_fault_depends_on_its_place_alone(calls: list[Call]) -> None:
    """The same seed, call and arrival meet the same fault; another seed gives another plan."""
    plan = [fault_at(SEED, call.key, 0) for call in calls]
    assert plan == [fault_at(SEED, call.key, 0) for call in reversed(calls)][::-1]
    assert plan != [fault_at(SEED + 1, call.key, 0) for call in calls]


def test_hangs_do_not_pile_up() -> None:
    """At most two arrivals of a call in a row hang, whatever the draws say."""
    hangs = (Fault.HANG_BEFORE, Fault.HANG_AFTER)
    longest = 0
    for number in range(3000):
        run = 0
        for arrival in range(8):
            run = run + 1 if fault_at(SEED, f"c:{number}:0", arrival) in hangs else 0
            longest = max(longest, run)
    assert longest == MAX_HANGS_IN_A_ROW
