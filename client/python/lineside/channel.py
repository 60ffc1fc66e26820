"""How a client reaches the service: address, channel options, TLS, token."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

DEFAULT_TARGET = "127.0.0.1:50051"
MAX_MESSAGE_BYTES = 16 * 1024 * 1024

Pem = bytes | str | Path

_SCHEME = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract|vsock|xds):")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where the service is and who calls it, checked.

    target: `host:port`, or any gRPC target. token: bearer token; over plaintext only to this machine
    itself, unless insecure_token. ca: certificate authorities to trust instead of the system's;
    client_cert, client_key: the caller's own certificate (mTLS): PEM as bytes, or the path of a PEM file.
    tls: None = on if ca or client_cert is given. options: further gRPC channel options; they win over the
    client's own.
    """

    target: str = DEFAULT_TARGET
    token: str | None = field(default=None, repr=False)
    insecure_token: bool = False
    tls: bool | None = None
    ca: Pem | None = field(default=None, repr=False)
    client_cert: Pem | None = field(default=None, repr=False)
    client_key: Pem | None = field(default=None, repr=False)
    options: Sequence[tuple[str, Any]] = ()

    def __post_init__(self) -> None:
        require_target(self.target)
        has_pem = any(pem is not None for pem in (self.ca, self.client_cert, self.client_key))
        if (self.client_cert is None) != (self.client_key is None):
            raise ValueError("client_cert and client_key go together")
        if self.tls is False and has_pem:
            raise ValueError("tls=False, but ca or client_cert is given")
        object.__setattr__(self, "tls", bool(self.tls) or has_pem)
        if self.token is None:
            return
        if not self.token or not self.token.isascii() or not self.token.isprintable() or " " in self.token:
            raise ValueError("token: must be printable ASCII without spaces, and not empty")
        if not (self.tls or self.insecure_token or is_loopback(self.target)):
            raise ValueError(
                f"a token would travel in plaintext to {self.target}: use TLS, or say insecure_token=True "
                "(--insecure-token) if the network in between is trusted"
            )

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every RPC carries."""
        return (("authorization", f"Bearer {self.token}"),) if self.token is not None else ()

    def sync_channel(self) -> grpc.Channel:
        """A channel for blocking calls."""
        if self.tls:
            return grpc.secure_channel(self.target, self._credentials(), self._options())
        return grpc.insecure_channel(self.target, self._options())

    def async_channel(self) -> grpc.aio.Channel:
        """A channel bound to the running loop."""
        if self.tls:
            return grpc.aio.secure_channel(self.target, self._credentials(), self._options())
        return grpc.aio.insecure_channel(self.target, self._options())

    def _credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(_pem(self.ca), _pem(self.client_key), _pem(self.client_cert))

    def _options(self) -> list[tuple[str, Any]]:
        return [
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            # gRPC's own 1 s growing to 120 s is for crowds; a service that restarts is back within seconds.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2_000),
            ("grpc.service_config", service_config()),
            *self.options,
        ]


def service_config() -> str:
    """The published gRPC service config, as JSON text: reads are retried on UNAVAILABLE, nothing else is."""
    return resources.files("lineside").joinpath("service_config.json").read_text("utf-8")


def require_target(target: str) -> None:
    """Raise ValueError for what gRPC would take and never reach: no port, which is 443 to it, or a URL."""
    scheme, separator, _ = target.partition("://")
    if separator and scheme.lower() in ("http", "https", "grpc", "grpcs"):
        raise ValueError(f"target: {target!r}: HOST:PORT is needed, without {scheme}:// (--tls is TLS)")
    if separator or _SCHEME.match(target):
        return
    host, colon, port = target.rpartition(":")
    if not colon or not port.isdecimal() or not host or (":" in host and not host.endswith("]")):
        raise ValueError(f"target: {target!r}: HOST:PORT is needed, such as {DEFAULT_TARGET} or [::1]:50051")


def is_loopback(target: str) -> bool:
    """Whether every address of a gRPC target is this machine itself."""
    scheme, separator, rest = target.partition(":")
    if separator and scheme in ("unix", "unix-abstract"):
        return True
    if separator and scheme in ("dns", "ipv4", "ipv6"):
        # dns://authority/host:port, dns:host:port, ipv4:address:port,address:port
        target = rest.removeprefix("//").partition("/")[2] if rest.startswith("//") else rest
    return all(_is_loopback_host(address) for address in target.split(","))


def _is_loopback_host(address: str) -> bool:
    host = address
    if address.startswith("["):
        host = address[1:].partition("]")[0]
    elif address.count(":") == 1:
        host = address.partition(":")[0]
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _pem(source: Pem | None) -> bytes | None:
    return source if source is None or isinstance(source, bytes) else Path(source).read_bytes()
