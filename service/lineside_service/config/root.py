"""The whole config as one value."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, PrivateAttr

from lineside_service.config.parts import CertificateConfig, StoreConfig, TelemetryConfig, TokenConfig
from lineside_service.config.section import Section
from lineside_service.config.server import AdminConfig, ServerConfig
from lineside_service.config.tool import ToolConfig


def _tool_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name):
        raise ValueError('a tool is named with 1-128 letters, digits, "_", "." or "-"')
    return name


class Config(Section):
    """Everything an operator decides. `file`: the config file, absolute; None = defaults alone."""

    server: ServerConfig = ServerConfig()
    admin: AdminConfig = AdminConfig()
    store: StoreConfig = StoreConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    tokens: tuple[TokenConfig, ...] = ()
    certificates: tuple[CertificateConfig, ...] = ()
    tools: dict[Annotated[str, AfterValidator(_tool_name)], ToolConfig] = Field(default_factory=dict)

    _file: Path = PrivateAttr(default=Path("lineside.toml"))

    @property
    def file(self) -> Path:
        """The config file, absolute."""
        return self._file

    @property
    def directory(self) -> Path:
        """Where relative paths and the tools' modules are looked for."""
        return self._file.parent
