from __future__ import annotations

import re

import jsonschema_rs
import pytest

from conversations.corpus import Call
from conversations.faults import broken_arguments
from conversations.patches import PATCHES, Patch, schema_patches
from conversations.schemas import ToolSchema, tool_schemas

Validators = dict[str, jsonschema_rs.Draft202012Validator]


def _compiled(schemas: dict[str, ToolSchema]) -> Validators:
    return {
        name: jsonschema_rs.Draft202012Validator(schema.input_schema, offline=True)
        for name, schema in schemas.items()
    }


@pytest.fixture(scope="module")
def validators(schemas: dict[str, ToolSchema]) -> Validators:
    """All schemas, compiled."""
    return _compiled(schemas)


def test_every_method_becomes_a_tool_with_a_valid_name(schemas: dict[str, ToolSchema]) -> None:
    """128 published methods, each under a name that the tool-name pattern takes."""
    assert len(schemas) == 128
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name) for name in schemas)


def test_every_call_fits_its_schema(validators: Validators, calls: list[Call]) -> None:
    """All 1,142 ground-truth calls are valid against the converted schemas."""
    refused = [call.key for call in calls if not validators[call.tool].is_valid(call.wire_arguments)]
    assert refused == []


def test_the_one_schema_patch_is_needed(monkeypatch: pytest.MonkeyPatch, calls: list[Call]) -> None:
    """Without it exactly one published call breaks its own schema."""
    assert list(schema_patches()) == ["tickets.close_ticket.ticket_id"]
    without: dict[str, Patch] = {name: patch for name, patch in PATCHES.items() if patch.schema is None}
    monkeypatch.setattr("conversations.patches.PATCHES", without)
    validators = _compiled(tool_schemas())
    refused = [call.key for call in calls if not validators[call.tool].is_valid(call.wire_arguments)]
    assert refused == ["multi_turn_base_173:3:0"]


def test_broken_arguments_are_refused(
    validators: Validators, schemas: dict[str, ToolSchema], calls: list[Call]
) -> None:
    """A required argument taken away, or an unknown one added, breaks every call."""
    for call in calls:
        broken = broken_arguments(schemas[call.tool].input_schema, call.wire_arguments)
        assert not validators[call.tool].is_valid(broken), call.key
        assert broken["conversation"] == call.conversation


def test_every_patch_says_why() -> None:
    """A departure from the published corpus has a place, a change and a reason."""
    assert all(patch.where and patch.change and patch.reason for patch in PATCHES.values())
