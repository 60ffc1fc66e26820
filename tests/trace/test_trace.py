"""The story of `make trace` told to a real service, what a real Jaeger has of it, and that faults show."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest
import pytest_asyncio

from tests.load.sides import ROOT
from tests.support.toolchain import need
from tests.trace.backend import Span
from tests.trace.checks import SPANS, faults
from tests.trace.story import Told
from tests.trace.trace import traced
from tests.trace.tree import drawn

BUILD_S = 1_800
"""Jaeger takes 5 minutes on two undisturbed cores, once."""


@pytest.fixture(scope="module")
def tools() -> None:
    """Jaeger and the Go caller are there, built if need be; without Go this is not tested, and says so."""
    need("go", "the story in Jaeger")
    command = [sys.executable, str(ROOT / "scripts" / "toolchains.py"), "jaeger", "tracecaller"]
    subprocess.run(command, check=True, timeout=BUILD_S)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seen(tools: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Span], Told]:
    """Every span that Jaeger has, and what the callers saw."""
    spans, told, _ = await traced(tmp_path_factory.mktemp("trace"))
    return spans, told


@pytest.mark.timeout(BUILD_S + 120)
def test_jaeger_has_the_story_as_it_was(seen: tuple[list[Span], Told]) -> None:
    """Parents and links, a span for each attempt with its attributes, status only where it belongs, nothing
    unfinished after SIGTERM, and the Go caller's trace kept across the border.
    """
    spans, told = seen
    assert not faults(spans, told), "\n".join([*faults(spans, told), *drawn(spans)])
    assert len(spans) == SPANS


def _without(spans: Sequence[Span], name: str) -> list[Span]:
    gone = next(span for span in spans if span.name == name)
    return [span for span in spans if span is not gone]


def _changed(spans: Sequence[Span], name: str, **changes: object) -> list[Span]:
    number = next(i for i, span in enumerate(spans) if span.name == name)
    altered = dataclasses.replace(spans[number], **changes)  # type: ignore[arg-type]
    return [*spans[:number], altered, *spans[number + 1 :]]


RPC, ATTEMPT, ITEM = "lineside.v1.DispatchService/Dispatch", "execute_tool forecast", "dispatch forecast"
FAULTS: dict[str, tuple[Callable[[list[Span]], list[Span]], str]] = {
    "an attempt that never arrived": (lambda spans: _without(spans, ATTEMPT), "spans of attempts"),
    "a parent that never arrived": (lambda spans: _without(spans, RPC), "is not in trace"),
    "a lost link": (lambda spans: _changed(spans, ITEM, links=()), "links to"),
    "a trace that was not kept": (lambda spans: _changed(spans, RPC, parent=None), "has no parent"),
    "an error on a handled failure": (
        lambda spans: _changed(spans, RPC, tags={**_first(spans, RPC).tags, "otel.status_code": "ERROR"}),
        "is an error",
    ),
    "an attribute that is missing": (
        lambda spans: _changed(spans, ATTEMPT, tags={}),
        "circuit.state is None",
    ),
}


def _first(spans: Sequence[Span], name: str) -> Span:
    return next(span for span in spans if span.name == name)


@pytest.mark.timeout(BUILD_S + 120)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_would_be_seen(seen: tuple[list[Span], Told], fault: str) -> None:
    """Each sort of fault, put into what Jaeger has, is told by the checks."""
    spoil, words = FAULTS[fault]
    spans, told = seen
    assert any(words in line for line in faults(spoil(spans), told))
