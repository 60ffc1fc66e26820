"""The tools by name: an immutable snapshot per tool, beside the state that survives a reload."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lineside_service.core.breaker import Breaker
from lineside_service.core.retry import RetryBudget
from lineside_service.core.schema import CompiledSchema, compile_schema
from lineside_service.core.tool import ToolSpec
from lineside_service.engine.gate import Gate
from lineside_service.ports import Tool


@dataclass(slots=True)
class Counters:
    """Plain integers of one tool since start; read by observable instruments, never locked.

    endings: (kind or `ok`, source) -> calls. attempts, retries, late: attempts ended, those that followed
    another, those that ended after they were given up. run_s: seconds spent in attempts.
    """

    endings: dict[tuple[str, str], int] = field(default_factory=dict)
    attempts: int = 0
    retries: int = 0
    late: int = 0
    run_s: float = 0.0

    @property
    def mean_run_s(self) -> float:
        """Mean run time of an attempt in seconds, 0 before the first."""
        return self.run_s / self.attempts if self.attempts else 0.0

    def ended(self, kind: str, source: str) -> None:
        """Count a call."""
        self.endings[kind, source] = self.endings.get((kind, source), 0) + 1


class ToolState:
    """What a tool has been through: it stays when the config is reloaded, by the tool's name.

    abandoned: attempts that were given up and have not really ended. They are held here because the loop
    itself holds tasks weakly: one that waits for something of its own would vanish, and its slot with it.
    """

    __slots__ = ("abandoned", "breaker", "counters", "gate", "retry_budget")

    def __init__(self, spec: ToolSpec) -> None:
        self.abandoned: set[object] = set()
        self.gate = Gate(spec.concurrency)
        self.breaker = Breaker(spec.breaker)
        self.retry_budget = _retry_budget(spec)
        self.counters = Counters()

    def adopt(self, spec: ToolSpec, before: ToolSpec) -> None:
        """Go on under a reloaded config."""
        if spec.concurrency != before.concurrency:
            self.gate.resize(spec.concurrency)
        if spec.breaker != before.breaker:
            self.breaker.adopt(spec.breaker)
        if spec.retry != before.retry:
            self.retry_budget = _retry_budget(spec)


def _retry_budget(spec: ToolSpec) -> RetryBudget:
    rules = spec.retry
    return RetryBudget(rules.budget_ratio, rules.budget_floor, rules.budget_window_s)


@dataclass(frozen=True, slots=True)
class RegisteredTool:
    """One tool as of one config. A running call keeps its snapshot through a reload."""

    spec: ToolSpec
    tool: Tool
    schema: CompiledSchema
    state: ToolState


class Registry:
    """The tools that calls can name. SchemaRefused when a tool's input schema cannot be used."""

    def __init__(self, tools: Iterable[Tool], schemas: Mapping[str, CompiledSchema] | None = None) -> None:
        self._tools: dict[str, RegisteredTool] = {}
        self._states: dict[str, tuple[ToolState, ToolSpec]] = {}
        self.replace(tools, schemas)

    def replace(self, tools: Iterable[Tool], schemas: Mapping[str, CompiledSchema] | None = None) -> None:
        """Take a new set of tools, all or nothing. schemas: by tool, for input; compiled here if absent."""
        known = schemas or {}
        fresh = [
            (tool, known.get(tool.spec.name) or compile_schema(tool.spec.input_schema)) for tool in tools
        ]
        registered: dict[str, RegisteredTool] = {}
        for tool, schema in fresh:
            registered[tool.spec.name] = RegisteredTool(tool.spec, tool, schema, self._state(tool.spec))
        self._tools = registered

    def find(self, name: str, tenant: str) -> RegisteredTool | None:
        """The tool, or None when it is unknown, disabled or hidden from this tenant."""
        found = self._tools.get(name)
        if found is None or not found.spec.enabled:
            return None
        tenants = found.spec.tenants
        return found if tenants is None or tenant in tenants else None

    def is_hidden(self, name: str, tenant: str) -> bool:
        """Whether the tool is known but not for this tenant, removed tools included."""
        known = self._states.get(name)
        if known is None:
            return False
        tenants = known[1].tenants
        return tenants is not None and tenant not in tenants

    def visible(self, tenant: str) -> list[RegisteredTool]:
        """What this tenant may call, by name."""
        return [found for name in sorted(self._tools) if (found := self.find(name, tenant)) is not None]

    def everything(self) -> Iterable[RegisteredTool]:
        """Every registered tool, for telemetry."""
        return self._tools.values()

    def name_near(self, name: str, tenant: str) -> str | None:
        """A visible tool whose name looks like this one."""
        names = [found.spec.name for found in self.visible(tenant)]
        near = difflib.get_close_matches(name, names, n=1)
        return near[0] if near else None

    def _state(self, spec: ToolSpec) -> ToolState:
        known = self._states.get(spec.name)
        if known is None:
            state = ToolState(spec)
        else:
            state, before = known
            state.adopt(spec, before)
        self._states[spec.name] = (state, spec)
        return state
