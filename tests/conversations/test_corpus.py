from __future__ import annotations

from conversations.catalogue import APIS
from conversations.corpus import CALLS, CONVERSATIONS, Call, Conversation, public_methods


def test_the_whole_published_set_is_read(corpus: dict[str, Conversation], calls: list[Call]) -> None:
    """200 conversations with 1,142 calls: nothing is skipped."""
    assert (len(corpus), len(calls)) == (CONVERSATIONS, CALLS)


def test_every_call_has_its_own_key(calls: list[Call]) -> None:
    """The key names conversation, turn and index, so no two calls share one."""
    assert len({call.key for call in calls}) == CALLS
    assert calls[0].key == "multi_turn_base_0:0:0"


def test_positional_arguments_get_their_names(corpus: dict[str, Conversation]) -> None:
    """`sort('final_report.pdf')` is sent as file_name."""
    call = next(call for call in corpus["multi_turn_base_0"].calls if call.method == "sort")
    assert call.arguments == {"file_name": "final_report.pdf"}
    assert call.wire_arguments == {"conversation": "multi_turn_base_0", "file_name": "final_report.pdf"}


def test_the_catalogue_lists_only_methods_that_exist() -> None:
    """A name in a read-only list that no method has would promise nothing."""
    for api in APIS:
        assert api.read_only <= set(public_methods(api)), api.prefix


def test_phases_and_reconcile_cross() -> None:
    """Half of the APIs declare phases, half are reconciled, and every combination is met."""
    assert sum(api.phases for api in APIS) == sum(api.reconcile for api in APIS) == len(APIS) / 2
    assert len({(api.phases, api.reconcile) for api in APIS}) == 4
