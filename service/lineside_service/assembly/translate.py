"""From the config to the settings of the parts, which never see the config themselves."""

from __future__ import annotations

from lineside_service.config import Config, anonymous_allowed, is_loopback
from lineside_service.edge.access import Scope
from lineside_service.edge.auth import CertificateRule, Token
from lineside_service.edge.settings import ServerSettings, TlsFiles


class StartError(Exception):
    """The service cannot start; the text says what is wrong and what to do about it."""


def server_settings(config: Config) -> ServerSettings:
    """How the gRPC server listens. StartError when a certificate file cannot be read."""
    server = config.server
    return ServerSettings(
        listen=server.listen,
        tls=tls_files(config),
        max_rpcs=server.max_concurrent_rpcs,
        max_pending=server.max_pending_rpcs,
        max_receive=server.max_message,
        connection_age_s=server.connection_age,
        reflection=server.reflection,
        reflection_open=is_loopback(server.listen),
    )


def tls_files(config: Config) -> TlsFiles | None:
    """The certificate files' texts, None without TLS. StartError when one cannot be read."""
    server = config.server
    if server.tls_cert is None or server.tls_key is None:
        return None
    try:
        return TlsFiles(
            certificate=server.tls_cert.read_bytes(),
            key=server.tls_key.read_bytes(),
            client_ca=server.client_ca.read_bytes() if server.client_ca is not None else None,
        )
    except OSError as error:
        raise StartError(f"cannot read {error.filename}: {error.strerror}") from None


def tokens(config: Config) -> list[Token]:
    """The callers' tokens."""
    return [
        Token(
            digest=bytes.fromhex(token.sha256),
            tenant=token.tenant,
            scopes=frozenset(Scope(scope) for scope in token.scopes),
            expires_s=token.expires.timestamp() if token.expires is not None else None,
        )
        for token in config.tokens
    ]


def certificates(config: Config) -> list[CertificateRule]:
    """Whom the callers' certificates stand for."""
    return [
        CertificateRule(
            san=rule.san, tenant=rule.tenant, scopes=frozenset(Scope(scope) for scope in rule.scopes)
        )
        for rule in config.certificates
    ]


def lets_anonymous_in(config: Config, *, listening_on: str) -> bool:
    """Whether a caller without credentials is tenant `local`.

    listening_on: the host:port that is in use, which a reloaded config does not change.
    """
    server = config.server.model_copy(update={"listen": listening_on})
    return anonymous_allowed(server, has_credentials=bool(config.tokens or config.certificates))
