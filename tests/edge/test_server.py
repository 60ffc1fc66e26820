"""The server around the services: health, reflection, TLS, ports, ping rules."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped] # ships none

from lineside.v1.dispatch_pb2 import DispatchRequest
from lineside_service.edge.auth import CertificateRule
from lineside_service.edge.server import EdgeServer
from lineside_service.edge.settings import ServerSettings, TlsFiles
from tests.edge.test_auth import token
from tests.support.certificates import Authority, Pair
from tests.support.scripted_tool import Turn, answer
from tests.support.serving import Served, bearer, refusal_of, refused, serving, tool_call

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICES = {
    "lineside.v1.DispatchService",
    "lineside.v1.ToolService",
    "lineside.v1.CallService",
    "lineside.v1.RunService",
    "lineside.v1.WorkService",
    "lineside.v1.QuotaService",
}
ON_LOOPBACK = ServerSettings(listen="127.0.0.1:0")


@pytest.mark.asyncio
async def test_health_is_open_and_follows_readiness() -> None:
    """For the whole server and each service, without a token; an unknown service is NOT_FOUND."""
    async with serving(tokens=[token("t", "acme")], anonymous=False) as served:
        health: Any = health_pb2_grpc.HealthStub(served.channel())

        async def status(service: str) -> int:
            reply = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
            return int(reply.status)

        assert {await status(name) for name in ("", *SERVICES)} == {SERVING}
        await served.server.set_ready(is_ready=False)
        assert {await status(name) for name in ("", *SERVICES)} == {NOT_SERVING}
        await served.server.set_ready(is_ready=True)
        assert await status("") == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await status("nobody")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.asyncio
async def test_a_server_starts_as_not_serving() -> None:
    """Until somebody says that it is ready."""
    async with serving() as served:
        fresh = EdgeServer(served.server._parts, ON_LOOPBACK)
        port = await fresh.start()
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        health: Any = health_pb2_grpc.HealthStub(channel)
        reply = await health.Check(health_pb2.HealthCheckRequest(), timeout=5)
        await channel.close()
        await fresh.stop()
        assert reply.status == NOT_SERVING


async def reflect(channel: grpc.aio.Channel, version: str, request: Any, metadata: Any = ()) -> Any:
    """Ask one question."""
    path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    call: Any = channel.stream_stream(path)(metadata=metadata, timeout=5)
    await call.write(request.SerializeToString())
    raw = await call.read()
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    return reflection_pb2.ServerReflectionResponse.FromString(raw)


@pytest.mark.asyncio
@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_answers_under_both_names(version: str) -> None:
    """All services, and files that describe them."""
    async with serving() as served:
        channel = served.channel()
        listing = await reflect(channel, version, reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {service.name for service in listing.list_services_response.service}
        assert names == SERVICES | {
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        found = await reflect(
            channel,
            version,
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="lineside.v1.DispatchService"),
        )
        files = [
            FileDescriptorProto.FromString(raw)
            for raw in found.file_descriptor_response.file_descriptor_proto
        ]
        assert "lineside/v1/dispatch.proto" in {file.name for file in files}


@pytest.mark.asyncio
async def test_reflection_knows_methods_and_itself() -> None:
    """What grpcurl asks when it describes one; of what there is not it says so."""
    async with serving() as served:
        channel = served.channel()
        for symbol, file, package in (
            ("lineside.v1.DispatchService.Dispatch", "lineside/v1/dispatch.proto", "lineside.v1"),
            (
                "grpc.reflection.v1.ServerReflection",
                "grpc_reflection/v1/reflection.proto",
                "grpc.reflection.v1",
            ),
        ):
            asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
            found = await reflect(channel, "v1", asked)
            files = map(FileDescriptorProto.FromString, found.file_descriptor_response.file_descriptor_proto)
            assert (file, package) in {(one.name, one.package) for one in files}
            asked = reflection_pb2.ServerReflectionRequest(file_by_filename=file)
            assert (await reflect(channel, "v1", asked)).HasField("file_descriptor_response")
        asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol="lineside.v1.ToolService.Nope")
        no = (await reflect(channel, "v1", asked)).error_response
        assert no.error_code == grpc.StatusCode.NOT_FOUND.value[0]


@pytest.mark.asyncio
async def test_reflection_off_loopback_needs_a_credential() -> None:
    """Any valid one."""
    settings = ServerSettings(listen="127.0.0.1:0", reflection_open=False)
    async with serving(tokens=[token("t", "acme")], anonymous=False, settings=settings) as served:
        channel = served.channel()
        question = reflection_pb2.ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reflect(channel, "v1", question)
        assert refusal_of(caught.value).kind == "unauthenticated"
        assert (await reflect(channel, "v1", question, bearer("t"))).HasField("list_services_response")


@pytest.mark.asyncio
async def test_reflection_can_be_off() -> None:
    """Then the method is not there."""
    async with serving(settings=ServerSettings(listen="127.0.0.1:0", reflection=False)) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reflect(served.channel(), "v1", reflection_pb2.ServerReflectionRequest())
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def tls_settings(authority: Authority, *, client_ca: bytes | None = None) -> ServerSettings:
    """A server with a certificate of this authority."""
    pair = authority.server()
    files = TlsFiles(certificate=pair.certificate, key=pair.key, client_ca=client_ca)
    return ServerSettings(listen="127.0.0.1:0", tls=files)


def tls_channel(served: Served, authority: Authority, own: Pair | None = None) -> grpc.aio.Channel:
    """A channel that believes this authority, with a certificate of its own or none."""
    credentials = grpc.ssl_channel_credentials(
        authority.certificate,
        None if own is None else own.key,
        None if own is None else own.certificate,
    )
    return served.channel(credentials=credentials)


async def whose(turn: Turn) -> Any:
    """The caller's tenant."""
    return turn.request.tenant


@pytest.mark.asyncio
async def test_tls_with_tokens() -> None:
    """A caller that believes the authority gets through, another does not."""
    authority = Authority()
    async with serving(
        tokens=[token("t", "acme")], anonymous=False, settings=tls_settings(authority), host="localhost"
    ) as served:
        served.add("whose", whose)
        call = DispatchRequest(call=tool_call("whose"))
        stub = served.dispatching(tls_channel(served, authority))
        assert (await stub.Dispatch(call, metadata=bearer("t"), timeout=5)).answer.result_json == b'"acme"'
        assert (await refused(stub.Dispatch(call, timeout=5))).kind == "unauthenticated"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.dispatching(tls_channel(served, Authority())).Dispatch(call, timeout=2)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.asyncio
async def test_a_client_certificate_names_the_tenant() -> None:
    """By its SAN; with a token of another tenant it is refused; without one nobody gets in."""
    authority = Authority()
    async with serving(
        tokens=[token("a", "acme"), token("b", "globex")],
        certificates=[
            CertificateRule(san="agent.acme.test", tenant="acme"),
            CertificateRule(san="spiffe://fleet/globex", tenant="globex"),
        ],
        anonymous=False,
        settings=tls_settings(authority, client_ca=authority.certificate),
        host="localhost",
    ) as served:
        served.add("whose", whose)
        call = DispatchRequest(call=tool_call("whose"))
        for san, tenant in (("agent.acme.test", b'"acme"'), ("spiffe://fleet/globex", b'"globex"')):
            stub = served.dispatching(tls_channel(served, authority, authority.caller(san)))
            assert (await stub.Dispatch(call, timeout=5)).answer.result_json == tenant
        own = served.dispatching(tls_channel(served, authority, authority.caller("agent.acme.test")))
        assert (await own.Dispatch(call, metadata=bearer("a"), timeout=5)).answer.attempts == 1
        no = await refused(own.Dispatch(call, metadata=bearer("b"), timeout=5))
        assert (no.kind, no.info.reason) == ("permission_denied", "CREDENTIALS_DISAGREE")
        unmapped = served.dispatching(tls_channel(served, authority, authority.caller("x.test")))
        assert (await refused(unmapped.Dispatch(call, timeout=5))).kind == "unauthenticated"
        for stranger in (None, Authority().caller("agent.acme.test")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await served.dispatching(tls_channel(served, authority, stranger)).Dispatch(call, timeout=2)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.asyncio
async def test_a_renewed_certificate_is_used_from_the_next_handshake_on() -> None:
    """Open connections go on, new callers see the new authority."""
    before, after = Authority("before"), Authority("after")
    async with serving(settings=tls_settings(before), host="localhost") as served:
        served.add("echo", answer(1))
        call = DispatchRequest(call=tool_call("echo"))
        old = served.dispatching(tls_channel(served, before))
        assert await old.Dispatch(call, timeout=5)
        renewed = tls_settings(after).tls
        assert renewed is not None
        served.server.replace_tls(renewed)
        assert await served.dispatching(tls_channel(served, after)).Dispatch(call, timeout=5)
        assert await old.Dispatch(call, timeout=5)


@pytest.mark.asyncio
async def test_a_taken_port_is_an_error() -> None:
    """Two servers never share a port by accident."""
    async with serving() as served:
        second = EdgeServer(served.server._parts, ServerSettings(listen=served.target))
        with pytest.raises(RuntimeError, match="bind"):
            await second.start()


@pytest.mark.asyncio
async def test_a_unix_socket_serves_too(tmp_path: Path) -> None:
    """For callers on the same machine."""
    async with serving() as served:
        served.add("echo", answer(1))
        local = EdgeServer(served.server._parts, ServerSettings(listen=f"unix:{tmp_path}/edge.sock"))
        await local.start()
        channel = grpc.aio.insecure_channel(f"unix:{tmp_path}/edge.sock")
        stub = served.dispatching(channel)
        assert await stub.Dispatch(DispatchRequest(call=tool_call("echo")), timeout=5)
        await channel.close()
        await local.stop()


@pytest.mark.asyncio
async def test_large_metadata_is_refused_the_same_way_each_time() -> None:
    """Up to the bound it passes, beyond it never: no random share in between."""
    async with serving() as served:
        served.add("echo", answer(1))
        stub, call = served.dispatching(), DispatchRequest(call=tool_call("echo"))
        for _ in range(20):
            assert await stub.Dispatch(call, metadata=(("x-note", "a" * 12_000),), timeout=5)
        for _ in range(5):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Dispatch(call, metadata=(("x-note", "a" * 20_000),), timeout=5)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await stub.Dispatch(call, timeout=5)


def test_the_channel_arguments_say_what_is_promised() -> None:
    """Sizes, pings, no shared port; connection age only when asked for."""
    options = dict(ON_LOOPBACK.channel_options)
    assert options["grpc.so_reuseport"] == 0
    assert options["grpc.max_receive_message_length"] == 16 * 1024 * 1024
    assert options["grpc.max_send_message_length"] == 4 * 1024 * 1024
    assert options["grpc.http2.min_ping_interval_without_data_ms"] == 10_000
    assert options["grpc.keepalive_permit_without_calls"] == 1
    assert "grpc.max_connection_age_ms" not in options
    aged = dict(ServerSettings(connection_age_s=1800.0).channel_options)
    assert aged["grpc.max_connection_age_ms"] == 1_800_000
    assert aged["grpc.max_connection_age_grace_ms"] >= 600_000


@pytest.mark.asyncio
async def test_bytes_that_are_no_http2_hurt_nobody() -> None:
    """A stranger's connection ends, the next call works."""
    async with serving() as served:
        served.add("echo", answer(1))
        host, _, port = served.target.rpartition(":")
        for noise in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x00" * 1000,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 99,
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(noise)
            writer.write_eof()
            async with asyncio.timeout(5):
                with contextlib.suppress(ConnectionError):
                    await reader.read()
            writer.close()
        assert (await served.dispatch("echo")).answer.result_json == b"1"
