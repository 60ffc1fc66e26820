"""The config: what it accepts, and what each mistake is told."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from lineside_service.assembly.specs import tool_spec
from lineside_service.assembly.toolbox import load_tools
from lineside_service.config import (
    AdminConfig,
    BreakerConfig,
    CertificateConfig,
    Config,
    ConfigError,
    RetryConfig,
    ServerConfig,
    StoreConfig,
    TelemetryConfig,
    TokenConfig,
    ToolConfig,
    anonymous_allowed,
    in_words,
    load_config,
)
from lineside_service.config.quantity import duration_s, size_bytes
from lineside_service.core.tool import Effect, Idempotency
from tests.support.certificates import Authority

Write = Callable[[str], Path]
DIGEST = hashlib.sha256(b"t").hexdigest()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a config file and give its path."""

    def write(text: str) -> Path:
        file = tmp_path / "lineside.toml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def mistakes(file: Path, flags: dict[str, str] | None = None) -> list[str]:
    """What loading says, without the directory."""
    with pytest.raises(ConfigError) as caught:
        load_config(file, flags)
    return [str(mistake).replace(f"{file.parent}/", "") for mistake in caught.value.mistakes]


def test_an_empty_file_is_a_whole_config(write: Write, tmp_path: Path) -> None:
    """Defaults: loopback, SQLite beside the file, anonymous callers on loopback, 30 s grace."""
    config = load_config(write(""))
    assert (config.server.listen, config.server.grace) == ("127.0.0.1:50051", 30.0)
    assert (config.admin.listen, config.store.kind) == ("127.0.0.1:9464", "sqlite")
    assert config.store.path == tmp_path / "lineside.db"
    assert anonymous_allowed(config.server, has_credentials=False)
    assert not config.telemetry.record_arguments


def test_a_tool_reads_every_key(write: Write) -> None:
    """All keys of a tool arrive, durations in seconds, words as their enums."""
    config = load_config(
        write(
            f"""
            [[tokens]]
            tenant = "acme"
            sha256 = "{DIGEST.upper()}"
            scopes = ["call", "read"]
            expires = 2030-01-31
            [tools."trips.book"]
            kind = "python"
            target = "tools:book"
            description = "Books"
            input_schema = {{ type = "object" }}
            output_schema = {{ type = "string" }}
            timeout = "200ms"
            phases = true
            effect = "compensable"
            idempotent = "by_key"
            key_ttl = "24h"
            key = "required"
            class = "booking"
            concurrency = 3
            retry = {{ preset = "remote", max_attempts = 5, budget = 1.0, initial = "1s", cap = "9s" }}
            breaker = {{ failure_ratio = 0.2, min_attempts = 5, window = "20s", open = 7, probes = 2 }}
            reconcile = "trips.look"
            tenants = ["acme"]
            keep_done = "5m"
            result_limit = "64KiB"
            enabled = false
            [tools."trips.look"]
            target = "tools:look"
            effect = "safe"
            """
        )
    )
    assert config.tokens[0].expires == dt.datetime(2030, 1, 31, tzinfo=dt.UTC)
    assert config.tokens[0].sha256 == DIGEST
    spec = tool_spec("trips.book", config.tools["trips.book"], {"type": "object"})
    assert (spec.timeout_s, spec.phases, spec.effect) == (0.2, True, Effect.COMPENSABLE)
    assert (spec.idempotency, spec.key_ttl_s, spec.key_required) == (Idempotency.BY_KEY, 86_400.0, True)
    assert (spec.tool_class, spec.concurrency, spec.tenants) == ("booking", 3, frozenset({"acme"}))
    assert (spec.retry.preset, spec.retry.max_attempts, spec.retry.budget_ratio) == ("remote", 5, 1.0)
    assert (spec.retry.initial_s, spec.retry.cap_s) == (1.0, 9.0)
    assert (spec.breaker.failure_ratio, spec.breaker.window_s, spec.breaker.open_s) == (0.2, 20.0, 7.0)
    assert (spec.reconcile, spec.keep_done_s, spec.result_limit) == ("trips.look", 300.0, 65_536)
    assert spec.output_schema == b'{"type":"string"}'
    assert not spec.enabled


def test_flags_win_over_the_environment_and_that_over_the_file(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TOML < LINESIDE__A__B < flags; names from the environment find a tool in any case."""
    file = write('[server]\nlisten = "127.0.0.1:1"\ngrace = 1\n[tools.Add]\ntarget = "t:f"\ntimeout = 5')
    monkeypatch.setenv("LINESIDE__SERVER__LISTEN", "127.0.0.1:2")
    monkeypatch.setenv("LINESIDE__SERVER__GRACE", "2s")
    monkeypatch.setenv("LINESIDE__TOOLS__ADD__TIMEOUT", "250ms")
    monkeypatch.setenv("LINESIDE__TOOLS__ADD__RETRY__MAX_ATTEMPTS", "7")
    monkeypatch.setenv("LINESIDE__TOOLS__ADD__TENANTS", '["acme"]')
    config = load_config(file, {"server.listen": "127.0.0.1:3"})
    assert (config.server.listen, config.server.grace) == ("127.0.0.1:3", 2.0)
    tool = config.tools["Add"]
    assert (tool.timeout, tool.retry.max_attempts, tool.tenants) == (0.25, 7, frozenset({"acme"}))


def test_a_mistake_names_who_said_it(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file, the environment variable or the flag."""
    monkeypatch.setenv("LINESIDE__ADMIN__LISTN", "x")
    told = mistakes(write('[server]\ngrace = "soon"'), {"server.listen": "here"})
    assert told[0].startswith('flag --listen: server.listen: "here": must be host:port')
    assert told[1].startswith('lineside.toml: server.grace: "soon": must be a duration')
    assert told[2].startswith("environment variable LINESIDE__ADMIN__LISTN: admin.listn: unknown key.")


def test_a_variable_of_no_part_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt part in the environment would otherwise do nothing, silently."""
    monkeypatch.setenv("LINESIDE__SERVR__LISTEN", "x")
    (told,) = mistakes(write(""))
    assert told.startswith(
        "environment variable LINESIDE__SERVR__LISTEN: names no part of the config. Parts: SERVER,"
    )


def test_all_mistakes_of_a_file_are_told_at_once(write: Write) -> None:
    """Each with file, dotted path, what is wrong and what would do, in the order of the parts."""
    told = mistakes(
        write(
            """
            [server]
            lisen = "127.0.0.1:1"
            [[tokens]]
            tenant = "a b"
            sha256 = "hunter2"
            [tools."flights.book"]
            target = "tools"
            timeot = "5s"
            retry = { max_attempt = 3 }
            [tools.add]
            target = "tools:add"
            effect = "saef"
            [tools.sub]
            target = "tools:sub"
            reconcile = "nowhere"
            """
        )
    )
    assert [line.split(": ")[1] for line in told] == [
        "server.lisen",
        "tokens[0].tenant",
        "tokens[0].sha256",
        'tools."flights.book".target',
        'tools."flights.book".retry.max_attempt',
        'tools."flights.book".timeot',
        "tools.add.effect",
        "tools.sub.reconcile",
    ]
    assert "Did you mean listen? Accepted here: listen, tls_cert" in told[0]
    assert "64 hex digits" in told[2]
    assert "hunter2" not in told[2]  # it may be the token itself
    assert '"tools": must be "module:function"' in told[3]
    assert "Did you mean max_attempts?" in told[4]
    assert "Did you mean timeout?" in told[5]
    assert "\"saef\": must be 'safe', 'compensable' or 'final'" in told[6]
    assert '"nowhere" is no tool of this config' in told[7]


@pytest.mark.parametrize("kind", ["http", "grpc", "mcp"])
def test_a_kind_to_come_is_refused_by_name(write: Write, kind: str) -> None:
    """One mistake, not one for every key that the kind will have."""
    told = mistakes(write(f'[tools.t]\nkind = "{kind}"\nurl = "http://u"\nheaders = {{}}'))
    assert told == [f'lineside.toml: tools.t.kind: "{kind}": is not in this version; "python" is']


LATER = ("cache", "batch", "compensate", "fallback", "max_pause", "pattern", "vary", "redact")


@pytest.mark.parametrize("key", LATER)
def test_a_key_to_come_is_refused_by_name(write: Write, key: str) -> None:
    """What a later version gives a meaning is never ignored."""
    (told,) = mistakes(write(f'[tools.t]\ntarget = "t:f"\n{key} = {{}}'))
    assert told.startswith(f"lineside.toml: tools.t.{key}: is not in this version: ")


def test_mcp_servers_are_refused_by_name(write: Write) -> None:
    """The table of the common host form, too."""
    (told,) = mistakes(write("[mcpServers.files]\ncommand = 'x'"))
    assert told.startswith("lineside.toml: mcpServers: is not in this version: ")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('effect = "safe"\nidempotent = false', 'effect = "safe" implies idempotent'),
        ('idempotent = "by_key"', "needs key_ttl"),
        ('key_ttl = "1h"', 'only with idempotent = "by_key"'),
        ('idempotent = "maybe"', 'must be false, true or "by_key"'),
        ("timeout = 0", "must be between 5ms and 10m"),
        ('timeout = "4.9ms"', "must be between 5ms and 10m"),
        ("timeout = true", "must be a duration"),
        ("timeout = nan", "must be a duration"),
        ('timeout = "5 parsecs"', "must be a duration"),
        ('timeout = "11m"', "must be between 5ms and 10m"),
        ('keep_done = "1s"', "must be between 1m and 365d"),
        ('result_limit = "5MiB"', "must be between 1 and"),
        ('result_limit = "1.5B"', "must be a size"),
        ("concurrency = 0", "greater than or equal to 1"),
        ('input_schema = { file = "none.json" }', "none.json cannot be read: No such file"),
        ('input_schema = "object"', "{ file ="),
        ('reconcile = "t"', 'must be a tool with effect = "safe"'),
        ("retry = { max_attempts = 0 }", "greater than or equal to 1"),
        ("breaker = { failure_ratio = 0 }", "greater than or equal to 0.001"),
    ],
)
def test_a_tool_that_makes_no_sense_is_refused(write: Write, lines: str, words: str) -> None:
    """With what would be accepted."""
    (told,) = mistakes(write(f'[tools.t]\ntarget = "t:f"\n{lines}'))
    assert words in told
    assert told.startswith("lineside.toml: tools.t")


def test_safe_implies_idempotent_and_nothing_else_does(write: Write) -> None:
    """The two settings are independent apart from that; the default is final, not idempotent."""
    config = load_config(
        write(
            """
            tools.a = { target = "t:f" }
            tools.b = { target = "t:f", effect = "safe" }
            tools.c = { target = "t:f", effect = "final", idempotent = true }
            """
        )
    )
    assert [config.tools[name].idempotency for name in "abc"] == [
        Idempotency.NO,
        Idempotency.YES,
        Idempotency.YES,
    ]
    assert config.tools["a"].effect is Effect.FINAL


def test_schema_files_lie_beside_the_config(write: Write, tmp_path: Path) -> None:
    """`{ file = … }` is read from the config's directory; what is no object is refused."""
    (tmp_path / "in.json").write_text('{"type": "object", "required": ["a"]}')
    config = load_config(write('[tools.t]\ntarget = "t:f"\ninput_schema = { file = "in.json" }'))
    assert config.tools["t"].input_schema == {"type": "object", "required": ["a"]}
    (tmp_path / "in.json").write_text("[1]")
    (told,) = mistakes(tmp_path / "lineside.toml")
    assert "must hold a JSON object" in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"not":' * 3_000 + "true" + "}" * 3_000, "nests too deep"),
        ("[" * 200_000, "nests too deep"),
        ('{"maxProperties": NaN}', "is not JSON: NaN"),
        ('{"maxProperties": -Infinity}', "is not JSON: -Infinity"),
        (" " * 1_100_000, "has more than 1048576 bytes"),
    ],
    ids=["deep", "open", "nan", "infinity", "large"],
)
def test_a_schema_file_that_is_none_is_a_mistake(write: Write, tmp_path: Path, text: str, words: str) -> None:
    """Told with its file and its place: no traceback, and no more of it is read than a schema can have."""
    (tmp_path / "in.json").write_text(text)
    (told,) = mistakes(write('[tools.t]\ntarget = "t:f"\ninput_schema = { file = "in.json" }'))
    assert told.startswith("lineside.toml: tools.t.input_schema: ")
    assert words in told


@pytest.mark.parametrize(
    ("inline", "words"),
    [
        ('type = "string"', '/type: "string" is not a JSON object; write "object"'),
        ('type = ["string", "null"]', 'add "object"'),
        ("enum = [1, 2]", "/enum: none of these is a JSON object"),
        ("allOf = [false]", "/allOf/0: false matches nothing"),
    ],
)
def test_an_input_schema_that_no_call_can_match_is_a_mistake(write: Write, inline: str, words: str) -> None:
    """Arguments are always an object; told with the file, the place, and what would be right."""
    file = write(f'[tools.t]\ntarget = "platform:machine"\ninput_schema = {{ {inline} }}')
    with pytest.raises(ConfigError) as refused:
        load_tools(load_config(file))
    (mistake,) = refused.value.mistakes
    assert str(mistake).startswith(f"{file}: tools.t.input_schema: no call could match")
    assert words in str(mistake)


@pytest.mark.parametrize("inline", ["maximum = nan", "maximum = inf", "default = 2020-01-01"])
def test_an_inline_schema_of_what_json_does_not_have_is_a_mistake(write: Write, inline: str) -> None:
    """TOML has dates and numbers that are none in JSON."""
    file = write(f'[tools.t]\ntarget = "platform:machine"\noutput_schema = {{ {inline} }}')
    with pytest.raises(ConfigError) as refused:
        load_tools(load_config(file))
    (mistake,) = refused.value.mistakes
    assert "tools.t.output_schema: cannot be written as JSON" in str(mistake)


def test_a_config_that_nests_without_end_is_a_mistake(write: Write) -> None:
    """Not a traceback of the parser."""
    (told,) = mistakes(write("x = " + "[" * 5_000 + "]" * 5_000))
    assert told == "lineside.toml: nests too deep"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server", "is not TOML"),
        ("[tools.'a b']\ntarget = 't:f'", "1-128 letters"),
        ("tools = 5", "must be a valid dictionary"),
        ("[server]\ntls_cert = 'none.pem'\ntls_key = 'none.pem'", "no such file"),
        ("[server]\nlisten = '0.0.0.0:1'", "nobody could call"),
        ("[[certificates]]\nsan = 'a'\ntenant = 'a'", "need server.client_ca"),
        (
            f"[[tokens]]\ntenant='a'\nsha256='{DIGEST}'\n[[tokens]]\ntenant='b'\nsha256='{DIGEST}'",
            "stands twice",
        ),
        (f"[[tokens]]\ntenant='a'\nsha256='{DIGEST}'\nexpires=2030-01-01T00:00:00", "offset from UTC"),
        (f"[[tokens]]\ntenant='a'\nsha256='{DIGEST}'\nscopes=['admin']", "must be 'call', 'read'"),
    ],
)
def test_a_config_that_cannot_serve_is_refused(write: Write, text: str, words: str) -> None:
    """Before anything starts."""
    assert words in mistakes(write(text))[0]


def test_tls_files_go_together(write: Write, tmp_path: Path) -> None:
    """A certificate without its key, or callers' certificates without TLS, is a mistake."""
    (tmp_path / "c.pem").write_text("x")
    assert "tls_cert and tls_key go together" in mistakes(write("[server]\ntls_cert = 'c.pem'"))[0]
    assert "needs tls_cert and tls_key" in mistakes(write("[server]\nclient_ca = 'c.pem'"))[0]


def test_tls_files_that_cannot_serve_are_named(write: Write, tmp_path: Path) -> None:
    """A key of another certificate, and files that are no PEM, are one mistake each that names the files."""
    authority = Authority()
    one, two = authority.server(), authority.server()
    for name, text in (("c", one.certificate), ("k", one.key), ("other", two.key), ("no", b"x")):
        (tmp_path / f"{name}.pem").write_bytes(text)

    def told(cert: str, key: str, ca: str = "c") -> str:
        text = f"[server]\ntls_cert='{cert}.pem'\ntls_key='{key}.pem'\nclient_ca='{ca}.pem'"
        (only,) = mistakes(write(text))
        return only

    mixed = told("c", "other")
    assert "do not belong together" in mixed
    assert all(f"{name}.pem" in mixed for name in ("c", "other"))
    assert "PEM" in told("no", "k")
    assert "PEM" in told("c", "no")
    assert "no.pem holds no PEM certificate" in told("c", "k", "no")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """No traceback, no guess."""
    assert mistakes(tmp_path / "absent.toml") == ["absent.toml: no such file"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(2.5, 2.5), ("200ms", 0.2), ("30s", 30), ("5 m", 300), ("12h", 43_200), ("7d", 604_800)],
)
def test_durations(text: object, seconds: float) -> None:
    """Numbers are seconds; text has a unit; in_words writes what duration_s reads."""
    assert duration_s(text) == seconds
    assert duration_s(in_words(seconds)) == seconds


def test_sizes() -> None:
    """Numbers are bytes; text has a unit."""
    assert [size_bytes(text) for text in (10, "64KiB", "2 MiB", "1GiB")] == [
        10,
        65_536,
        2_097_152,
        1_073_741_824,
    ]


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (
            RetryConfig(max_attempts=1, budget=0, budget_floor=0, budget_window=0.1, initial=0, cap=0),
            RetryConfig(
                max_attempts=100, budget=100, budget_floor=1_000_000, budget_window=3600, initial=600, cap=600
            ),
        ),
        (
            BreakerConfig(failure_ratio=0.001, min_attempts=1, window=0.1, open=0.001, probes=1),
            BreakerConfig(failure_ratio=1, min_attempts=1_000_000, window=3600, open=3600, probes=1000),
        ),
    ],
)
def test_core_takes_whatever_the_config_takes(
    low: RetryConfig | BreakerConfig, high: RetryConfig | BreakerConfig
) -> None:
    """The bounds of the config lie within those of the rules that it makes."""
    assert low.rules() is not None
    assert high.rules() is not None


def test_the_contract_hash_changes_with_what_a_call_means(write: Write) -> None:
    """Schemas, effect and idempotency count; order of keys, description and limits do not."""
    config: Config = load_config(write('tools.t = { target = "t:f", effect = "safe" }'))
    tool = config.tools["t"]
    one = tool_spec("t", tool, {"type": "object", "properties": {"a": {}, "b": {}}})
    reordered = tool_spec("t", tool, {"properties": {"b": {}, "a": {}}, "type": "object"})
    slower = tool_spec("t", tool.model_copy(update={"timeout": 5.0, "description": "x"}), {"type": "object"})
    assert one.contract_hash == reordered.contract_hash
    assert one.input_schema == reordered.input_schema
    assert slower.contract_hash == tool_spec("t", tool, {"type": "object"}).contract_hash
    changed = [
        tool_spec("u", tool, {"type": "object"}),
        tool_spec("t", tool, {"type": "object", "required": ["a"]}),
        tool_spec("t", tool.model_copy(update={"effect": Effect.FINAL}), {"type": "object"}),
        tool_spec("t", tool.model_copy(update={"idempotent": Idempotency.NO}), {"type": "object"}),
        tool_spec("t", tool.model_copy(update={"output_schema": {}}), {"type": "object"}),
        slower,
    ]
    assert len({spec.contract_hash for spec in changed}) == len(changed)


def test_the_reference_names_every_key() -> None:
    """A setting that the documentation does not know would be found by nobody."""
    reference = (Path(__file__).resolve().parent.parent / "docs" / "config.md").read_text()
    parts = (
        ServerConfig,
        AdminConfig,
        StoreConfig,
        TokenConfig,
        CertificateConfig,
        TelemetryConfig,
        ToolConfig,
    )
    for part in (*parts, RetryConfig, BreakerConfig):
        for name, field in part.model_fields.items():
            assert f"`{field.alias or name}`" in reference, (part.__name__, name)
