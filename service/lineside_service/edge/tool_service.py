"""ToolService: the tools that the caller's tenant may call."""

from __future__ import annotations

from collections.abc import Callable

from lineside.v1.tools_pb2 import (
    TOOL_VIEW_BASIC,
    TOOL_VIEW_FULL,
    TOOL_VIEW_UNSPECIFIED,
    GetToolRequest,
    GetToolResponse,
    ListToolsRequest,
    ListToolsResponse,
    Tool,
    ToolView,
)
from lineside_service.core.errors import Failure
from lineside_service.core.retry import RetryRules
from lineside_service.edge.enums import BREAKERS, EFFECTS, IDEMPOTENCIES, TOOL_KINDS
from lineside_service.edge.facade import Catalogue
from lineside_service.edge.moments import duration
from lineside_service.edge.paging import PageTokens, page_size
from lineside_service.edge.refusals import bad_field, unknown_tool
from lineside_service.edge.rpc import Rpc
from lineside_service.engine.registry import RegisteredTool

_MAX_NAME = 128


class ToolMethods:
    """ListTools and GetTool. now: loop time, for the breakers' states."""

    def __init__(self, catalogue: Catalogue, tokens: PageTokens, now: Callable[[], float]) -> None:
        self._catalogue = catalogue
        self._tokens = tokens
        self._now = now

    async def list_tools(self, rpc: Rpc, request: ListToolsRequest) -> ListToolsResponse | Failure:
        """One page, by name. A page that would grow beyond what a message holds is cut and goes on."""
        view = _view(request.view, TOOL_VIEW_BASIC)
        size = page_size(request.page_size)
        if isinstance(view, Failure):
            return view
        if isinstance(size, Failure):
            return size
        tenant = rpc.identity.tenant
        question = ("ListTools", tenant, str(int(view)))
        after = self._tokens.read(request.page_token, *question)
        if isinstance(after, Failure):
            return after
        response, room = ListToolsResponse(), _PAGE_BYTES
        now = self._now()
        for registered in self._catalogue.visible(tenant):
            if registered.spec.name <= after:
                continue
            wire = wire_tool(registered, now, is_full=view == TOOL_VIEW_FULL)
            room -= wire.ByteSize()
            if len(response.tools) >= size or (room < 0 and response.tools):
                response.next_page_token = self._tokens.make(response.tools[-1].name, *question)
                break
            response.tools.append(wire)
        return response

    async def get_tool(self, rpc: Rpc, request: GetToolRequest) -> GetToolResponse | Failure:
        """One tool."""
        view = _view(request.view, TOOL_VIEW_FULL)
        if isinstance(view, Failure):
            return view
        name, tenant = request.name, rpc.identity.tenant
        if not 1 <= len(name) <= _MAX_NAME:
            return bad_field("name", f"{len(name)} characters: 1-{_MAX_NAME}", "LENGTH")
        registered = self._catalogue.find(name, tenant)
        if registered is None:
            return unknown_tool(name, self._catalogue.name_near(name, tenant))
        tool = wire_tool(registered, self._now(), is_full=view == TOOL_VIEW_FULL)
        return GetToolResponse(tool=tool)


_PAGE_BYTES = 3 * 1024 * 1024
"""Tools in one page, serialized; well under gRPC's usual 4 MiB."""


def wire_tool(registered: RegisteredTool, now: float, *, is_full: bool) -> Tool:
    """The tool as the contract tells it. now: loop time."""
    spec, state = registered.spec, registered.state
    slots = state.gate.slots
    tool = Tool(
        name=spec.name,
        description=spec.description,
        kind=TOOL_KINDS[spec.kind],
        tool_class=spec.tool_class,
        effect=EFFECTS[spec.effect],
        idempotency=IDEMPOTENCIES[spec.idempotency],
        key_ttl=None if spec.key_ttl_s is None else duration(spec.key_ttl_s),
        key_required=spec.key_required,
        timeout=duration(spec.timeout_s),
        concurrency=spec.concurrency,
        declares_phases=spec.phases,
        contract_hash=spec.contract_hash,
        in_flight=slots.running,
        waiting=slots.waiting,
        abandoned=slots.abandoned,
        reconcile=spec.reconcile,
    )
    if spec.breaker.enabled:
        tool.breaker_state = BREAKERS[state.breaker.state(now)]
    if is_full:
        _add_policies(tool, registered)
    return tool


def _add_policies(tool: Tool, registered: RegisteredTool) -> None:
    spec = registered.spec
    tool.input_schema_json = spec.input_schema
    tool.output_schema_json = spec.output_schema or b""
    _fill_retry(tool, spec.retry)
    rules = spec.breaker
    if rules.enabled:
        tool.breaker.failure_ratio = rules.failure_ratio
        tool.breaker.min_attempts = rules.min_attempts
        tool.breaker.window.CopyFrom(duration(rules.window_s))
        tool.breaker.open_time.CopyFrom(duration(rules.open_s))
        tool.breaker.probes = rules.probes


def _fill_retry(tool: Tool, rules: RetryRules) -> None:
    tool.retry.preset = rules.preset
    tool.retry.max_attempts = rules.max_attempts
    tool.retry.budget_ratio = rules.budget_ratio
    tool.retry.budget_min = rules.budget_floor
    tool.retry.budget_window.CopyFrom(duration(rules.budget_window_s))


def _view(asked: ToolView.ValueType, default: ToolView.ValueType) -> ToolView.ValueType | Failure:
    if asked == TOOL_VIEW_UNSPECIFIED:
        return default
    if asked not in (TOOL_VIEW_BASIC, TOOL_VIEW_FULL):
        return bad_field("view", f"{int(asked)}: no ToolView; BASIC and FULL are", "ENUM")
    return asked
