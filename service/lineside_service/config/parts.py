"""The smaller parts: `[store]`, `[[tokens]]`, `[[certificates]]`, `[telemetry]`."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from lineside_service.config.quantity import bytes_between
from lineside_service.config.section import FilePath, Section

Scope = Literal["call", "read", "settle", "submit", "work", "operate"]
"""call: Dispatch*, ListTools, GetTool, one's own GetCall. read: every Get, List, Watch, Explain. settle:
SettleCall. submit: changes of RunService. work: WorkService. operate: quotas, pauses."""


def _tenant(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", name):
        raise ValueError('must be 1-63 letters, digits, "_", "." or "-", the first a letter or digit')
    return name


Tenant = Annotated[str, AfterValidator(_tenant)]
"""The name of a tenant."""


class StoreConfig(Section):
    """`[store]`: where keyed calls are remembered.

    kind: `sqlite` survives restarts and kill -9; `memory` promises hold while the process lives. path: the
    database file. tenant_bytes: what one tenant may have stored; over it, new keyed calls are refused.
    """

    kind: Literal["sqlite", "memory"] = "sqlite"
    path: FilePath = Field(default=Path("lineside.db"), validate_default=True)
    tenant_bytes: Annotated[int, BeforeValidator(bytes_between(1024, 1024**4))] = 256 * 1024**2


def _sha256(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-fA-F]{64}", value):
        raise ValueError(
            "must be the SHA-256 of the token: 64 hex digits, as `lineside-service token new` prints it"
        )
    return value.lower()


def _moment(value: Any) -> Any:
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)
    return value


def _has_offset(moment: dt.datetime) -> dt.datetime:
    if moment.tzinfo is None:
        raise ValueError("must say its offset from UTC, such as 2027-01-31T00:00:00Z")
    return moment


class TokenConfig(Section):
    """One `[[tokens]]`: a caller's credential, kept as its SHA-256; after `expires` it is refused."""

    tenant: Tenant
    sha256: Annotated[str, BeforeValidator(_sha256)]
    scopes: Annotated[frozenset[Scope], Field(min_length=1)] = frozenset({"call"})
    expires: Annotated[dt.datetime, BeforeValidator(_moment), AfterValidator(_has_offset)] | None = None
    note: str = ""


class CertificateConfig(Section):
    """One `[[certificates]]`: the tenant of callers whose client certificate carries this SAN."""

    san: Annotated[str, Field(min_length=1, max_length=255)]
    tenant: Tenant
    scopes: Annotated[frozenset[Scope], Field(min_length=1)] = frozenset({"call", "read"})


class TelemetryConfig(Section):
    """`[telemetry]`: logs and what they may hold; traces and metrics follow the OTEL_* variables.

    log_format: `auto` = lines for people on a terminal, JSON otherwise. record_arguments: argument and result
    values in spans and logs; off unless you know what your callers send.
    """

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    record_arguments: bool = False
