"""Where the service listens and what it lets in: `[server]` and `[admin]`."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from lineside_service.config.pem import pem_mistakes
from lineside_service.config.quantity import bytes_between, seconds_between
from lineside_service.config.section import ExistingFile, Section

_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
OFF = "off"


def _host_port(address: str) -> str:
    written = _HOST_PORT.fullmatch(address)
    if written is None or int(written[2]) > 65_535:
        raise ValueError(
            'must be host:port, such as "127.0.0.1:50051", "[::1]:50051" or "0.0.0.0:0" (0 = any free port)'
        )
    return address


def _host_port_or_off(address: str) -> str:
    return address if address == OFF else _host_port(address)


def is_loopback(address: str) -> bool:
    """Whether a host:port can be reached from this machine only."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ServerConfig(Section):
    """`[server]`: the gRPC port.

    grace: seconds that calls in flight get after SIGTERM. allow_anonymous: callers without a token or a
    certificate are tenant `local` with every scope; default: while no token and no certificate is configured.
    allow_anonymous_off_loopback: the same even where other machines can call. max_concurrent_rpcs: our own
    bound on Dispatch and DispatchBatch RPCs at once, a stream as one; health and control calls are exempt (a
    bound of gRPC's would shut them out too). max_pending_rpcs: RPCs of all kinds that have come and were
    not looked at yet; gRPC cancels the others. max_message: largest message taken, in bytes.
    connection_age: seconds after which a connection is asked to go elsewhere, None = never. reflection: off
    loopback it needs a credential.
    """

    listen: Annotated[str, AfterValidator(_host_port)] = "127.0.0.1:50051"
    tls_cert: ExistingFile | None = None
    tls_key: ExistingFile | None = None
    client_ca: ExistingFile | None = None
    grace: Annotated[float, BeforeValidator(seconds_between(0, 3600))] = 30.0
    allow_anonymous: bool | None = None
    allow_anonymous_off_loopback: bool = False
    max_concurrent_rpcs: Annotated[int, Field(ge=16, le=1_000_000)] = 10_000
    max_pending_rpcs: Annotated[int, Field(ge=16, le=1_000_000)] = 4_000
    max_message: Annotated[int, BeforeValidator(bytes_between(1024**2, 64 * 1024**2))] = 16 * 1024**2
    connection_age: Annotated[float, BeforeValidator(seconds_between(1, 7 * 86_400))] | None = None
    reflection: bool = True

    @model_validator(mode="after")
    def _pairs(self) -> ServerConfig:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together: name both files, or neither")
        if self.client_ca is not None and self.tls_cert is None:
            raise ValueError("client_ca (callers' certificates) needs tls_cert and tls_key too")
        if self.tls_cert is None or self.tls_key is None:
            return self
        if words := "; ".join(pem_mistakes(self.tls_cert, self.tls_key, self.client_ca)):
            raise ValueError(words)
        return self


class AdminConfig(Section):
    """`[admin]`: /metrics, /livez and /readyz over plain HTTP; keep it off public networks. "off" = none."""

    listen: Annotated[str, AfterValidator(_host_port_or_off)] = "127.0.0.1:9464"

    @property
    def enabled(self) -> bool:
        """Whether there is an admin port."""
        return self.listen != OFF


def anonymous_allowed(server: ServerConfig, *, has_credentials: bool) -> bool:
    """Whether callers without credentials are let in as tenant `local`."""
    wanted = server.allow_anonymous if server.allow_anonymous is not None else not has_credentials
    return wanted and (is_loopback(server.listen) or server.allow_anonymous_off_loopback)
