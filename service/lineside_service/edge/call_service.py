"""CallService: what became of calls, and settling those whose outcome nobody could know."""

from __future__ import annotations

from lineside.v1.calls_pb2 import (
    GetCallRequest,
    GetCallResponse,
    ListCallsRequest,
    ListCallsResponse,
    SettleCallRequest,
    SettleCallResponse,
)
from lineside_service.core.errors import Failure, Violation
from lineside_service.edge.enums import STATE_OF
from lineside_service.edge.facade import CallBook
from lineside_service.edge.intake import MAX_KEY
from lineside_service.edge.paging import PageTokens, page_size
from lineside_service.edge.refusals import bad_field, malformed
from lineside_service.edge.rpc import Rpc
from lineside_service.edge.settlements import bad_call_id, read_evidence
from lineside_service.edge.wire_calls import wire_call

_MAX_TOOL = 128


class CallMethods:
    """GetCall, ListCalls and SettleCall, each within the caller's tenant."""

    def __init__(self, calls: CallBook, tokens: PageTokens) -> None:
        self._calls = calls
        self._tokens = tokens

    async def get_call(self, rpc: Rpc, request: GetCallRequest) -> GetCallResponse | Failure:
        """One call, by its id or by its key."""
        tenant = rpc.identity.tenant
        match request.WhichOneof("lookup"):
            case "call_id":
                refused = bad_call_id(request.call_id)
                found = refused or await self._calls.get(tenant, request.call_id)
            case "key":
                tool, key = request.key.tool, request.key.idempotency_key
                refused = _bad_key(tool, key)
                found = refused or await self._calls.get_by_key(tenant, tool, key)
            case _:
                return bad_field("call_id", "set one of call_id and key", "REQUIRED")
        if isinstance(found, Failure):
            return found
        return GetCallResponse(call=wire_call(found, is_full=True))

    async def list_calls(self, rpc: Rpc, request: ListCallsRequest) -> ListCallsResponse | Failure:
        """One page of the tenant's recorded calls."""
        size = page_size(request.page_size)
        if isinstance(size, Failure):
            return size
        if request.state and int(request.state) not in STATE_OF:
            return bad_field("state", f"{int(request.state)}: no Call.State", "ENUM")
        if len(request.tool) > _MAX_TOOL:
            return bad_field("tool", f"{len(request.tool)} characters: at most {_MAX_TOOL}", "LENGTH")
        tenant = rpc.identity.tenant
        question = ("ListCalls", tenant, str(int(request.state)), request.tool)
        after = self._tokens.read(request.page_token, *question)
        if isinstance(after, Failure):
            return after
        found = await self._calls.list(
            tenant,
            state=STATE_OF[int(request.state)] if request.state else None,
            tool=request.tool or None,
            after=after,
            limit=size + 1,
        )
        if isinstance(found, Failure):
            return found
        response = ListCallsResponse(calls=[wire_call(view, is_full=False) for view in found[:size]])
        if len(found) > size:
            response.next_page_token = self._tokens.make(found[size - 1].row.call_id, *question)
        return response

    async def settle_call(self, rpc: Rpc, request: SettleCallRequest) -> SettleCallResponse | Failure:
        """A person's word on an unknown outcome."""
        evidence = read_evidence(request)
        if isinstance(evidence, Failure):
            return evidence
        found = await self._calls.settle(rpc.identity.tenant, request.call_id, request.etag, evidence)
        if isinstance(found, Failure):
            return found
        return SettleCallResponse(call=wire_call(found, is_full=True))


def _bad_key(tool: str, key: str) -> Failure | None:
    bad = []
    if not 1 <= len(tool) <= _MAX_TOOL:
        bad.append(
            Violation(field="key.tool", message=f"{len(tool)} characters: 1-{_MAX_TOOL}", rule="LENGTH")
        )
    if not 1 <= len(key) <= MAX_KEY:
        text = f"{len(key)} characters: 1-{MAX_KEY}"
        bad.append(Violation(field="key.idempotency_key", message=text, rule="LENGTH"))
    return malformed(*bad) if bad else None
