"""The `lineside` command on a terminal, or with only one of its streams on one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import sys
from pathlib import Path

import pytest

from tests.client.scripted_service import ScriptedTools, serving

ROOT = Path(__file__).parents[2]
Served = tuple[ScriptedTools, str]


async def on_terminal(
    *arguments: str, target: str, stdin: str = "", out: Path | None = None, columns: int = 80
) -> tuple[int, str]:
    """Runs the command on a terminal, but with stdout into `out` if given: exit code, and what is shown."""
    here, there = pty.openpty()
    with contextlib.ExitStack() as files:
        stdout = there if out is None else files.enter_context(out.open("wb"))
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "lineside.cli", *arguments),
            env={
                "PATH": os.defpath,
                "LINESIDE_TARGET": target,
                "TERM": "xterm",
                "COLUMNS": str(columns),
                "PYTHONPATH": f"{ROOT}/client/python",
                "TZ": "UTC",
            },
            stdin=asyncio.subprocess.PIPE,
            stdout=stdout,
            stderr=there,
        )
    os.close(there)
    shown = asyncio.create_task(asyncio.to_thread(_read, here))
    await child.communicate(stdin.encode())
    assert child.returncode is not None
    return child.returncode, (await shown).replace("\r\n", "\n")


def _read(terminal: int) -> str:
    parts = []
    with contextlib.suppress(OSError):  # EIO: the last writer has left
        while part := os.read(terminal, 65536):
            parts.append(part)
    os.close(terminal)
    return b"".join(parts).decode()


def _lines(count: int) -> str:
    calls = ({"tool": "echo", "arguments": {"name": f"n{n}", "text": "x" * 100}} for n in range(count))
    return "\n".join(json.dumps(call) for call in calls)


@pytest.mark.asyncio
async def test_batch_into_a_file_from_a_terminal_loses_no_answer(scripted: Served, tmp_path: Path) -> None:
    """Progress is shown on stderr's terminal, every answer goes to the file, whole."""
    code, shown = await on_terminal(
        "batch", "-", target=scripted[1], stdin=_lines(20), out=tmp_path / "answers.jsonl"
    )
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert code == 0
    assert sorted(answer["line"] for answer in answers) == list(range(1, 21))
    assert "20 done" in shown
    assert "{" not in shown


@pytest.mark.asyncio
async def test_batch_on_a_terminal_prints_unbroken_json_lines(scripted: Served) -> None:
    """With both streams on the terminal there is no progress to run into, and no line is wrapped."""
    code, shown = await on_terminal("batch", "-", target=scripted[1], stdin=_lines(5))
    *answers, tally = shown.splitlines()
    assert code == 0
    assert sorted(json.loads(line)["line"] for line in answers) == [1, 2, 3, 4, 5]
    assert "5 done" in tally


@pytest.mark.asyncio
async def test_a_narrow_table_of_calls_shows_each_id_whole_and_what_is_left_out() -> None:
    """At 80 columns a call's id is uncut, the zone stands once, and a cut list says that there is more."""
    async with serving() as (tools, target):
        tools.id_prefix = "0190b5f0-0000-7000-8000-00000000000"
        code, shown = await on_terminal("calls", "--unknown", "--limit", "2", target=target)
    assert code == 0
    assert [f"{tools.id_prefix}{n}" in shown for n in range(3)] == [True, True, False]
    assert "only the first 2" in shown
    assert "--reason TEXT" in shown
    assert shown.count("UTC") == 1


@pytest.mark.asyncio
async def test_an_empty_table_says_none(scripted: Served) -> None:
    """And advises nobody to settle what is not there."""
    code, shown = await on_terminal("calls", "--unknown", "--tool", "nobody", target=scripted[1])
    assert (code, shown) == (0, "none\n")


@pytest.mark.asyncio
async def test_a_record_is_a_tree_on_a_terminal_and_json_if_asked(scripted: Served) -> None:
    """`get` and `settle` tell attempts, decisions and the settlement in lines that a person reads."""
    target = scripted[1]
    (_, shown), (_, line), (_, settled), (_, valid) = await asyncio.gather(
        on_terminal("get", "known", target=target),
        on_terminal("get", "known", "--json", target=target),
        on_terminal("settle", "known", "--done", "[7]", "--reason", "saw it", target=target),
        on_terminal("call", "echo", "{}", "--validate", target=target),
    )
    assert "attempt 1, took 20 ms: transient, not run" in shown
    assert "└─ retry: TRANSIENT  backoff_s=0.1" in shown
    assert "result      [1, null]" in shown
    assert json.loads(line)["call_id"] == "known"
    assert "settled by person: saw it" in settled
    assert valid == "valid: echo takes these arguments; nothing was run\n"
