"""The command line: what it prints, and its exit codes."""

from __future__ import annotations

import hashlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lineside_service.cli import app
from lineside_service.commands.checking import fitted
from lineside_service.config import load_config

QUICKSTART = Path(__file__).resolve().parent.parent / "examples" / "quickstart" / "lineside.toml"


@pytest.fixture(autouse=True)
def own_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`check` imports what stands beside a config, which must not outlive a test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in ("checked_tools", "tools"):
        sys.modules.pop(name, None)


def run(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(app, arguments)


def checked(directory: Path, tools: str, config: str) -> Result:
    """`check` of a config beside a module `checked_tools`."""
    (directory / "checked_tools.py").write_text(f"from __future__ import annotations\n{tools}")
    (directory / "lineside.toml").write_text(config)
    return run("check", "--config", str(directory / "lineside.toml"))


def test_check_says_what_each_rule_will_do() -> None:
    """In plain words, for the quickstart: outcome of a timeout, settlement, limits, who may call."""
    result = run("check", "--config", str(QUICKSTART))
    assert result.exit_code == 0
    assert "lineside.toml is fine: 5 tools." in result.stdout
    assert "anybody who can connect is tenant `local`" in result.stdout
    unknown = (
        "its key then answers outcome_unknown until settled by booking_status, or by a person (SettleCall)"
    )
    assert f"book_flight: final, not idempotent: a timeout is never retried, {unknown}" in result.stdout
    assert "a call without an idempotency key is refused" in result.stdout
    assert "convert: safe: a timeout is retried" in result.stdout
    assert "2 attempts at once; more wait their turn" in result.stdout


def test_check_says_how_long_a_key_protects_what_cannot_be_repeated(tmp_path: Path) -> None:
    """Where keep_done is the default, as a note; not where somebody chose it, and not for a safe tool."""
    note = "note: 1m after its end the same key runs it again"
    tools = "def f(a: int) -> None: ..."
    plain = "[tools.f]\ntarget = 'checked_tools:f'\n"
    assert note in checked(tmp_path, tools, plain).stdout
    assert note not in checked(tmp_path, tools, f"{plain}keep_done = '1m'").stdout
    assert note not in checked(tmp_path, tools, f"{plain}effect = 'safe'").stdout


def test_a_line_is_fitted_to_the_terminal() -> None:
    """No line is longer than the columns, and what follows hangs below the beginning."""
    first, *rest = fitted("    note: " + "word " * 40, 80).splitlines()
    assert first.startswith("    note: word")
    assert rest
    assert all(line.startswith("      word") and len(line) <= 80 for line in (*rest,))
    assert fitted("", 80) == ""


def test_check_in_brief_is_one_line_per_tool() -> None:
    """For grep."""
    lines = run("check", "--brief", "--config", str(QUICKSTART)).stdout.splitlines()
    assert [line.split(":")[0] for line in lines[1:]] == [
        "convert",
        "search_flights",
        "book_flight",
        "booking_status",
        "report",
    ]


def test_check_explains_by_key_phases_and_disabled_tools(tmp_path: Path) -> None:
    """The rules that surprise most."""
    result = checked(
        tmp_path,
        "from lineside_service.tools import ToolContext\n"
        "async def pay(ctx: ToolContext, amount: int) -> None: ...\n",
        """
        [tools.pay]
        target = "checked_tools:pay"
        idempotent = "by_key"
        key_ttl = "24h"
        tenants = ["acme"]
        [tools.ship]
        target = "checked_tools:pay"
        phases = true
        enabled = false
        retry = { max_attempts = 1 }
        breaker = { enabled = false }
        """,
    )
    assert result.exit_code == 0
    assert (
        "pay: final, idempotent by key for 1d: a timeout is retried under the same downstream key"
        in result.stdout
    )
    assert "only for acme; for others it does not exist" in result.stdout
    assert "ship: final, not idempotent: a timeout after begin_effect() is never retried" in result.stdout
    assert "(disabled: nobody can call it)" in result.stdout
    assert "never retried (max_attempts = 1)" in result.stdout
    assert "no breaker" in result.stdout


def test_check_tells_every_mistake_and_exits_with_2(tmp_path: Path) -> None:
    """On stderr, with file, place and the nearest valid key; stdout stays empty."""
    result = checked(tmp_path, "", '[server]\nlisen = "x"\n[tools.t]\ntarget = "a:b"\ntimeot = 1\n')
    assert result.exit_code == 2
    assert result.stdout == ""
    first, second, last = result.stderr.splitlines()
    assert first.startswith(f"{tmp_path}/lineside.toml: server.lisen: unknown key. Did you mean listen?")
    assert second.startswith(f"{tmp_path}/lineside.toml: tools.t.timeot: unknown key. Did you mean timeout?")
    assert last == "2 mistakes; nothing was changed."


@pytest.mark.parametrize(
    ("target", "tools", "words"),
    [
        ("no_such_module:f", "", "there is no module 'no_such_module'"),
        ("checked_tools:ad", "def add(a: int) -> int: return a", "did you mean 'add'?"),
        ("checked_tools:f", "raise RuntimeError('no licence')", "raised RuntimeError: no licence"),
        ("checked_tools:f", "import no_such_dependency", "there is no module 'no_such_dependency'"),
        ("checked_tools:f", "f = 3", "is a int, not a function"),
        ("checked_tools:f", "def f(*a: int) -> None: ...", "which have no schema; give an input_schema"),
        ("checked_tools:f", "def f(a: object) -> None: ...", "has no JSON form"),
    ],
)
def test_a_broken_target_names_the_tool_and_the_cause(
    tmp_path: Path, target: str, tools: str, words: str
) -> None:
    """Where to look, and the import error itself."""
    result = checked(tmp_path, tools, f'[tools.t]\ntarget = "{target}"\n')
    assert result.exit_code == 2
    line = result.stderr.splitlines()[0]
    assert line.startswith(f"{tmp_path}/lineside.toml: tools.t.target: ")
    assert words in line


def test_all_broken_targets_are_told_at_once(tmp_path: Path) -> None:
    """Schemas that cannot be compiled and phases that cannot be begun count as broken too."""
    result = checked(
        tmp_path,
        "def f(a: int) -> int: return a",
        """
        tools.a = { target = "checked_tools:f", phases = true }
        tools.b = { target = "checked_tools:f", output_schema = { type = "nothing" } }
        tools.c = { target = "checked_tools:g" }
        tools.d = { target = "checked_tools:f" }
        """,
    )
    places = [line.split(": ")[1] for line in result.stderr.splitlines()[:-1]]
    assert places == ["tools.a.phases", "tools.b.output_schema", "tools.c.target"]


def test_a_new_token_is_printed_once_with_its_block(tmp_path: Path) -> None:
    """The block is valid config and holds the SHA-256 alone."""
    result = run(
        *("token", "new", "--tenant", "acme", "--scope", "call,read", "--scope", "settle"),
        *("--expires", "90d", "--note", 'the "night" batch'),
    )
    assert result.exit_code == 0
    token, _, block = result.stdout.partition("\n\n")
    assert re.fullmatch(r"ls_[A-Za-z0-9_-]{43}", token)
    assert token not in block
    (tmp_path / "lineside.toml").write_text(block)
    (made,) = load_config(tmp_path / "lineside.toml").tokens
    assert made.sha256 == hashlib.sha256(token.encode()).hexdigest()
    assert (made.tenant, made.scopes) == ("acme", frozenset({"call", "read", "settle"}))
    assert made.expires is not None
    assert tomllib.loads(block)["tokens"][0]["note"] == 'the "night" batch'


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--tenant", "a b"), "--tenant 'a b': must be 1-63 letters"),
        (("--tenant", "a", "--scope", "admin"), "--scope 'admin': must be 'call', 'read'"),
        (("--tenant", "a", "--expires", "soon"), '--expires "soon": a duration such as 90d'),
        (("--tenant", "a", "--expires", "0d"), "--expires must lie in the future"),
    ],
)
def test_a_token_that_cannot_be_made_is_refused(arguments: tuple[str, ...], words: str) -> None:
    """With what would do, and exit code 2."""
    result = run("token", "new", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""


def test_version_names_what_it_runs_on() -> None:
    """For bug reports."""
    result = run("version")
    assert re.match(r"lineside-service \d+\.\d+\.\d+\ngrpcio \S+, protobuf \S+, Python 3\.", result.stdout)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Exit codes: 0 done; 1 it could not start, or died; 2 a mistake in the config"),
        (("serve",), "SIGHUP"),
        (("check",), "lineside-service check --config lineside.toml"),
        (
            ("token", "new"),
            "lineside-service token new --tenant acme --scope call --scope read --expires 90d",
        ),
    ],
)
def test_help_has_examples(arguments: tuple[str, ...], words: str) -> None:
    """Each command's help is enough to use it."""
    result = run(*arguments, "--help")
    assert result.exit_code == 0
    assert words in result.stdout


def test_wrong_usage_exits_with_2() -> None:
    """Like every command."""
    assert run("serve", "--nonsense").exit_code == 2
