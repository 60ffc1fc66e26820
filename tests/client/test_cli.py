"""The `lineside` command as a person and as a script meet it: real processes against a real service."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lineside.cli import advice
from lineside.cli.lines import call_of
from lineside.errors import ERROR_CLASSES, ConnectionLost, SchemaError
from lineside.vocabulary import ErrorKind, Outcome
from tests.client.scripted_service import ScriptedTools

ROOT = Path(__file__).parents[2]
OLDEST = ROOT / ".venv-client-min/bin/python"
Served = tuple[ScriptedTools, str]


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """Stdout as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


async def run(
    *arguments: str, target: str = "127.0.0.1:1", stdin: str = "", python: Path | str = sys.executable
) -> Ran:
    """Runs the command with LINESIDE_TARGET set."""
    child = await asyncio.create_subprocess_exec(
        python,
        *("-m", "lineside.cli", *arguments),
        env={"PATH": os.defpath, "LINESIDE_TARGET": target, "PYTHONPATH": f"{ROOT}/client/python"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await child.communicate(stdin.encode())
    assert child.returncode is not None
    return Ran(child.returncode, out.decode(), err.decode())


@pytest.mark.asyncio
async def test_call_prints_the_result_and_exits_by_the_answer(scripted: Served) -> None:
    """0 with a result, 1 when the tool said no; arguments from stdin travel to the last digit."""
    tools, target = scripted
    ran = await run(
        "call", "echo", '{"name": "x", "n": 12345678901234567890123}', "--key", "k", target=target
    )
    assert ran.code == 0
    assert ran.err.startswith("executed, 2 attempts, 1500 ms, call ")
    assert ran.out == '{"name":"x","n":12345678901234567890123}\n'
    assert tools.names["x"].calls[0]["key"] == "k"
    said_no = await run("call", "say_no", "-", "--whole", stdin='{"n": 1}', target=target)
    assert said_no.code == 1
    assert said_no.lines[0]["tool_error"]
    assert said_no.lines[0]["source"] == "executed"


@pytest.mark.asyncio
async def test_failure_says_what_to_do_and_its_code_what_is_known(scripted: Served) -> None:
    """3 refused, 4 unknown, 5 not reached: stdout stays empty, stderr names outcome and next step."""
    target = scripted[1]
    cases = (
        ({"kind": "key_reused", "outcome": "not_run", "call_id": "c-1"}, 3, "another --key"),
        ({"kind": "timeout", "outcome": "unknown", "attempts": 1}, 4, "may or may not have taken effect"),
        ({"kind": "outcome_unknown", "outcome": "not_run"}, 4, "lineside settle"),
    )
    told = [json.dumps({"name": case[0]["kind"], "status": case[0]}) for case in cases]
    runs = await asyncio.gather(*(run("call", "refuse", arguments, target=target) for arguments in told))
    for ran, (_, code, advised) in zip(runs, cases, strict=True):
        assert (ran.code, ran.out) == (code, "")
        assert advised in ran.err
    keyed = await run(
        "call", "refuse", told[1].replace("timeout", "internal", 1), "--key", "k", target=target
    )
    assert "repeat it with the same --key" in keyed.err
    nobody = await run("call", "echo", "{}")
    assert (nobody.code, nobody.out) == (5, "")
    assert "nothing took effect" in nobody.err
    assert "LINESIDE_TARGET" in nobody.err


@pytest.mark.asyncio
async def test_wrong_command_line_exits_2_and_names_the_fault() -> None:
    """Bad JSON, a plaintext token to another machine, and contradictions are told before anything is sent."""
    runs = await asyncio.gather(
        run("call", "echo", "{"),
        run("call", "echo", "{}", "--target", "10.0.0.1:1", "--token", "s3cret"),
        run("settle", "c", "--reason", "r"),
        run("get"),
        run("batch", "no-such-file.jsonl"),
        run("call", "echo", "{}", python=OLDEST),
    )
    faults = (
        "ARGUMENTS is not JSON",
        "plaintext",
        "--not-run",
        "--tool and --key",
        "No such file",
        "lineside[cli]",
    )
    for ran, fault in zip(runs, faults, strict=True):
        assert (ran.code, ran.out) == (2, "")
        assert fault in ran.err
        assert "s3cret" not in ran.err
        assert "Traceback" not in ran.err


@pytest.mark.asyncio
async def test_batch_answers_every_line_and_exits_by_the_worst(scripted: Served) -> None:
    """One output line for each input line; a broken one disturbs no other; --keys derives keys."""
    tools, target = scripted
    refusal = {"name": "r", "status": {"kind": "overloaded", "outcome": "not_run"}}
    text = "\n".join(
        (
            '{"tool": "echo", "arguments": {"name": "a"}, "item_id": "first"}',
            "",
            "nope",
            '{"tool": "echo", "argments": {}, "item_id": "own-id"}',
            '{"tool": "say_no", "idempotency_key": "own", "arguments": {"name": "b"}}',
            json.dumps({"tool": "refuse", "arguments": refusal}),
        )
    )
    ran = await run("batch", "-", "--keys", "nightly", stdin=text, target=target)
    assert (ran.code, ran.err) == (3, "")
    lines = {line["line"]: line for line in ran.lines}
    assert sorted(lines) == [1, 3, 4, 5, 6]
    assert (lines[1]["item_id"], lines[1]["ok"], lines[1]["result"]) == ("first", True, {"name": "a"})
    assert [lines[number]["item_id"] for number in (3, 4, 5)] == ["3", "own-id", "5"]
    assert lines[3]["error"]["kind"] == "schema"
    assert "did you mean arguments" in lines[4]["error"]["message"]
    assert lines[5]["tool_error"]
    assert lines[6]["error"]["kind"] == "overloaded"
    key = tools.names["a"].calls[0]["key"]
    assert key.startswith("step-v1-")
    assert tools.names["b"].calls[0]["key"] == "own"
    again = await run("batch", "-", "--keys", "nightly", stdin=text.partition("\n")[0], target=target)
    assert again.code == 0
    assert tools.names["a"].calls[1]["key"] == key


@pytest.mark.asyncio
async def test_records_are_listed_shown_and_settled(scripted: Served) -> None:
    """`calls --unknown`, `get` and `settle` (which reads the etag itself) print records as JSON lines."""
    target = scripted[1]
    listed, shown, settled, by_key, missing = await asyncio.gather(
        run("calls", "--unknown", "--limit", "3", target=target),
        run("get", "known", target=target),
        run("settle", "known", "--done", "[7]", "--reason", "saw it", target=target),
        run("get", "--tool", "echo", "--key", "k", target=target),
        run("get", "other", target=target),
    )
    assert [line["call_id"] for line in listed.lines] == ["call-0", "call-1", "call-2"]
    assert "only the first 3" in listed.err
    assert {line["state"] for line in listed.lines} == {"unknown"}
    assert shown.lines[0]["decisions"][0]["numbers"] == {"backoff_s": 0.1}
    assert (settled.lines[0]["result"], settled.lines[0]["settled_by"]) == ([7], "person")
    assert by_key.lines[0]["idempotency_key"] == "k"
    assert missing.code == 3
    assert "give the whole id" in missing.err


@pytest.mark.asyncio
async def test_tools_are_a_table_on_a_terminal_and_json_elsewhere(scripted: Served) -> None:
    """Colour and columns only where a person looks."""
    target = scripted[1]
    piped = await run("tools", target=target)
    assert [line["name"] for line in piped.lines] == [f"tool-{n}" for n in range(5)]
    assert "\x1b" not in piped.out
    assert (await run("tools", "echo", target=target)).lines[0]["input_schema"] == {"type": "object"}
    here, there = pty.openpty()
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "lineside.cli", "tools"),
        env={"PATH": os.defpath, "LINESIDE_TARGET": target, "TERM": "xterm", "COLUMNS": "160"},
        stdout=there,
        stderr=there,
    )
    os.close(there)
    await child.wait()
    shown = os.read(here, 65536).decode()
    os.close(here)
    assert "what tool-4 is for" in shown
    assert "NAME" in shown
    assert "{" not in shown


@pytest.mark.asyncio
async def test_help_has_examples_and_exit_codes() -> None:
    """--help is worth reading: what, how, examples, and what the exit code means."""
    runs = await asyncio.gather(
        *(run(name, "--help") for name in ("call", "batch", "calls", "get", "settle", "tools"))
    )
    for ran in (*runs, await run("--help")):
        assert ran.code == 0
        assert "4  outcome unknown" in ran.out
        assert "lineside " in ran.out.partition("Usage")[2]
        assert not set("╭│") & set(ran.out)
        assert not any("<" in line for line in ran.out.splitlines() if line.startswith("  --"))
    version = await run("--version")
    assert version.out == "lineside 0.1.0\n"


def test_advice_covers_every_kind_and_outcome() -> None:
    """Whatever goes wrong, a person is told what to do next."""
    assert set(advice.ADVICE) == set(ErrorKind)
    assert set(advice.OUTCOMES) == set(Outcome)


@pytest.mark.parametrize("kind", ErrorKind)
def test_advice_follows_the_outcome(kind: ErrorKind) -> None:
    """More time or another try helps only work that did not run; else the key does, or a look at the call."""
    own = kind in (ErrorKind.BAD_OUTPUT, ErrorKind.OUTCOME_UNKNOWN)
    for keyed in (True, False):
        said = {
            outcome: advice.explain(
                ERROR_CLASSES[kind]("m", outcome=outcome, call_id="c-1", trace_id="t"), keyed=keyed
            )[-1]
            for outcome in (None, *Outcome)
        }
        assert said[None] == said[Outcome.NOT_RUN] == f"  next: {advice.ADVICE[kind]}"
        for outcome in (Outcome.DONE, Outcome.UNKNOWN, Outcome.IN_PROGRESS):
            words = said[outcome]
            assert "try again" not in words
            assert "--timeout" not in words
            assert own or ("the same --key" in words) is (keyed or outcome is Outcome.IN_PROGRESS)
            looks = "`lineside get c-1`" in words and "`lineside settle c-1`" in words
            assert own or looks is (keyed and outcome is Outcome.UNKNOWN)


def test_a_connection_that_broke_is_not_a_wrong_target() -> None:
    """The target is in doubt only where nothing was ever sent."""
    for outcome, words in (
        (Outcome.NOT_RUN, "target"),
        (None, "target"),
        (Outcome.UNKNOWN, "the same --key"),
    ):
        assert words in advice.explain(ConnectionLost("gone", outcome=outcome), keyed=True)[-1]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("[]", "must be an object"),
        ("{}", "tool: is missing"),
        ('{"tool": 7}', "tool: must be text"),
        ('{"tool": "t", "arguments": [1]}', "arguments: must be an object"),
        ('{"tool": "t", "timeout_s": "1"}', "timeout_s: must be a number"),
        ('{"tool": "t", "timeout_s": true}', "timeout_s: must be a number"),
        ('{"tool": "t", "arguments": {"a": 1, "a": 2}}', "'a' is given twice"),
        ('{"tool": "t", "zzz": 1}', "known are tool, arguments"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_line_that_is_no_call_names_its_fault(line: str, fault: str) -> None:
    """Wrong shape, types, unknown and repeated members, and nesting without end."""
    with pytest.raises(SchemaError) as caught:
        call_of(line)
    assert fault in str(caught.value)
