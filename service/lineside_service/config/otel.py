"""The standard OTEL_* variables that the set-up of telemetry must honour itself."""

from __future__ import annotations

from urllib.parse import unquote

from pydantic_settings import BaseSettings, SettingsConfigDict


class OtelEnvironment(BaseSettings):
    """OTEL_* as given; the SDK reads the rest of them (headers, timeouts, samplers, limits) by itself.

    traces_exporter, metrics_exporter: `none`, `otlp`, `console`, or a comma-separated list; empty = OTLP when
    an endpoint is named, nothing otherwise.
    """

    model_config = SettingsConfigDict(env_prefix="OTEL_", extra="ignore", frozen=True)

    sdk_disabled: str = ""
    service_name: str = ""
    resource_attributes: str = ""
    propagators: str = ""
    traces_exporter: str = ""
    metrics_exporter: str = ""
    exporter_otlp_endpoint: str = ""
    exporter_otlp_traces_endpoint: str = ""
    exporter_otlp_metrics_endpoint: str = ""
    exporter_otlp_protocol: str = ""
    exporter_otlp_traces_protocol: str = ""
    exporter_otlp_metrics_protocol: str = ""

    @property
    def named(self) -> str:
        """What the operator calls this service, empty when nothing says; the SDK reads it the same way."""
        if self.service_name:
            return self.service_name
        pairs = (pair.partition("=") for pair in self.resource_attributes.split(","))
        names = [unquote(value.strip()) for key, _, value in pairs if key.strip() == "service.name"]
        return names[-1] if names else ""

    @property
    def is_disabled(self) -> bool:
        """Whether OTEL_SDK_DISABLED is `true` in any case; the specification reads all else as no."""
        return self.sdk_disabled.strip().lower() == "true"
