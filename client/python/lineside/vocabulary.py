"""The words of the contract as string enums: each value is the word that JSON output and metadata use too."""

from __future__ import annotations

from enum import StrEnum


class ErrorKind(StrEnum):
    """Why a call got no answer; one exception class in `lineside.errors` for each."""

    SCHEMA = "schema"
    NOT_FOUND = "not_found"
    TIMEOUT = "timeout"
    TRANSIENT = "transient"
    CIRCUIT_OPEN = "circuit_open"
    UNAVAILABLE = "unavailable"
    OVERLOADED = "overloaded"
    QUOTA_EXCEEDED = "quota_exceeded"
    BUDGET_EXCEEDED = "budget_exceeded"
    BAD_OUTPUT = "bad_output"
    INTERNAL = "internal"
    KEY_REUSED = "key_reused"
    OUTCOME_UNKNOWN = "outcome_unknown"
    STEP_DIVERGED = "step_diverged"
    CONFLICT = "conflict"
    UNIMPLEMENTED = "unimplemented"
    LEASE_LOST = "lease_lost"
    CANCELLED = "cancelled"
    UNAUTHENTICATED = "unauthenticated"
    PERMISSION_DENIED = "permission_denied"


class Outcome(StrEnum):
    """How far the work itself got: the fact that decides whether sending it again is safe."""

    NOT_RUN = "not_run"
    DONE = "done"
    UNKNOWN = "unknown"
    IN_PROGRESS = "in_progress"


class Next(StrEnum):
    """Which of its handlers an agent's planner should take up after an error."""

    ON_ERROR = "on_error"
    REPLAN = "replan"
    ON_BUDGET_EXCEEDED = "on_budget_exceeded"
    STOP = "stop"


class Source(StrEnum):
    """Where an answer came from."""

    EXECUTED = "executed"
    JOINED = "joined"
    REPLAYED = "replayed"
    CACHED = "cached"
    COALESCED = "coalesced"
    VALIDATED = "validated"


class CallState(StrEnum):
    """Where the work of a recorded call stands."""

    RUNNING = "running"
    DONE = "done"
    UNKNOWN = "unknown"
    NOT_RUN = "not_run"


class SettledBy(StrEnum):
    """Who or what settled an unknown outcome."""

    LATE_COMPLETION = "late_completion"
    RECONCILE = "reconcile"
    PERSON = "person"


class ToolKind(StrEnum):
    """How a call reaches a tool."""

    PYTHON = "python"
    HTTP = "http"
    GRPC = "grpc"
    MCP = "mcp"


class Effect(StrEnum):
    """What a call of a tool leaves behind."""

    SAFE = "safe"
    COMPENSABLE = "compensable"
    FINAL = "final"


class Idempotency(StrEnum):
    """Whether a call may be sent again when nobody knows if it took effect."""

    NOT_IDEMPOTENT = "not_idempotent"
    IDEMPOTENT = "idempotent"
    BY_KEY = "by_key"


class BreakerState(StrEnum):
    """What a tool's breaker does with the next attempt."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
