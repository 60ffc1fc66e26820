"""The standard OTEL_* variables that the set-up of telemetry must honour itself."""

from __future__ import annotations

from pydantic_settings import BaseSettings, SettingsConfigDict


class OtelEnvironment(BaseSettings):
    """OTEL_* as given; the SDK reads the rest of them (headers, timeouts, samplers, limits) by itself.

    traces_exporter, metrics_exporter: `none`, `otlp`, `console`, or a comma-separated list; empty = OTLP when
    an endpoint is named, nothing otherwise.
    """

    model_config = SettingsConfigDict(env_prefix="OTEL_", extra="ignore", frozen=True)

    sdk_disabled: str = ""
    service_name: str = ""
    traces_exporter: str = ""
    metrics_exporter: str = ""
    exporter_otlp_endpoint: str = ""
    exporter_otlp_traces_endpoint: str = ""
    exporter_otlp_metrics_endpoint: str = ""
    exporter_otlp_protocol: str = ""
    exporter_otlp_traces_protocol: str = ""
    exporter_otlp_metrics_protocol: str = ""

    @property
    def is_disabled(self) -> bool:
        """Whether OTEL_SDK_DISABLED is `true` in any case; the specification reads all else as no."""
        return self.sdk_disabled.strip().lower() == "true"
