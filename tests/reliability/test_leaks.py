"""Secrets among arguments, in exceptions and in metadata: the service neither tells nor keeps them."""

from __future__ import annotations

import base64
from pathlib import Path
from urllib.parse import quote

import grpc
import pytest

from lineside.v1.calls_pb2 import GetCallRequest
from lineside.v1.calls_pb2_grpc import CallServiceStub
from lineside.v1.dispatch_pb2 import DispatchRequest
from lineside.v1.dispatch_pb2_grpc import DispatchServiceStub
from tests.reliability.home.leaking_tools import WAYS
from tests.support.otlp_receiver import span_receiver
from tests.support.process import service, wire_call

CANARY = "canary+7f3a/9q"
SHAPES = (CANARY, CANARY[:10], quote(CANARY, safe=""), base64.b64encode(CANARY.encode()).decode()[:16])
CONFIG = """
[server]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
[telemetry]
log_level = "debug"
[tools.leak]
target = "leaking_tools:leak"
timeout = "300ms"
concurrency = 32
[tools.leak_on_a_thread]
target = "leaking_tools:leak_on_a_thread"
"""


def found_in(text: str | bytes) -> list[str]:
    """The shapes of the canary in there."""
    plain = text if isinstance(text, str) else text.decode("latin-1")
    return [shape for shape in SHAPES if shape in plain]


@pytest.mark.asyncio
@pytest.mark.parametrize("log_format", ["json", "console"])
async def test_no_secret_leaves_the_service(tmp_path: Path, log_format: str) -> None:
    """Not in status, details, records, spans, log, metrics or the database: raw, encoded or cut (R111).

    The tool's own exceptions count, also those that only its tasks, callbacks and threads raise.
    """
    (tmp_path / "leaking_tools.py").write_bytes(
        (Path(__file__).parent / "home" / "leaking_tools.py").read_bytes()
    )
    config = tmp_path / "lineside.toml"
    config.write_text(CONFIG)
    calls = [wire_call("leak", {"secret": CANARY, "how": how}, idempotency_key=how) for how in WAYS]
    calls.append(wire_call("leak_on_a_thread", {"secret": CANARY}, idempotency_key="sync"))
    calls.append(wire_call("leak"))
    calls[-1].arguments_json = f'{{"secret": "{CANARY}" "how"}}'.encode()
    calls.append(wire_call("leak", {"secret": [CANARY], "how": "fine"}))
    told: list[str] = []
    async with span_receiver() as collector:
        env = [
            *(f"OTEL_EXPORTER_OTLP_ENDPOINT={collector.endpoint}", "OTEL_METRICS_EXPORTER=none"),
            *("OTEL_BSP_SCHEDULE_DELAY=50", f"LINESIDE__TELEMETRY__LOG_FORMAT={log_format}"),
        ]
        async with service(config, env=env) as served:
            channel = served.channel()
            stub, records = DispatchServiceStub(channel), CallServiceStub(channel)
            metadata = (("x-api-key", CANARY), ("cookie", CANARY), ("baggage", f"k={quote(CANARY)}"))
            for call in calls:
                request = DispatchRequest(call=call)
                try:
                    told.append(str(await stub.Dispatch(request, metadata=metadata, timeout=10)))
                except grpc.aio.AioRpcError as error:
                    told.append(f"{error.details()} {error.trailing_metadata()}")
            for how in WAYS:
                lookup = GetCallRequest()
                lookup.key.tool, lookup.key.idempotency_key = "leak", how
                told.append(str(await records.GetCall(lookup, timeout=5)))
            for header in (f"Bearer {CANARY}", CANARY):
                with pytest.raises(grpc.aio.AioRpcError) as no:
                    await stub.Dispatch(
                        DispatchRequest(call=calls[0]), metadata=(("authorization", header),), timeout=5
                    )
                told.append(f"{no.value.details()} {no.value.trailing_metadata()}")
            told.append(str(await served.metrics()))
            assert (await served.terminated())[0] == 0
        assert len({span.name for span in collector.spans}) >= 3
        assert [found for span in collector.spans if (found := found_in(span.SerializeToString()))] == []
    assert [text for text in told if found_in(text)] == []
    [log] = tmp_path.glob("*.log")
    assert [line for line in log.read_text().splitlines() if found_in(line)] == []
    assert "ValueError" in log.read_text()  # what was raised is told all the same, by type and place
    for file in tmp_path.glob("lineside.db*"):
        assert found_in(file.read_bytes()) == [], file
