"""What a running service can take over from a new config, and what it cannot."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lineside_service.assembly import translate
from lineside_service.assembly.reload import needs_restart
from lineside_service.config import Config, load_config

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
    for name in ("a.pem", "b.pem"):
        (tmp_path / name).write_text("")

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
