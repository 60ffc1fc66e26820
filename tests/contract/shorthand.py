"""What an expectation's short forms stand for: the whole answer, field by field.

    {"result": X}            a ToolAnswer with that JSON value in the form of `result_json`, {"struct": X} in
                             that of a Value; source EXECUTED, 1 attempt and no tool_error unless said
    {"source": "VALIDATED"}  a ToolAnswer of a call that was only checked
    {"error": KIND}          an error that the service made: also reason, and where they are not 0 or absent
                             attempts, outcome, source, stopped_by, call_id, trace_id, retry_after,
                             pushback_ms, details and metadata besides those that are always there
    {"malformed": [...]}     kind schema, with these violations, each [FIELD, RULE]
    {"invalid": [...]}       the same, of the tool's schema
    {"no_tool": NAME}        kind not_found, as {"no_call": ID} is
    {"key_reused": MEMBER}   kind key_reused, with the member that differs
    {"bare": CODE}           an error that gRPC itself made: no details; also outcome
    {"item": ID, ...}        a batch's item, with one of the above; {"frame": N, ...}: a frame error
    {"items": [...]}         a whole stream that ended OK, the items in any order; also frame_errors

"${uuid}", "${moment}" and "${duration}" stand for any such value. What an error's kind decides (status,
JSON-RPC code, advice, its detail) stands in the file's table `kinds`, which is the one of docs/errors.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Kinds = Mapping[str, Mapping[str, Any]]
Told = Mapping[str, Any]
ABSENT = {"$absent": True}
ANY = {"$any": True}
MAYBE = {"$maybe": True}
TEXT = {"$regex": r"(?s).+"}
NAMED = {
    "${uuid}": {"$regex": "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"},
    "${moment}": {"$regex": r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"},
    "${duration}": {"$range": [0, 600]},
}
UUID, MOMENT, DURATION = NAMED["${uuid}"], NAMED["${moment}"], NAMED["${duration}"]
TRACE_ID = {"$regex": "[0-9a-f]{32}"}
_TYPES = "type.googleapis.com/"


@dataclass(frozen=True, slots=True)
class Shorthand:
    """Writes expectations out.

    kinds: the table of kinds. by_stub: no client's own error type need tell of it. is_read: it is about no
    call's work, so that no outcome is stated.
    """

    kinds: Kinds
    by_stub: bool = False
    is_read: bool = False

    def want(self, told: Any) -> Any:
        """The expectation without short forms."""
        match told:
            case str():
                return NAMED.get(told, told)
            case list():
                return [self.want(part) for part in told]
            case {"$json": _} | {"$value": _}:
                return told
            case {"item": item_id, **rest}:
                return {"item_id": item_id, **self._in_stream(rest)}
            case {"frame": int() as frame, **rest}:
                return {"frame": frame, **self._in_stream(rest)}
            case {"items": items} if "code" not in told:
                return self._stream(items, told.get("frame_errors", []))
            case {"result": _} | {"struct": _} | {"source": "VALIDATED"}:
                return {"code": "OK", "response": tool_answer(told)}
            case dict():
                return self._ended(told) or {name: self.want(part) for name, part in told.items()}
        return told

    def _ended(self, told: Told) -> dict[str, Any] | None:
        match told:
            case {"error": str() as kind, "reason": _}:
                return self._failure(kind, told)
            case {"malformed": faults}:
                bad = _bad_request(faults)
                return self._failure("schema", {"reason": "REQUEST_MALFORMED", "details": [bad]})
            case {"invalid": faults}:
                invalid = {"reason": "ARGUMENTS_INVALID", "details": [_bad_request(faults)]}
                return self._failure("schema", {**invalid, "metadata": {"tool": MAYBE}})
            case {"no_tool": name}:
                return self._failure("not_found", _not_found("TOOL_NOT_FOUND", "tool", name))
            case {"no_call": call_id}:
                return self._failure("not_found", _not_found("CALL_NOT_FOUND", "call", call_id))
            case {"key_reused": member}:
                details = [{"@type": "PreconditionFailure", "violations": [dict.fromkeys(_VIOLATION, ANY)]}]
                reused = {"reason": "KEY_REUSED", "metadata": {"differing": member}, "details": details}
                return self._failure(
                    "key_reused",
                    {"call_id": UUID, "first_started_time": {"$maybe": MOMENT}, **told, **reused},
                )
            case {"bare": code}:
                return _bare(code, told)
        return None

    def _in_stream(self, told: Any) -> dict[str, Any]:
        ended = self.want(told)
        if ended["code"] == "OK":
            return {"response": ended["response"]}
        return {"error": {**ended, "pushback_ms": ABSENT}}

    def _stream(self, items: Any, frame_errors: list[Any]) -> dict[str, Any]:
        refused = [self.want(error) for error in frame_errors]
        return {
            "code": "OK",
            "message": {"$maybe": ""},
            "items": {"$unordered": self.want(items)},
            "frame_errors": {"$unordered": refused} if refused else {"$maybe": []},
        }

    def _failure(self, kind: str, told: Told) -> dict[str, Any]:
        row = self.kinds[kind]
        attempts = told.get("attempts", 0)
        retry_after = told.get("retry_after", ABSENT)
        envelope = self._envelope(kind, told)
        details = [_error_info(kind, row, told), envelope, *map(_typed, told.get("details", []))]
        if retry_after != ABSENT:
            details.append({"@type": _TYPES + "google.rpc.RetryInfo", "retry_delay": retry_after})
        elif kind != "transient":  # which has one only where a hint is known
            assert row["detail"] != "RetryInfo", told
        reading = {
            "kind": envelope["kind"],
            "outcome": envelope["outcome"],
            "attempts": attempts or {"$maybe": 0},
        }
        if self.by_stub:
            reading = {name: MAYBE if said == ABSENT else {"$maybe": said} for name, said in reading.items()}
        return {
            "code": row["code"],
            "message": TEXT,
            "details": {"$unordered": details},
            "pushback_ms": told.get("pushback_ms", -1 if row["code"] == "UNAVAILABLE" else ABSENT),
            **reading,
        }

    def _envelope(self, kind: str, told: Told) -> dict[str, Any]:
        row, attempts = self.kinds[kind], told.get("attempts", 0)
        return {
            "@type": _TYPES + "lineside.v1.DispatchError",
            "kind": "ERROR_KIND_" + kind.upper(),
            "message": told.get("message", TEXT),
            "jsonrpc_code": row["jsonrpc"],
            "outcome": ABSENT if self.is_read else "OUTCOME_" + told.get("outcome", "NOT_RUN"),
            "attempts": attempts or ABSENT,
            "retry_after": told.get("retry_after", ABSENT),
            "call_id": told.get("call_id", UUID if attempts else {"$maybe": UUID}),
            "source": "SOURCE_" + told["source"] if "source" in told else MAYBE,
            "first_started_time": self.want(told.get("first_started_time", MOMENT if attempts else ABSENT)),
            "trace_id": told.get("trace_id", {"$maybe": TRACE_ID}),
            "next": ["NEXT_" + word.upper() for word in row["next"]],
        }


_VIOLATION = ("type", "subject", "description")


def tool_answer(told: Told) -> dict[str, Any]:
    """A whole ToolAnswer."""
    sources = told.get("source", "EXECUTED")
    sources = [sources] if isinstance(sources, str) else sources
    ran = sources != ["VALIDATED"]
    is_new = sources == ["EXECUTED"]
    answer: dict[str, Any] = {
        "call_id": told.get("call_id", UUID) if ran else {"$maybe": UUID},
        "source": {"$one_of": [f"SOURCE_{source}" for source in sources]},
        "trace_id": told.get("trace_id", TRACE_ID if is_new else {"$maybe": TRACE_ID}),
        "queue_time": DURATION if ran else ABSENT,
        "run_time": DURATION if ran else ABSENT,
        "first_started_time": MOMENT if ran else ABSENT,
        "tool_error": told.get("tool_error", ABSENT),
        "attempts": told.get("attempts", 1) if ran else ABSENT,
    }
    if "result" in told:
        answer["result_json"] = {"$json": told["result"]}
    if "struct" in told:
        answer["result"] = {"$value": told["struct"]}
    return answer


def _bare(code: str, told: Told) -> dict[str, Any]:
    outcome = {"outcome": "OUTCOME_" + told["outcome"]} if "outcome" in told else {}
    unsaid = dict.fromkeys(("message", "kind", "outcome", "attempts"), MAYBE)
    return {"code": code, "details": {"$maybe": []}, **unsaid, **outcome}


def _error_info(kind: str, row: Told, told: Told) -> dict[str, Any]:
    metadata = {
        "kind": kind,
        "attempts": str(told.get("attempts", 0)),
        "stopped_by": told.get("stopped_by", ""),
        "next": ",".join(row["next"]),
        "tool": MAYBE,
        **told.get("metadata", {}),
    }
    type_url = _TYPES + "google.rpc.ErrorInfo"
    return {"@type": type_url, "reason": told["reason"], "domain": "lineside", "metadata": metadata}


def _bad_request(faults: list[list[Any]]) -> dict[str, Any]:
    told = [{"field": field or MAYBE, "description": TEXT, "reason": rule} for field, rule in faults]
    return {"@type": "BadRequest", "field_violations": {"$unordered": told}}


def _not_found(reason: str, what: str, name: Any) -> dict[str, Any]:
    resource = {"@type": "ResourceInfo", "resource_type": what, "resource_name": name, "description": TEXT}
    return {"reason": reason, "metadata": {what: name}, "details": [resource]}


def _typed(detail: Told) -> dict[str, Any]:
    return {**detail, "@type": _TYPES + "google.rpc." + detail["@type"]}
