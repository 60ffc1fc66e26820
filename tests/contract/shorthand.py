"""What an expectation's short forms stand for: the whole answer, field by field.

    {"answer": {...}}   a ToolAnswer; `result` is the JSON value, in the form of `result_json`; `struct` in
                        that of a Value. Source EXECUTED and 1 attempt unless said; no tool_error unless said
    {"error": {...}}    an error that the service made: kind, reason, and where it is not 0 or absent
                        attempts, outcome, source, stopped_by, call_id, retry_after, details (besides the two
                        that are always there), metadata (besides its four members), pushback_ms
    {"bare": "CODE"}    an error that gRPC itself made: no details
    {"item": ID, ...}   a batch's item, with one of these three

What an error's kind decides (status, JSON-RPC code, advice, details) stands in the file's table `kinds`,
which is the one of docs/errors.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Kinds = Mapping[str, Mapping[str, Any]]
ABSENT = {"$absent": True}
ANY = {"$any": True}
UUID = {"$regex": "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"}
TRACE_ID = {"$regex": "[0-9a-f]{32}"}
MOMENT = {"$regex": r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"}
DURATION = {"$range": [0, 600]}
_TYPES = "type.googleapis.com/"


def want_of(told: Any, kinds: Kinds, *, by_stub: bool) -> Any:
    """The expectation without short forms. by_stub: no client's own error type need tell of it."""
    match told:
        case list():
            return [want_of(part, kinds, by_stub=by_stub) for part in told]
        case {"item": item_id, **rest}:
            ended = want_of(rest, kinds, by_stub=by_stub)
            if ended["code"] == "OK":
                return {"item_id": item_id, "response": ended["response"]}
            return {"item_id": item_id, "error": {**ended, "pushback_ms": ABSENT}}
        case {"answer": answer}:
            return {"code": "OK", "response": tool_answer(answer)}
        case {"error": error}:
            return failure(error, kinds, by_stub=by_stub)
        case {"bare": code}:
            return bare(code, told)
        case dict():
            return {name: want_of(part, kinds, by_stub=by_stub) for name, part in told.items()}
    return told


def bare(code: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """A whole ending that gRPC itself made; clients may say what they make of it."""
    outcome = {"outcome": "OUTCOME_" + told["outcome"]} if "outcome" in told else {}
    unsaid = {name: {"$maybe": True} for name in ("kind", "outcome", "attempts")}
    return {"code": code, "message": {"$maybe": True}, "details": {"$maybe": []}, **unsaid, **outcome}


def tool_answer(told: Mapping[str, Any]) -> dict[str, Any]:
    """A whole ToolAnswer."""
    attempts = told.get("attempts", 1)
    ran, source = attempts != 0, told.get("source", "EXECUTED")
    answer: dict[str, Any] = {
        "call_id": told.get("call_id", UUID),
        "source": f"SOURCE_{source}",
        "trace_id": TRACE_ID if source in ("EXECUTED", "JOINED") else {"$maybe": TRACE_ID},
        "queue_time": told.get("queue_time", DURATION) if ran else ABSENT,
        "run_time": told.get("run_time", DURATION) if ran else ABSENT,
        "first_started_time": MOMENT if ran else ABSENT,
        "tool_error": told.get("tool_error", ABSENT),
    }
    if ran:
        answer["attempts"] = attempts
    if "result" in told:
        answer["result_json"] = {"$json": told["result"]}
    if "struct" in told:
        answer["result"] = {"$value": told["struct"]}
    return answer


def failure(told: Mapping[str, Any], kinds: Kinds, *, by_stub: bool) -> dict[str, Any]:
    """A whole ending that the service made."""
    kind, row = told["kind"], kinds[told["kind"]]
    attempts = told.get("attempts", 0)
    outcome = told.get("outcome", "NOT_RUN")
    retry_after = told.get("retry_after", ABSENT)
    envelope: dict[str, Any] = {
        "@type": _TYPES + "lineside.v1.DispatchError",
        "kind": "ERROR_KIND_" + kind.upper(),
        "message": {"$regex": r"(?s).+"},
        "jsonrpc_code": row["jsonrpc"],
        "outcome": ABSENT if outcome is None else "OUTCOME_" + outcome,
        "attempts": attempts or ABSENT,
        "retry_after": retry_after,
        "call_id": told.get("call_id", UUID if attempts else {"$maybe": True}),
        "source": "SOURCE_" + told["source"] if "source" in told else {"$maybe": True},
        "first_started_time": MOMENT if attempts else ABSENT,
        "trace_id": told.get("trace_id", {"$maybe": True}),
        "next": ["NEXT_" + word.upper() for word in row["next"]],
    }
    info = {
        "@type": _TYPES + "google.rpc.ErrorInfo",
        "reason": told["reason"],
        "domain": "lineside",
        "metadata": {
            "kind": kind,
            "attempts": str(attempts),
            "stopped_by": told.get("stopped_by", ""),
            "next": ",".join(row["next"]),
            **told.get("metadata", {}),
        },
    }
    details = [info, envelope, *map(_typed, told.get("details", []))]
    if retry_after != ABSENT:
        details.append({"@type": _TYPES + "google.rpc.RetryInfo", "retry_delay": retry_after})
    if row["detail"] not in ("", "RetryInfo"):
        assert any(detail["@type"].endswith(row["detail"]) for detail in details), (
            f"{kind}: no {row['detail']}"
        )
    reading = {
        "kind": envelope["kind"],
        "outcome": envelope["outcome"],
        "attempts": attempts or {"$maybe": 0},
    }
    if by_stub:
        reading = {name: {"$maybe": said} for name, said in reading.items()}
    return {
        "code": row["code"],
        "message": {"$regex": r"(?s).+"},
        "details": {"$unordered": details},
        "pushback_ms": told.get("pushback_ms", -1 if row["code"] == "UNAVAILABLE" else ABSENT),
        **reading,
    }


def _typed(detail: Mapping[str, Any]) -> dict[str, Any]:
    return {**detail, "@type": _TYPES + "google.rpc." + detail["@type"]}
