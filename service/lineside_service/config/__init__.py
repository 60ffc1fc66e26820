"""The config: frozen, validated, read once. The only package that reads the environment."""

from __future__ import annotations

from lineside_service.config.load import load_config
from lineside_service.config.mistakes import ConfigError, Mistake
from lineside_service.config.otel import OtelEnvironment
from lineside_service.config.parts import CertificateConfig, StoreConfig, TelemetryConfig, TokenConfig
from lineside_service.config.quantity import duration_s, in_words
from lineside_service.config.root import Config
from lineside_service.config.said import ENV_PREFIX, FLAGS
from lineside_service.config.server import AdminConfig, ServerConfig, anonymous_allowed, is_loopback
from lineside_service.config.tool import BreakerConfig, RetryConfig, ToolConfig

__all__ = [
    "ENV_PREFIX",
    "FLAGS",
    "AdminConfig",
    "BreakerConfig",
    "CertificateConfig",
    "Config",
    "ConfigError",
    "Mistake",
    "OtelEnvironment",
    "RetryConfig",
    "ServerConfig",
    "StoreConfig",
    "TelemetryConfig",
    "TokenConfig",
    "ToolConfig",
    "anonymous_allowed",
    "duration_s",
    "in_words",
    "is_loopback",
    "load_config",
]
