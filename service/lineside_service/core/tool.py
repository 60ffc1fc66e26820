"""What the operator says about a tool, decided once at registration."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from lineside_service.core.breaker import BreakerRules
from lineside_service.core.retry import RetryRules


class Effect(enum.Enum):
    """What running the tool does to the world (DESIGN: decides cache, preemption, resume, compensation)."""

    SAFE = "safe"
    COMPENSABLE = "compensable"
    FINAL = "final"


class Idempotency(enum.Enum):
    """Whether a call may be sent again after an unknown outcome."""

    NO = "false"
    YES = "true"
    BY_KEY = "by_key"


class ToolKind(enum.Enum):
    """How a call reaches the tool."""

    PYTHON = "python"
    HTTP = "http"
    GRPC = "grpc"
    MCP = "mcp"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """One tool as registered. Durations in seconds, sizes in bytes.

    input_schema, output_schema: canonical JSON text of the schema (2020-12), output None when unchecked.
    timeout_s bounds one attempt. tenants: allow-list, None = visible to all. key_required: a call without
    an idempotency key is refused. key_ttl_s: how long a `by_key` upstream keeps our key from the first send.
    result_limit: largest encoded result. keep_done_s: how long a DONE row is kept after its end.
    contract_hash: SHA-256 hex over everything that changes what a call means (kind, schemas, effect,
    idempotency). reconcile: name of the `safe` tool that tells what became of an unknown call.
    """

    name: str
    kind: ToolKind = ToolKind.PYTHON
    description: str = ""
    input_schema: bytes = b'{"type":"object"}'
    output_schema: bytes | None = None
    effect: Effect = Effect.FINAL
    idempotency: Idempotency = Idempotency.NO
    key_ttl_s: float | None = None
    key_required: bool = False
    tool_class: str = ""
    timeout_s: float = 30.0
    concurrency: int = 8
    phases: bool = False
    retry: RetryRules = field(default_factory=RetryRules)
    breaker: BreakerRules = field(default_factory=BreakerRules)
    tenants: frozenset[str] | None = None
    reconcile: str = ""
    result_limit: int = 4 * 1024 * 1024 - 64 * 1024
    keep_done_s: float = 60.0
    enabled: bool = True
    contract_hash: str = ""

    @property
    def may_resend(self) -> bool:
        """Whether an attempt with an unknown outcome may be followed by another (key_ttl aside)."""
        return self.idempotency is not Idempotency.NO

    @property
    def needs_intent(self) -> bool:
        """Whether a keyed call must be durable before its first attempt starts."""
        return self.effect is not Effect.SAFE
