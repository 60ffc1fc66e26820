"""The admin port over plain HTTP."""

from __future__ import annotations

import aiohttp
import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from lineside_service.edge.admin import AdminServer
from lineside_service.edge.gauges import observe_edge
from tests.edge.test_batch import Stream, items_of
from tests.support.scripted_tool import answer
from tests.support.serving import serving


class Readiness:
    """What a test says."""

    def __init__(self) -> None:
        self.now = (True, "")

    def __call__(self) -> tuple[bool, str]:
        """Ask."""
        return self.now


@pytest.mark.asyncio
async def test_probes_tell_alive_and_ready_apart() -> None:
    """Alive as long as it answers; ready with its reason."""
    ready = Readiness()
    admin = AdminServer(host="127.0.0.1", port=0, ready=ready, metrics=CollectorRegistry())
    base = f"http://127.0.0.1:{await admin.start()}"
    async with aiohttp.ClientSession() as session:

        async def get(path: str) -> tuple[int, str]:
            async with session.get(base + path) as response:
                return response.status, await response.text()

        assert await get("/livez") == (200, "ok\n")
        assert await get("/readyz") == (200, "ok\n")
        ready.now = (False, "draining")
        assert await get("/livez") == (200, "ok\n")
        assert await get("/readyz") == (503, "draining\n")
        assert (await get("/other"))[0] == 404
    await admin.close()


@pytest.mark.asyncio
async def test_metrics_hold_durations_and_the_edges_gauges() -> None:
    """In Prometheus' text form, from the same instruments that OTLP would send."""
    registry = CollectorRegistry()
    meters = MeterProvider([PrometheusMetricReader(registry=registry)], shutdown_on_exit=False)
    admin = AdminServer(host="127.0.0.1", port=0, ready=Readiness(), metrics=registry)
    base = f"http://127.0.0.1:{await admin.start()}"
    async with serving() as served, aiohttp.ClientSession() as session:
        observe_edge(meters.get_meter("edge"), served.server)
        served.add("echo", answer(1))
        stream = Stream(served)
        await stream.send(items_of([("a", "echo")]))
        await stream.items(1)
        async with session.get(f"{base}/metrics") as response:
            assert response.status == 200
            assert response.content_type == "text/plain"
            families = {
                family.name: family for family in text_string_to_metric_families(await response.text())
            }
        values = {name: family.samples[0].value for name, family in families.items() if family.samples}
        assert values["dispatch_batch_streams"] == 1
        assert values["dispatch_rpc_active"] == 1
        assert values["dispatch_batch_items"] == 0
        await stream.finish()
    await admin.close()
    meters.shutdown()


@pytest.mark.asyncio
async def test_a_taken_admin_port_is_an_error() -> None:
    """Said by the system, at start."""
    first = AdminServer(host="127.0.0.1", port=0, ready=Readiness(), metrics=CollectorRegistry())
    port = await first.start()
    second = AdminServer(host="127.0.0.1", port=port, ready=Readiness(), metrics=CollectorRegistry())
    with pytest.raises(OSError, match="address already in use"):
        await second.start()
    await second.close()
    await first.close()
