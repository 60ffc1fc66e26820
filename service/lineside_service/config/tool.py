"""One `[tools."name"]`: what the operator says about a tool."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from lineside_service.config.parts import Tenant
from lineside_service.config.quantity import bytes_between, seconds_between
from lineside_service.config.section import Section, directory_of
from lineside_service.core.breaker import BreakerRules
from lineside_service.core.deadline import MIN_ATTEMPT_S
from lineside_service.core.retry import RetryRules
from lineside_service.core.tool import Effect, Idempotency

MAX_RESULT = 4 * 1024**2 - 64 * 1024
"""Largest result in bytes: an answer travels in a frame of less than 4 MiB."""
MAX_SCHEMA_FILE = 1024**2
"""Bytes of a schema's file, white space included; more is not read."""


class RetryConfig(Section):
    """`retry`: how failed attempts are repeated.

    preset: `local` (0.1 s x 4^n, at most 30 s) for work in this process or next door, `remote` (1 s x 2^n, at
    most 32 s) for servers shared with others. max_attempts counts the first too. budget: retries of the whole
    tool as a share of its calls, over budget_window seconds, but budget_floor at least. initial, cap: replace
    the preset's first pause and its longest, in seconds.
    """

    preset: Literal["local", "remote"] = "local"
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    budget: Annotated[float, Field(ge=0, le=100)] = 0.2
    budget_floor: Annotated[int, Field(ge=0, le=1_000_000)] = 3
    budget_window: Annotated[float, BeforeValidator(seconds_between(0.1, 3600))] = 10.0
    initial: Annotated[float, BeforeValidator(seconds_between(0, 600))] | None = None
    cap: Annotated[float, BeforeValidator(seconds_between(0, 600))] | None = None

    def rules(self) -> RetryRules:
        """The same as core takes it."""
        return RetryRules(
            preset=self.preset,
            max_attempts=self.max_attempts,
            budget_ratio=self.budget,
            budget_floor=self.budget_floor,
            budget_window_s=self.budget_window,
            initial_s=self.initial,
            cap_s=self.cap,
        )


class BreakerConfig(Section):
    """`breaker`: when a tool that keeps failing is refused at once, and for how long.

    failure_ratio of at least min_attempts within window seconds opens it; after open seconds, probes attempts
    at once may try. enabled = false: it never opens.
    """

    enabled: bool = True
    failure_ratio: Annotated[float, Field(ge=0.001, le=1)] = 0.5
    min_attempts: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    window: Annotated[float, BeforeValidator(seconds_between(0.1, 3600))] = 10.0
    open: Annotated[float, BeforeValidator(seconds_between(0.001, 3600))] = 5.0
    probes: Annotated[int, Field(ge=1, le=1000)] = 1

    def rules(self) -> BreakerRules:
        """The same as core takes it."""
        return BreakerRules(
            enabled=self.enabled,
            failure_ratio=self.failure_ratio,
            min_attempts=self.min_attempts,
            window_s=self.window,
            open_s=self.open,
            probes=self.probes,
        )


def _kind(value: Any) -> Any:
    if value in ("http", "grpc", "mcp"):
        raise ValueError('is not in this version; "python" is')
    return value


def _target(value: str) -> str:
    if not re.fullmatch(r"[^\W\d][\w.]*:[^\W\d][\w.]*", value):
        raise ValueError('must be "module:function", such as "tools:book_flight"')
    return value


def _idempotent(value: Any) -> Any:
    for written, meant in ((True, Idempotency.YES), (False, Idempotency.NO)):
        if value is written or value == str(written).lower():
            return meant
    if value == "by_key" or isinstance(value, Idempotency):
        return Idempotency(value)
    raise ValueError('must be false, true or "by_key"')


def _no_json(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _schema(value: Any, info: ValidationInfo) -> Any:
    """A schema given inline, or `{ file = "x.json" }` beside the config file."""
    if not isinstance(value, Mapping):
        raise ValueError('must be a table: the JSON Schema itself, or { file = "schema.json" }')  # noqa: TRY004
    if set(value) != {"file"}:
        return dict(value)
    path = directory_of(info) / str(value["file"])
    try:
        with path.open("rb") as file:
            text = file.read(MAX_SCHEMA_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ValueError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(text) > MAX_SCHEMA_FILE:
        raise ValueError(f"{path} has more than {MAX_SCHEMA_FILE} bytes, the limit of a schema's file")
    try:
        read = json.loads(text, parse_constant=_no_json)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} nests too deep for a schema") from None
    if not isinstance(read, dict):
        raise ValueError(f"{path} must hold a JSON object, the schema")  # noqa: TRY004
    return read


Schema = Annotated[dict[str, Any], BeforeValidator(_schema)]
Timeout = Annotated[float, BeforeValidator(seconds_between(MIN_ATTEMPT_S, 600))]


class ToolConfig(Section):
    """One tool. Durations in seconds; the words are those of the documentation's tool page.

    target: `module:function`, looked for beside the config file first. input_schema: from the function's type
    hints when absent. timeout bounds one attempt. idempotent None: as `effect` says. key: `required` refuses
    calls without an idempotency key. keep_done: how long a finished keyed call is remembered after its end.
    key_ttl: after so long from the first send no re-send starts; how long one is on its way is not in it.
    reconcile: the `safe` tool that tells what became of an unknown call. tenants: who may see it, None = all.
    """

    kind: Annotated[Literal["python"], BeforeValidator(_kind)] = "python"
    target: Annotated[str, AfterValidator(_target)]
    description: str = ""
    input_schema: Schema | None = None
    output_schema: Schema | None = None
    timeout: Timeout = 30.0
    phases: bool = False
    effect: Effect = Effect.FINAL
    idempotent: Annotated[Idempotency, BeforeValidator(_idempotent)] | None = None
    key_ttl: Annotated[float, BeforeValidator(seconds_between(1, 365 * 86_400))] | None = None
    key: Literal["optional", "required"] = "optional"
    tool_class: str = Field(default="", alias="class", max_length=128)
    concurrency: Annotated[int, Field(ge=1, le=100_000)] = 8
    retry: RetryConfig = RetryConfig()
    breaker: BreakerConfig = BreakerConfig()
    reconcile: str = ""
    tenants: frozenset[Tenant] | None = None
    keep_done: Annotated[float, BeforeValidator(seconds_between(60, 365 * 86_400))] = 60.0
    result_limit: Annotated[int, BeforeValidator(bytes_between(1, MAX_RESULT))] = MAX_RESULT
    enabled: bool = True

    @property
    def idempotency(self) -> Idempotency:
        """Whether a call may be sent again after an unknown outcome: as said, else as `effect` implies."""
        if self.idempotent is not None:
            return self.idempotent
        return Idempotency.YES if self.effect is Effect.SAFE else Idempotency.NO

    @model_validator(mode="after")
    def _consistent(self) -> ToolConfig:
        if self.effect is Effect.SAFE and self.idempotent is Idempotency.NO:
            raise ValueError(
                'effect = "safe" implies idempotent: leave idempotent out, or choose another effect'
            )
        by_key = self.idempotent is Idempotency.BY_KEY
        if by_key and self.key_ttl is None:
            raise ValueError(
                'idempotent = "by_key" needs key_ttl: how long the upstream remembers a key, such as "24h"'
            )
        if self.key_ttl is not None and not by_key:
            raise ValueError('key_ttl has a meaning only with idempotent = "by_key"')
        return self
