"""Who calls, and what they may: the unit rules, and every method on the wire."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from lineside.v1 import calls_pb2, dispatch_pb2, quotas_pb2, runs_pb2, tools_pb2, work_pb2
from lineside.v1.calls_pb2 import GetCallRequest
from lineside.v1.dispatch_pb2 import DispatchRequest
from lineside_service.core.errors import ErrorKind, Failure
from lineside_service.edge.access import ALL_SCOPES, METHODS, Scope
from lineside_service.edge.auth import (
    Authenticator,
    CertificateRule,
    Identity,
    Metadata,
    Token,
    digest_of,
    new_token,
)
from tests.edge.test_batch import Stream
from tests.support.scripted_tool import Turn, answer
from tests.support.serving import bearer, refusal_of, refused, serving, tool_call

FILES = (dispatch_pb2, tools_pb2, calls_pb2, runs_pb2, work_pb2, quotas_pb2)
UNBUILT = ("RunService", "WorkService", "QuotaService")


def every_method() -> Iterator[MethodDescriptor]:
    """Every method of every service in the contract."""
    for file in FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            yield from service.methods


def name_of(method: MethodDescriptor) -> str:
    """`lineside.v1.Service/Method`."""
    return f"{method.containing_service.full_name}/{method.name}"


def token(text: str, tenant: str, *scopes: Scope, expires_s: float | None = None) -> Token:
    """A token as the config would have it."""
    return Token(
        digest=digest_of(text), tenant=tenant, scopes=frozenset(scopes) or ALL_SCOPES, expires_s=expires_s
    )


class Clock:
    """Unix seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Now."""
        return self.now


def identify(
    auth: Authenticator, *metadata: tuple[str, str | bytes], sans: tuple[bytes, ...] = ()
) -> Identity | Failure:
    """The identity of a caller with this metadata and certificate."""
    given: Metadata = metadata
    return auth.identify(given, lambda: {"x509_subject_alternative_name": sans} if sans else {})


def reason(found: Identity | Failure) -> tuple[ErrorKind, str]:
    """Why there is none."""
    assert isinstance(found, Failure)
    return found.kind, found.reason


def test_the_access_table_is_total_over_the_contract() -> None:
    """No method without a rule, no rule without a method, no rule that nobody passes."""
    assert {name_of(method) for method in every_method()} == set(METHODS)
    assert all(rule.scopes for rule in METHODS.values())
    assert not any(rule.is_open for rule in METHODS.values())


def test_a_new_token_has_256_bits_and_only_its_hash_is_kept() -> None:
    """What goes into the config cannot be turned back."""
    drawn: list[int] = []

    def draw(count: int) -> bytes:
        drawn.append(count)
        return random.Random(1).randbytes(count)

    made = new_token(draw)
    assert drawn == [32]
    assert len(made.text) == len("ls_") + 43
    assert bytes.fromhex(made.digest_hex) == digest_of(made.text)
    assert made.text not in made.digest_hex


def test_a_tenant_may_have_several_tokens_and_each_may_expire() -> None:
    """From its second of expiry on a token is refused."""
    clock = Clock()
    auth = Authenticator(
        tokens=[token("one", "acme", Scope.CALL), token("two", "acme", Scope.READ, expires_s=1010.0)],
        anonymous=False,
        wall=clock,
    )
    assert identify(auth, *bearer("one")) == Identity(tenant="acme", scopes=frozenset({Scope.CALL}))
    assert identify(auth, ("authorization", "bearer  two ")) == Identity(
        tenant="acme", scopes=frozenset({Scope.READ})
    )
    clock.now = 1010.0
    assert reason(identify(auth, *bearer("two"))) == (ErrorKind.UNAUTHENTICATED, "TOKEN_EXPIRED")


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ((), "TOKEN_MISSING"),
        ((("authorization", ""),), "TOKEN_MALFORMED"),
        ((("authorization", "Bearer"),), "TOKEN_MALFORMED"),
        ((("authorization", "Basic YTpi"),), "TOKEN_MALFORMED"),
        ((("authorization", "Bearer other"),), "TOKEN_UNKNOWN"),
        ((("authorization", "Bearer one"), ("authorization", "Bearer two")), "TOKEN_AMBIGUOUS"),
        ((("authorization", b"Bearer \xff"),), "TOKEN_UNKNOWN"),
    ],
)
def test_no_valid_token_is_unauthenticated(metadata: tuple[tuple[str, str | bytes], ...], why: str) -> None:
    """Missing, malformed, unknown, or two of them."""
    auth = Authenticator(tokens=[token("one", "a"), token("two", "b")], anonymous=False, wall=Clock())
    assert reason(identify(auth, *metadata)) == (ErrorKind.UNAUTHENTICATED, why)


def test_a_bad_token_is_never_taken_for_no_token() -> None:
    """Also where callers without one are let in."""
    auth = Authenticator(anonymous=True, wall=Clock())
    assert identify(auth) == Identity(tenant="local", scopes=ALL_SCOPES)
    assert reason(identify(auth, *bearer("guess"))) == (ErrorKind.UNAUTHENTICATED, "TOKEN_UNKNOWN")


@pytest.mark.parametrize("header", ["x-tenant-id", "x-tenant", "tenant", "lineside-tenant"])
def test_a_tenant_in_metadata_may_only_agree(header: str) -> None:
    """The credential says who it is; another name is refused, not ignored (R115)."""
    auth = Authenticator(tokens=[token("one", "acme")], anonymous=False, wall=Clock())
    assert isinstance(identify(auth, *bearer("one"), (header, "acme")), Identity)
    other = identify(auth, *bearer("one"), (header, "globex"))
    assert reason(other) == (ErrorKind.PERMISSION_DENIED, "TENANT_MISMATCH")
    double = identify(auth, *bearer("one"), (header, "acme"), (header, "globex"))
    assert reason(double) == (ErrorKind.PERMISSION_DENIED, "TENANT_MISMATCH")
    anonymous = Authenticator(anonymous=True, wall=Clock())
    assert reason(identify(anonymous, (header, "acme")))[1] == "TENANT_MISMATCH"


def test_a_revoked_token_is_dead_at_once() -> None:
    """Nothing remembers that it was good, and it never was good for another tenant (R117)."""
    auth = Authenticator(tokens=[token("one", "a"), token("two", "b")], anonymous=False, wall=Clock())
    assert isinstance(identify(auth, *bearer("one")), Identity)
    assert reason(identify(auth, *bearer("one"), ("x-tenant-id", "b")))[1] == "TENANT_MISMATCH"
    auth.replace(tokens=[token("two", "b")], certificates=[], anonymous=False)
    assert reason(identify(auth, *bearer("one"))) == (ErrorKind.UNAUTHENTICATED, "TOKEN_UNKNOWN")
    auth.replace(tokens=[token("one", "b")], certificates=[], anonymous=False)
    moved = identify(auth, *bearer("one"))
    assert isinstance(moved, Identity)
    assert moved.tenant == "b"


def test_whether_anonymous_callers_are_let_in_changes_at_once() -> None:
    """With the credentials of a reloaded config, in both directions."""
    auth = Authenticator(anonymous=True, wall=Clock())
    assert isinstance(identify(auth), Identity)
    auth.replace(tokens=[token("one", "a")], certificates=[], anonymous=False)
    assert reason(identify(auth)) == (ErrorKind.UNAUTHENTICATED, "TOKEN_MISSING")
    assert not auth.anonymous
    auth.replace(tokens=[], certificates=[], anonymous=True)
    assert identify(auth) == Identity(tenant="local", scopes=ALL_SCOPES)


def test_a_certificate_stands_for_its_tenant() -> None:
    """Alone, or with a token of the same tenant, whose scopes then count."""
    auth = Authenticator(
        tokens=[token("one", "acme", Scope.SETTLE), token("two", "globex")],
        certificates=[
            CertificateRule(san="agent.acme", tenant="acme", scopes=frozenset({Scope.CALL})),
            CertificateRule(san="spiffe://globex/x", tenant="globex"),
        ],
        anonymous=False,
        wall=Clock(),
    )
    alone = identify(auth, sans=(b"other", b"agent.acme"))
    assert alone == Identity(tenant="acme", scopes=frozenset({Scope.CALL}))
    both = identify(auth, *bearer("one"), sans=(b"agent.acme",))
    assert both == Identity(tenant="acme", scopes=frozenset({Scope.SETTLE}))
    assert reason(identify(auth, *bearer("two"), sans=(b"agent.acme",))) == (
        ErrorKind.PERMISSION_DENIED,
        "CREDENTIALS_DISAGREE",
    )
    assert reason(identify(auth, sans=(b"agent.acme", b"spiffe://globex/x")))[1] == "CERTIFICATE_AMBIGUOUS"
    assert reason(identify(auth, sans=(b"nobody",))) == (ErrorKind.UNAUTHENTICATED, "TOKEN_MISSING")
    assert isinstance(identify(auth, *bearer("one"), sans=(b"nobody",)), Identity)


# -- on the wire --------------------------------------------------------------------------------------------


async def end_of(channel: grpc.aio.Channel, method: MethodDescriptor, metadata: Any) -> tuple[str, str]:
    """Call a method with an empty request: (code, kind), OK and "" when it answered."""
    path, empty = f"/{name_of(method)}", GetMessageClass(method.input_type)().SerializeToString()
    shapes: dict[tuple[bool, bool], Any] = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, True): channel.stream_stream,
    }
    call = shapes[method.client_streaming, method.server_streaming](path)
    try:
        if method.client_streaming:
            stream = call(metadata=metadata, timeout=5)
            await stream.done_writing()
            await stream.read()
        elif method.server_streaming:
            async for _ in call(empty, metadata=metadata, timeout=5):
                pass
        else:
            await call(empty, metadata=metadata, timeout=5)
    except grpc.aio.AioRpcError as error:
        no = refusal_of(error)
        return no.code.name, no.kind
    return "OK", ""


@pytest.mark.asyncio
async def test_every_method_asks_for_its_scope() -> None:
    """Each method with no token, a wrong one, each single scope: refused unless the table says so (R115)."""
    tokens = [token(scope.value, "acme", scope) for scope in Scope]
    async with serving(tokens=tokens, anonymous=False) as served:
        channel = served.channel()
        for method in every_method():
            name = name_of(method)
            assert await end_of(channel, method, ()) == ("UNAUTHENTICATED", "unauthenticated"), name
            assert await end_of(channel, method, bearer("x")) == ("UNAUTHENTICATED", "unauthenticated"), name
            for scope in Scope:
                code, kind = await end_of(channel, method, bearer(scope.value))
                if scope not in METHODS[name].scopes:
                    assert (code, kind) == ("PERMISSION_DENIED", "permission_denied"), name
                elif method.containing_service.name in UNBUILT:
                    assert (code, kind) == ("UNIMPLEMENTED", "unimplemented"), name
                else:
                    assert code in {"OK", "INVALID_ARGUMENT"}, name
            spoof = (*bearer(next(iter(METHODS[name].scopes)).value), ("x-tenant-id", "globex"))
            assert await end_of(channel, method, spoof) == ("PERMISSION_DENIED", "permission_denied"), name


@pytest.mark.asyncio
async def test_other_tenants_do_not_exist() -> None:
    """Their calls, keys and hidden tools read as if they were not there; equal keys are two calls (R115)."""
    tokens = [token("a", "acme"), token("b", "globex")]
    async with serving(tokens=tokens, anonymous=False) as served:

        async def whose(turn: Turn) -> Any:
            return turn.request.tenant

        served.add("whose", whose)
        served.add("secret", answer(1), tenants=frozenset({"acme"}))
        channel = served.channel()
        stub = served.dispatching(channel)
        call = DispatchRequest(call=tool_call("whose", idempotency_key="k"))
        first = await stub.Dispatch(call, metadata=bearer("a"), timeout=5)
        second = await stub.Dispatch(call, metadata=bearer("b"), timeout=5)
        assert (first.answer.result_json, second.answer.result_json) == (b'"acme"', b'"globex"')
        tools, calls = served.looking(channel)
        own = await calls.GetCall(
            GetCallRequest(call_id=first.answer.call_id), metadata=bearer("a"), timeout=5
        )
        assert own.call.tenant == "acme"
        foreign = await refused(
            calls.GetCall(GetCallRequest(call_id=first.answer.call_id), metadata=bearer("b"), timeout=5)
        )
        nowhere = await refused(
            calls.GetCall(
                GetCallRequest(call_id="01890a5d-ac96-774b-bcce-b302099a8057"),
                metadata=bearer("b"),
                timeout=5,
            )
        )
        assert (foreign.kind, foreign.error.message) == (nowhere.kind, nowhere.error.message)
        listed = await tools.ListTools(tools_pb2.ListToolsRequest(), metadata=bearer("b"), timeout=5)
        assert [tool.name for tool in listed.tools] == ["whose"]
        hidden = await refused(
            stub.Dispatch(DispatchRequest(call=tool_call("secret")), metadata=bearer("b"), timeout=5)
        )
        unknown = await refused(
            stub.Dispatch(DispatchRequest(call=tool_call("sacred")), metadata=bearer("b"), timeout=5)
        )
        assert hidden.error.message.replace("secret", "sacred") == unknown.error.message


@pytest.mark.asyncio
async def test_refused_streams_do_not_clog_their_connection() -> None:
    """Hundred streams that send 256 kB each and are refused at once; then a call on the same connection."""
    async with serving(tokens=[token("good", "acme")], anonymous=False) as served:
        served.add("echo", answer("ok"))
        channel = served.channel()
        for _ in range(100):
            stream = Stream(served, channel)
            # A write that meets the end of its stream fails in one of several ways, none of them ours.
            with contextlib.suppress(Exception):
                for number in range(4):
                    await stream.send([tool_call("echo", {"x": "a" * 64_000}, item_id=str(number))])
            with contextlib.suppress(grpc.aio.AioRpcError):
                await stream.rpc.read()
            assert await stream.rpc.code() is not grpc.StatusCode.OK
        call = DispatchRequest(call=tool_call("echo"))
        assert await served.dispatching(channel).Dispatch(call, metadata=bearer("good"), timeout=1)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("later", "kind"),
    [
        ([], "unauthenticated"),
        ([token("mine", "acme", expires_s=1.0)], "unauthenticated"),
        ([token("mine", "acme", Scope.READ)], "permission_denied"),
        ([token("mine", "globex")], "permission_denied"),
    ],
    ids=["revoked", "expired", "without the scope", "another tenant's"],
)
async def test_a_stream_does_not_outlive_its_token(later: list[Token], kind: str) -> None:
    """What it took before is answered, no later frame is, and its status says how many were taken (R117)."""
    async with serving(tokens=[token("mine", "acme")], anonymous=False) as served:
        entered: list[str] = []
        started, release = asyncio.Event(), asyncio.Event()

        async def waits(turn: Turn) -> Any:
            entered.append(turn.request.tenant)
            started.set()
            await release.wait()

        served.add("waits", waits)
        stream = Stream(served, metadata=bearer("mine"))
        async with asyncio.timeout(5):
            await stream.send([tool_call("waits", item_id="before")])
            await started.wait()
            served.auth.replace(tokens=later, certificates=[], anonymous=False)
            await stream.send([tool_call("waits", item_id="after")])
            release.set()
            assert set(await stream.items(1)) == {"before"}
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await stream.rpc.read()
        no = refusal_of(ended.value)
        assert (no.kind, no.trailers["lineside-frames-accepted"]) == (kind, "1")
        assert entered == ["acme"]
