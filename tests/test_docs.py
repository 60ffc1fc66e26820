"""What the pages say about names is what the code says: a name that only one of them knows fails here."""

from __future__ import annotations

import functools

import grpc

from lineside.errors import ERROR_CLASSES
from lineside_service.core.errors import KIND_RULES, ErrorKind
from lineside_service.core.violations import _WORDS, _rule
from tests.support.pages import ROOT, rows_of, ticked
from tests.support.source_scan import Tokens, tokens_of

SERVICE = ROOT / "service" / "lineside_service"
KINDS = {kind.name for kind in ErrorKind}
SCHEMA_KEYWORDS = {
    *_WORDS,
    "additionalProperties",
    "unevaluatedProperties",
    "anyOf",
    "oneOf",
    "propertyNames",
}
NO_TOKENS = {code.name for code in grpc.StatusCode} | {"T", "Q", "MAX_DEPTH"}
"""UPPER_SNAKE texts of the source that no caller sees: status codes, names for the type checker."""


@functools.cache
def tokens() -> Tokens:
    """What the source names."""
    return tokens_of(SERVICE, ("core", "engine", "tools", "edge"))


def _first_column(page: str, *header: str) -> list[str]:
    return [token for row in rows_of(page, *header) for token in ticked(row[header[0]])]


def reasons() -> set[str]:
    """Every reason on the page, those of records included."""
    return set(_first_column("errors.md", "reason", "kind"))


def rules() -> set[str]:
    """Every rule of a field violation on the page."""
    return set(_first_column("errors.md", "rule"))


def decisions() -> set[str]:
    """Every reason of a decision on the page."""
    return {token for row in rows_of("errors.md", "choice", "reason") for token in ticked(row["reason"])}


def test_the_table_of_kinds_is_the_table_in_the_code() -> None:
    """Status, JSON-RPC code, whether it is retried, detail, advice and exception, kind by kind."""
    said = {
        ticked(row["kind"])[0]: (
            ticked(row["gRPC status"])[0],
            int(row["JSON-RPC"]),
            row["retried"] == "yes",
            row["detail"],
            row["next"],
            ticked(row["Python"])[0],
        )
        for row in rows_of("errors.md", "kind")
    }
    classes = {kind.value: cls.__name__ for kind, cls in ERROR_CLASSES.items()}
    assert said == {
        kind.value: (
            rule.code.name,
            rule.jsonrpc,
            rule.retried,
            rule.detail.value,
            ", ".join(advice.value for advice in rule.next),
            classes[kind.value],
        )
        for kind, rule in KIND_RULES.items()
    }


def test_every_reason_in_the_code_is_on_the_page() -> None:
    """A reason, rule or decision that the source names stands in the table of its sort."""
    assert reasons() >= tokens().reasons - {"DEADLINE"}, "DEADLINE only ever is a stopped_by"
    assert rules() >= tokens().rules
    assert rules() >= {_rule(keyword) for keyword in SCHEMA_KEYWORDS}
    assert decisions() >= {reason for _, reason in tokens().decisions}
    assert reasons() | rules() | decisions() >= tokens().constants - NO_TOKENS, "some token took another way"


def test_every_reason_on_the_page_is_in_the_code() -> None:
    """Nothing is documented that the source cannot say; a kind's name is the reason where none is given."""
    assert reasons() | decisions() <= tokens().constants | KINDS
    assert rules() <= tokens().constants | {_rule(keyword) for keyword in SCHEMA_KEYWORDS}
    stops = set(_first_column("errors.md", "stopped_by"))
    assert stops <= reasons() | decisions()


def test_a_reason_has_the_kind_that_the_page_says() -> None:
    """As far as the source gives both as constants, they agree; every kind and outcome exists."""
    said: dict[str, set[str]] = {}
    for row in rows_of("errors.md", "reason", "kind"):
        (reason,), (kind,) = ticked(row["reason"]), ticked(row["kind"])
        assert (reason, kind) not in {(r, k) for r, kinds in said.items() for k in kinds}, "told twice"
        said.setdefault(reason, set()).add(kind)
        assert row["outcome"] in ("NOT_RUN", "DONE", "UNKNOWN", "IN_PROGRESS", "-")
        assert kind.upper() in KINDS
    for reason, kinds in tokens().kinds.items():
        if reason != "DEADLINE":
            assert {kind.lower() for kind in kinds} <= said[reason], reason


def test_choices_of_decisions_are_what_the_code_says() -> None:
    """As far as the source gives choice and reason together."""
    said = {
        (ticked(row["choice"])[0], reason)
        for row in rows_of("errors.md", "choice", "reason")
        for reason in ticked(row["reason"])
    }
    assert {pair for pair in tokens().decisions if pair[0]} <= said
