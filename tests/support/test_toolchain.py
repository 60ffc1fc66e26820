"""A missing toolchain: plain to see, and never taken for a pass where everything is required."""

from __future__ import annotations

import pytest

from tests.support.toolchain import SWITCH, need

MISSING = "no-such-command-anywhere"


@pytest.mark.parametrize("value", ["", "0", None])
def test_what_is_missing_is_skipped_and_named(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    """Unset, empty and 0 all mean that a machine may lack it."""
    monkeypatch.delenv(SWITCH, raising=False)
    if value is not None:
        monkeypatch.setenv(SWITCH, value)
    with pytest.raises(pytest.skip.Exception, match=f"no `{MISSING}` on PATH: the moon is not tested here"):
        need(MISSING, "the moon")


@pytest.mark.parametrize("value", ["1", "yes"])
def test_what_is_missing_fails_where_all_is_required(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """As in CI."""
    monkeypatch.setenv(SWITCH, value)
    with pytest.raises(pytest.fail.Exception, match=MISSING):
        need(MISSING, "the moon")


def test_what_is_there_lets_the_test_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the switch."""
    monkeypatch.setenv(SWITCH, "1")
    need("sh", "nothing")
