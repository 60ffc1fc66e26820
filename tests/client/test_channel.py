"""How the client reaches the service: what it refuses, what it sets, TLS and tokens on a real wire."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pb2 import MethodOptions

import lineside
from lineside.channel import Endpoint, is_loopback, service_config
from lineside.v1 import calls_pb2, dispatch_pb2, quotas_pb2, runs_pb2, tools_pb2, work_pb2
from tests.client.scripted_service import ScriptedTools, serving


@pytest.mark.parametrize(
    ("target", "is_here"),
    [
        ("127.0.0.1:50051", True),
        ("127.9.9.9:1", True),
        ("localhost:50051", True),
        ("[::1]:50051", True),
        ("unix:/run/lineside.sock", True),
        ("unix-abstract:lineside", True),
        ("dns:///localhost:50051", True),
        ("dns:localhost:50051", True),
        ("ipv4:127.0.0.1:1,127.0.0.1:2", True),
        ("ipv6:[::1]:1", True),
        ("10.0.0.1:50051", False),
        ("lineside.example:443", False),
        ("localhost.evil.example:443", False),
        ("dns://127.0.0.1/lineside.example:443", False),
        ("ipv4:127.0.0.1:1,10.0.0.1:1", False),
        ("0.0.0.0:50051", False),
        ("[::ffff:10.0.0.1]:1", False),
        ("xds:///localhost", False),
    ],
)
def test_plaintext_token_stays_on_this_machine(target: str, is_here: bool) -> None:
    """A token over plaintext is refused unless every address is loopback, or the caller insists (R111)."""
    assert is_loopback(target) is is_here
    if is_here:
        Endpoint(target=target, token="secret")
    else:
        with pytest.raises(ValueError, match="plaintext") as caught:
            Endpoint(target=target, token="secret")
        assert "secret" not in str(caught.value)
    assert "secret" not in repr(Endpoint(target=target, token="secret", insecure_token=True))
    Endpoint(target=target, token="secret", tls=True)


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "schlüssel"])
def test_token_that_no_header_can_carry_is_refused(token: str) -> None:
    """By name, and without repeating it."""
    with pytest.raises(ValueError, match="token: must be printable ASCII"):
        Endpoint(token=token)


def test_half_a_certificate_is_refused() -> None:
    """client_cert and client_key go together, and not with tls=False."""
    with pytest.raises(ValueError, match="go together"):
        lineside.Client(client_cert=b"x")
    with pytest.raises(ValueError, match="tls=False"):
        lineside.Client(tls=False, ca=b"x")


def test_service_config_retries_reads_and_nothing_else() -> None:
    """A retryPolicy for exactly the unary methods without side effects: never for Dispatch* or SettleCall."""
    config = json.loads(service_config())
    retried = {
        (name["service"], name["method"])
        for method in config["methodConfig"]
        if "retryPolicy" in method
        for name in method["name"]
    }
    reads = {
        (service.full_name, method.name)
        for module in (calls_pb2, dispatch_pb2, quotas_pb2, runs_pb2, tools_pb2, work_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if method.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS
        and not method.client_streaming
        and not method.server_streaming
    }
    assert retried == reads
    assert not {method for _, method in retried} & {"Dispatch", "DispatchBatch", "SettleCall"}


def test_channel_keeps_alive_and_takes_16_mib() -> None:
    """Sizes in both directions, keepalive, the service config; the caller's own options come last and win."""
    options = dict(Endpoint(options=[("grpc.keepalive_time_ms", 5)])._options())
    assert options["grpc.max_send_message_length"] == 16 * 1024 * 1024
    assert options["grpc.max_receive_message_length"] == 16 * 1024 * 1024
    assert options["grpc.service_config"] == service_config()
    assert options["grpc.keepalive_time_ms"] == 5
    assert dict(Endpoint()._options())["grpc.keepalive_time_ms"] == 30_000


@pytest.mark.asyncio
async def test_token_and_trace_context_travel(scripted: tuple[ScriptedTools, str]) -> None:
    """Every RPC carries the bearer token and the current W3C trace context; batch items have their own."""
    trace = pytest.importorskip("opentelemetry.trace")
    tools, target = scripted
    parent = trace.SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=trace.TraceFlags(1))
    traceparent = f"00-{0xABC:032x}-{0xDEF:016x}-01"
    async with lineside.AsyncClient(target, token="s3cret") as client:
        with trace.use_span(trace.NonRecordingSpan(parent)):
            await client.dispatch("echo", {"name": "unary"})
            own = lineside.Call(
                tool="echo", arguments={"name": "item"}, traceparent=f"00-{1:032x}-{1:016x}-01"
            )
            plain = lineside.Call(tool="echo", arguments={"name": "plain"})
            await client.dispatch_all([own, plain])
    for name in ("unary", "item", "plain"):
        assert tools.names[name].metadata["authorization"] == "Bearer s3cret"
        assert tools.names[name].metadata["traceparent"] == traceparent
    assert tools.names["item"].calls[0]["traceparent"] == f"00-{1:032x}-{1:016x}-01"
    assert tools.names["plain"].calls[0]["traceparent"] == ""


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A throw-away certificate authority, a server's and a client's certificate for localhost."""
    home = tmp_path_factory.mktemp("pems")
    new_key = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    for name in ("server", "client"):
        files = ["-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2"]
        names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        subprocess.run([*new_key, *files, *names], cwd=home, check=True, capture_output=True)
    return home


@pytest.mark.asyncio
async def test_tls_and_client_certificates(pems: Path) -> None:
    """Files and bytes both do; without the caller's certificate the service stays unreachable."""
    credentials = grpc.ssl_server_credentials(
        [((pems / "server.key").read_bytes(), (pems / "server.pem").read_bytes())],
        (pems / "client.pem").read_bytes(),
        require_client_auth=True,
    )
    async with serving(credentials) as (_, target):
        async with lineside.AsyncClient(
            target,
            token="s3cret",
            ca=pems / "server.pem",
            client_cert=str(pems / "client.pem"),
            client_key=(pems / "client.key").read_bytes(),
        ) as client:
            assert (await client.dispatch("echo", {"name": "", "n": 1})).result["n"] == 1
        async with lineside.AsyncClient(target, ca=pems / "server.pem") as stranger:
            with pytest.raises(lineside.ConnectionLost):
                await stranger.dispatch("echo", {})


@pytest.mark.parametrize(
    "target", ["", "localhost", "50051", ":50051", "host:", "host:http", "::1", "http://h:1", "grpcs://h:1"]
)
def test_a_target_that_nothing_could_listen_at_is_refused(target: str) -> None:
    """Port 443 would be taken, or the URL looked up as a name, and only that nobody answers be said."""
    with pytest.raises(ValueError, match="HOST:PORT is needed"):
        Endpoint(target=target)


@pytest.mark.parametrize(
    "target",
    [
        "localhost:1",
        "[::1]:1",
        "10.0.0.7:50051",
        "dns:///lineside:50051",
        "unix:/run/l.sock",
        "ipv4:127.0.0.1:1",
    ],
)
def test_what_grpc_reaches_is_taken(target: str) -> None:
    """Host and port, or a target of one of gRPC's resolvers."""
    assert Endpoint(target=target).target == target
