"""What a running service can take over from a new config, and what it cannot."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lineside_service.assembly import translate
from lineside_service.assembly.reload import needs_restart
from lineside_service.assembly.service import input_schemas, make_tools
from lineside_service.assembly.toolbox import load_tools
from lineside_service.config import Config, load_config
from lineside_service.engine.registry import Registry
from lineside_service.tools.threads import Threads
from tests.support.certificates import Authority

TLS = "tls_cert = 'a.pem'\ntls_key = 'a.pem'\n"
TOKEN = f"[[tokens]]\ntenant = 'acme'\nsha256 = '{hashlib.sha256(b't').hexdigest()}'\n"


@pytest.mark.parametrize(
    ("before", "after", "settings"),
    [
        ("", "[telemetry]\nlog_level = 'debug'", []),
        ("", "[tools.t]\ntarget = 't:f'", []),
        (f"[server]\n{TLS}", f"[server]\n{TLS.replace('a.pem', 'b.pem')}", []),
        ("", f"[server]\n{TLS}", ["server.tls_cert"]),
        (f"[server]\n{TLS}", f"[server]\n{TLS}client_ca = 'a.pem'", ["server.client_ca"]),
        ("", "[server]\nlisten = '127.0.0.1:1'\ngrace = 1", ["server.grace", "server.listen"]),
        ("", "[store]\nkind = 'memory'", ["store.kind"]),
        ("", "[admin]\nlisten = 'off'", ["admin.listen"]),
        ("", "[telemetry]\nrecord_arguments = true", ["telemetry.record_arguments"]),
        ("", TOKEN, []),
        ("[server]\nallow_anonymous = true", "[server]\nallow_anonymous = false", []),
        (f"[server]\nallow_anonymous = false\n{TOKEN}", "[server]\nallow_anonymous = false", []),
    ],
)
def test_what_needs_a_restart_is_named(tmp_path: Path, before: str, after: str, settings: list[str]) -> None:
    """Tools, credentials and who needs one, renewed TLS files and the log level do not; the rest does."""
    authority = Authority()
    for name in ("a.pem", "b.pem"):
        pair = authority.server()
        (tmp_path / name).write_bytes(pair.certificate + pair.key)

    def read(text: str) -> Config:
        (tmp_path / "lineside.toml").write_text(text)
        return load_config(tmp_path / "lineside.toml")

    assert needs_restart(read(before), read(after)) == settings


@pytest.mark.parametrize(
    ("runs", "reloaded", "is_let_in"),
    [
        ("", "", True),
        ("", TOKEN, False),
        (TOKEN, "", True),
        (TOKEN, f"[server]\nallow_anonymous = true\n{TOKEN}", True),
        (f"[server]\nlisten = '0.0.0.0:1'\n{TOKEN}", "", False),
        ("", "[server]\nlisten = '0.0.0.0:1'\nallow_anonymous_off_loopback = true", True),
    ],
)
def test_who_is_let_in_goes_by_the_address_that_is_listened_on(
    tmp_path: Path, runs: str, reloaded: str, *, is_let_in: bool
) -> None:
    """A new `listen` waits for a restart, so it must not open the port that is there now."""
    configs = []
    for text in (runs, reloaded):
        (tmp_path / "lineside.toml").write_text(text)
        configs.append(load_config(tmp_path / "lineside.toml"))
    before, after = configs
    assert translate.lets_anonymous_in(after, listening_on=before.server.listen) is is_let_in


def test_each_schema_is_compiled_once(tmp_path: Path) -> None:
    """However many tools have it: a start with many tools must not take long."""
    file = tmp_path / "lineside.toml"
    for name in ("one", "other", "two"):
        schema = f"{{ title = '{name[0]}', properties = {{ city = {{}} }}, required = ['city'] }}"
        with file.open("a") as text:
            text.write(f"[tools.{name}]\ntarget = 'tests.tools.examples:fetch'\n")
            text.write(f"input_schema = {schema}\noutput_schema = {schema}\n")
    loaded = load_tools(load_config(file))
    one, other, two = loaded
    assert one.input is one.output is other.input is other.output
    assert two.input is two.output is not one.input
    registry = Registry(make_tools(loaded, Threads()), input_schemas(loaded))
    for tool, found in zip(loaded, registry.everything(), strict=True):
        assert found.schema is tool.input
