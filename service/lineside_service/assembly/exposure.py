"""Warnings about a port that other machines can reach."""

from __future__ import annotations

from lineside_service.assembly.service import Service
from lineside_service.config import is_loopback
from lineside_service.engine.telemetry import Log


def warn_of_exposure(service: Service, log: Log) -> None:
    """Say what anybody on the network could see or do; nothing where only this machine can call."""
    server = service.config.server
    if is_loopback(server.listen):
        return
    if server.tls_cert is None:
        log.warning("server.unencrypted", note="tokens and arguments cross the network in the clear")
    if service.auth.anonymous:
        log.warning("server.anonymous", note="everybody who reaches the port may do everything")
