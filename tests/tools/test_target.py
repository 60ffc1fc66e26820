from __future__ import annotations

import functools

import pytest

from lineside_service.tools.target import TargetRefused, is_async, load_target
from tests.tools import examples

HERE = "tests.tools.examples"


def test_a_function_or_a_method_is_found() -> None:
    """`module:function` and `module:object.method` name tools."""
    assert load_target(f"{HERE}:fetch") is examples.fetch
    assert load_target(f"{HERE}:desk.ask") == examples.desk.ask


def test_loading_again_does_not_import_again() -> None:
    """A reload changes config, not code."""
    load_target(f"{HERE}:fetch")
    load_target(f"{HERE}:slow")
    assert examples.loads == ["once"]


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("fetch", "module:function"),
        (f"{HERE}:", "module:function"),
        ("tests.tools.missing:f", "no module"),
        (f"{HERE}:fetsh", "did you mean 'fetch'"),
        (f"{HERE}:desk.asc", "did you mean 'ask'"),
        (f"{HERE}:number", "not a function"),
        (f"{HERE}:Desk", "class"),
        (f"{HERE}:many", "generator"),
        (f"{HERE}:some", "generator"),
    ],
)
def test_what_is_no_tool_is_refused_with_a_reason(target: str, why: str) -> None:
    """A wrong target says what is wrong and, where it can, what was meant."""
    with pytest.raises(TargetRefused, match=why):
        load_target(target)


def test_async_is_seen_through_wrappers() -> None:
    """Partials and callable objects count as what they call."""

    class Waiter:
        async def __call__(self) -> None: ...

    assert is_async(examples.fetch)
    assert is_async(functools.partial(examples.fetch, "x"))
    assert is_async(Waiter())
    assert is_async(examples.desk.ask)
    assert not is_async(examples.slow)
