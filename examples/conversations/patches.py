"""Every place where the adapter departs from the corpus as published, each with its reason.

The table is the whole list. Rows with `schema` are applied from here; each other is one place in the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["PATCHES", "Patch", "schema_patches"]


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One departure: `where` it applies, what is done instead (`change`) and the `reason`.

    `schema` holds JSON Schema members that are merged into the schema of the property `where` names
    (`<prefix>.<method>.<property>`).
    """

    where: str
    change: str
    reason: str
    schema: Mapping[str, object] | None = None


PATCHES: Mapping[str, Patch] = MappingProxyType(
    {
        "positional-arguments": Patch(
            where="40 calls of the ground truth",
            change="positional arguments are named by the method's signature",
            reason="a tool call carries its arguments by name",
        ),
        "schema-types": Patch(
            where="all published schemas",
            change="dict, float, tuple and any become object, number, array and no type",
            reason="the published names are not JSON Schema types",
        ),
        "none-defaults": Patch(
            where="9 published defaults that are the string 'None'",
            change="the default is left out",
            reason="Python's None was printed; absent is what it means",
        ),
        "ticket-id": Patch(
            where="tickets.close_ticket.ticket_id",
            change="strings are accepted beside integers",
            reason="one conversation's own ticket has the id 'ticket_001', and a ground-truth call closes it",
            schema=MappingProxyType({"type": ["integer", "string"]}),
        ),
        "fresh-defaults": Patch(
            where="posting.post_tweet, tags and mentions",
            change="defaults are copied for each call, like every argument",
            reason="its default lists are shared by the whole process and posting.mention extends them: "
            "conversations would write into each other",
        ),
        "copied-results": Patch(
            where="all results",
            change="a result is copied in the same step as its effect",
            reason="several methods return their own attributes, which later calls change",
        ),
        "numbers-of-mpmath": Patch(
            where="maths.logarithm, maths.square_root",
            change="mpf and Decimal become floats; a number that is not finite or not real is a tool error",
            reason="JSON has no other numbers; the published schema says float",
        ),
        "process-wide-precision": Patch(
            where="maths.logarithm, maths.square_root",
            change="the precision of mpmath and decimal is restored after each call",
            reason="both methods leave it changed for the whole process, so they would not be read-only",
        ),
        "exceptions": Patch(
            where="all methods",
            change="an exception of a method is a tool error with its text",
            reason="the benchmark's executor hands the text to the agent as an answer; it is one",
        ),
    }
)


def schema_patches() -> dict[str, Mapping[str, object]]:
    """Return the schema members to merge, by `<prefix>.<method>.<property>`."""
    return {patch.where: patch.schema for patch in PATCHES.values() if patch.schema is not None}
