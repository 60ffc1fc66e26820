"""Names of OpenTelemetry's semantic conventions that the edge uses, and its own beside them.

RPC conventions as of v1.44.0. The status attribute was renamed to `rpc.status_code` right after that release:
RPC_STATUS is the one place to follow it.
"""

from __future__ import annotations

from typing import Final

RPC_SYSTEM: Final = "rpc.system.name"
RPC_METHOD: Final = "rpc.method"
RPC_STATUS: Final = "rpc.response.status_code"
ERROR_TYPE: Final = "error.type"
PEER_ADDRESS: Final = "network.peer.address"
PEER_PORT: Final = "network.peer.port"
GRPC: Final = "grpc"

CALL_DURATION: Final = "rpc.server.call.duration"
CALL_DURATION_BOUNDS_S: Final = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip

SERVER_ERRORS: Final = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
"""Status codes that make a SERVER span an error; the others are the caller's own doing."""

TOOL_NAME: Final = "gen_ai.tool.name"
CALL_ID: Final = "gen_ai.tool.call.id"
SOURCE: Final = "dispatch.source"
KIND: Final = "dispatch.kind"
REASON: Final = "dispatch.reason"
STOPPED_BY: Final = "dispatch.stopped_by"
ITEM_ID: Final = "dispatch.item.id"
PREVIOUS_ATTEMPTS: Final = "dispatch.previous_rpc_attempts"
