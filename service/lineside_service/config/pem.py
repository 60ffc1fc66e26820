"""Whether the TLS files can serve, before anybody listens: told by `check`, at start and at a reload."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def pem_mistakes(certificate: Path, key: Path, client_ca: Path | None) -> Iterator[str]:
    """What is wrong with the files, each in one sentence that names its files."""
    import ssl  # takes a while, and only TLS needs it

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        yield _pair_words(certificate, key, error.reason or "")
    except (OSError, _PasswordWantedError) as error:
        yield f"tls_key {key} cannot be used: {error}"
    if client_ca is None:
        return
    try:
        context.load_verify_locations(client_ca)
    except (ssl.SSLError, OSError):
        yield f"client_ca {client_ca} holds no PEM certificate"


def _pair_words(certificate: Path, key: Path, reason: str) -> str:
    if reason == "KEY_VALUES_MISMATCH":
        return f"tls_cert {certificate} and tls_key {key} do not belong together: the key is another's"
    told = f" ({reason.replace('_', ' ').lower()})" if reason else ""
    return (
        f"tls_cert {certificate} and tls_key {key} cannot be used{told}: a PEM certificate (with its chain "
        "below it) and its unencrypted PEM key are needed"
    )


class _PasswordWantedError(Exception):
    pass


def _no_password() -> str:
    raise _PasswordWantedError("it is encrypted; the service asks nobody for a password")
