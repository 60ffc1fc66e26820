"""The edge's own refusals, before or beside the road."""

from __future__ import annotations

from lineside_service.core.errors import ErrorKind, Failure, Outcome, Violation


def malformed(*violations: Violation) -> Failure:
    """Request fields that break their bounds; the first is told in the message, all in BadRequest."""
    first = violations[0]
    where = f"`{first.field}`: " if first.field else "the arguments: "
    more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
    return Failure(
        kind=ErrorKind.SCHEMA,
        message=f"{where}{first.message}{more}",
        reason="REQUEST_MALFORMED",
        violations=violations,
    )


def bad_field(field: str, message: str, rule: str) -> Failure:
    """One request field that breaks its bound."""
    return malformed(Violation(field=field, message=message, rule=rule))


def undecodable(message_name: str, max_depth: int) -> Failure:
    """Bytes that are not the request's message."""
    return bad_field(
        "",
        f"the request cannot be decoded: not a {message_name}, text that is not UTF-8, or a Struct nested "
        f"deeper than {max_depth} levels",
        "UNDECODABLE",
    )


def too_many_fields(field: str, most: int) -> Failure:
    """A message of so many fields that what parsing drops is not looked for among them."""
    return bad_field(field, f"more than {most} fields in one message, the same ones repeated", "UNDECODABLE")


def field_unbuilt(field: str) -> Failure:
    """A field of the contract that this version does not act on; ignoring it would break a promise."""
    return Failure(
        kind=ErrorKind.UNIMPLEMENTED,
        message=f"`{field}` is not implemented in this version; leave it unset",
        reason="FIELD_UNIMPLEMENTED",
        facts={"field": field},
    )


def method_unbuilt(method: str) -> Failure:
    """A method of the contract that this version does not have."""
    return Failure(
        kind=ErrorKind.UNIMPLEMENTED,
        message=f"`{method}` is not implemented in this version",
        reason="METHOD_UNIMPLEMENTED",
        facts={"method": method},
    )


def unknown_tool(name: str, near: str | None) -> Failure:
    """No such tool for this tenant: unknown, switched off and hidden read the same."""
    hint = f"; did you mean `{near}`?" if near else "; ListTools shows what there is"
    return Failure(
        kind=ErrorKind.NOT_FOUND,
        message=f"no tool `{name}`{hint}",
        reason="TOOL_NOT_FOUND",
        facts={"tool": name},
    )


def fault() -> Failure:
    """Something in the service broke; the text is opaque, the log has the place."""
    return Failure(
        kind=ErrorKind.INTERNAL,
        message="internal error; the service's log has it under this trace id",
        reason="SERVICE_FAULT",
        outcome=Outcome.UNKNOWN,
    )


def unauthenticated(message: str, reason: str) -> Failure:
    """No identity could be established."""
    return Failure(kind=ErrorKind.UNAUTHENTICATED, message=message, reason=reason)


def denied(message: str, reason: str) -> Failure:
    """The identity is known and may not do this."""
    return Failure(kind=ErrorKind.PERMISSION_DENIED, message=message, reason=reason)


def draining() -> Failure:
    """The service is going down; what was not begun may come again elsewhere."""
    return Failure(
        kind=ErrorKind.UNAVAILABLE,
        message="the service is shutting down; another replica can take this",
        reason="DRAINING",
        retry_after_s=0.0,
        pushback_safe=True,
    )


def caller_left() -> Failure:
    """The stream was reset; only the item's span ever sees this."""
    return Failure(kind=ErrorKind.CANCELLED, message="the caller left")


def too_many_rpcs(limit: int) -> Failure:
    """The server carries as many RPCs as it is allowed to."""
    return Failure(
        kind=ErrorKind.OVERLOADED,
        message=f"the server already carries {limit} RPCs, its bound",
        reason="TOO_MANY_RPCS",
        retry_after_s=1.0,
        facts={"limit": str(limit)},
    )


def store_unavailable() -> Failure:
    """A read of the ledger found its store gone."""
    return Failure(
        kind=ErrorKind.UNAVAILABLE,
        message="the ledger's store does not answer",
        reason="STORE_UNAVAILABLE",
        retry_after_s=1.0,
        pushback_safe=True,
    )
