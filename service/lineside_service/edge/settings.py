"""How the server listens and what it bounds; main fills it from the config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KEEPALIVE_MIN_PING_S: Final = 10.0
"""Clients may ping this often without data (gRPC's own default of 300 s answers them with GOAWAY)."""
MAX_PENDING: Final = 4_000
"""RPCs that wait until we look at them: 2 s of work at the 2,000 calls a second that two cores carried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM texts. client_ca: who signs callers' certificates; with it, a caller without one is refused in the
    handshake already (gRPC for Python cannot merely ask); None = no certificates.
    """

    certificate: bytes
    key: bytes
    client_ca: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """listen: `host:port` or `unix:path`, port 0 = any free one.

    max_rpcs: concurrent Dispatch and DispatchBatch RPCs (health and control calls are exempt). max_pending:
    RPCs that may have come before we have looked at them; gRPC cancels the others, without a word. It bounds
    a wait: in a flood beyond what the processor carries, each RPC waits for this many others. max_receive:
    largest message that gRPC takes, bytes. connection_age_s: after it a connection is asked to go elsewhere,
    None = never. reflection_open: without a credential, for servers on loopback.
    """

    listen: str = "127.0.0.1:50051"
    tls: TlsFiles | None = None
    max_rpcs: int = 10_000
    max_pending: int = MAX_PENDING
    max_receive: int = 16 * 1024 * 1024
    max_send: int = 4 * 1024 * 1024
    max_metadata: int = 16 * 1024
    connection_age_s: float | None = None
    connection_age_grace_s: float = 660.0
    reflection: bool = True
    reflection_open: bool = True

    @property
    def channel_options(self) -> list[tuple[str, int]]:
        """GRPC's channel arguments for the server."""
        options = [
            ("grpc.so_reuseport", 0),  # a second server on the port must fail, not share it silently
            ("grpc.max_receive_message_length", self.max_receive),
            ("grpc.max_send_message_length", self.max_send),
            ("grpc.max_metadata_size", self.max_metadata),
            ("grpc.absolute_max_metadata_size", self.max_metadata),
            ("grpc.http2.min_ping_interval_without_data_ms", int(KEEPALIVE_MIN_PING_S * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.server.max_pending_requests", self.max_pending),
            ("grpc.server.max_pending_requests_hard_limit", self.max_pending),
        ]
        if self.connection_age_s is not None:
            options.append(("grpc.max_connection_age_ms", int(self.connection_age_s * 1000)))
            options.append(("grpc.max_connection_age_grace_ms", int(self.connection_age_grace_s * 1000)))
        return options
