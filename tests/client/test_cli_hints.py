"""What the `lineside` command says when the connection, a time or a call's id is wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lineside.cli import advice
from lineside.cli.seconds import seconds
from lineside.errors import ConnectionLost, KeyReused, SchemaError, Violation
from lineside.vocabulary import Outcome
from tests.client.test_cli import run


@pytest.mark.asyncio
async def test_a_keyed_call_to_nobody_says_at_once_that_it_still_tries() -> None:
    """A keyed call is sent until its time is over; meanwhile stderr says why there is silence, once."""
    ran = await run("call", "echo", "{}", "--key", "k", "--timeout", "2.5s")
    assert (ran.code, ran.out) == (5, "")
    assert ran.err.startswith("lineside: cannot reach 127.0.0.1:1 yet, trying until 2.5 s are over")
    assert ran.err.count("cannot reach") == 1


@pytest.mark.asyncio
async def test_wrong_times_and_pem_files_are_wrong_command_lines(tmp_path: Path) -> None:
    """Exit code 2, and the bound or the file is named, before anything is sent."""
    pem = tmp_path / "ca.pem"
    pem.write_text("no certificate")
    zero, long, form, authority = await asyncio.gather(
        run("call", "echo", "--timeout", "0"),
        run("call", "echo", "--timeout", "601"),
        run("call", "echo", "--attempt-timeout", "soon"),
        run("calls", "--ca", str(pem)),
    )
    for ran, words in ((zero, "more than 0"), (long, "at most 600"), (form, "5s"), (authority, "--ca")):
        assert (ran.code, ran.out) == (2, "")
        assert words in ran.err


def test_times_are_written_as_in_the_config() -> None:
    """A bare number is seconds."""
    assert [seconds(text) for text in ("5", "5s", "500ms", "1.5m", "600")] == [5.0, 5.0, 0.5, 90.0, 600.0]


def test_a_missing_key_is_told_once_and_with_the_option() -> None:
    """The service's sentence stands once; the advice is --key, not the tool's schema."""
    text = "`mail` takes calls with an idempotency key only"
    fault = Violation("call.idempotency_key", text, "REQUIRED")
    said = advice.explain(
        SchemaError(text, reason="KEY_REQUIRED", outcome=Outcome.NOT_RUN, violations=(fault,))
    )
    assert "\n".join(said).count(text) == 1
    assert "--key" in said[-1]


def test_a_reused_key_speaks_of_this_call_and_names_the_earlier() -> None:
    """That nothing took effect would be false of the call that has the key."""
    said = "\n".join(advice.explain(KeyReused("m", outcome=Outcome.NOT_RUN, call_id="c-1"), keyed=True))
    assert "this call did nothing; the key belongs to c-1" in said
    assert "nothing took effect" not in said


def test_tls_on_one_side_only_is_named() -> None:
    """GRPC says `Socket closed` or tells of a handshake; a person needs the option."""
    plaintext = ConnectionLost("failed to connect to all addresses; last error: Socket closed")
    assert "--ca FILE" in advice.explain(plaintext)[-1]
    tls = ConnectionLost("failed to connect to all addresses; last error: Tls handshake failed")
    assert "leave out --tls" in advice.explain(tls)[-1]
