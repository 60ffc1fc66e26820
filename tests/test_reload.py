"""What a running service can take over from a new config, and what it cannot."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lineside_service.config import Config, load_config
from lineside_service.reload import needs_restart

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
        ("", TOKEN, ["whether callers without credentials are let in"]),
        (f"[server]\nallow_anonymous = false\n{TOKEN}", "[server]\nallow_anonymous = false", []),
    ],
)
def test_what_needs_a_restart_is_named(tmp_path: Path, before: str, after: str, settings: list[str]) -> None:
    """Tools, credentials, renewed TLS files and the log level do not; everything else does."""
    for name in ("a.pem", "b.pem"):
        (tmp_path / name).write_text("")

    def read(text: str) -> Config:
        (tmp_path / "lineside.toml").write_text(text)
        return load_config(tmp_path / "lineside.toml")

    assert needs_restart(read(before), read(after)) == settings
