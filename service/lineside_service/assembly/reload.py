"""SIGHUP: a new config for the running service, whole or not at all; never new code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from lineside_service.assembly import translate
from lineside_service.assembly.exposure import warn_of_exposure
from lineside_service.assembly.logs import get_log, set_log_level
from lineside_service.assembly.service import Service, input_schemas, make_tools
from lineside_service.assembly.toolbox import LoadedTool
from lineside_service.assembly.translate import StartError
from lineside_service.config import Config, ConfigError
from lineside_service.core.tool import ToolSpec

Reread = Callable[[], tuple[Config, list[LoadedTool]]]
"""Reads and loads the config anew; may block; raises ConfigError."""

_TAKEN_OVER: Final = {
    "server": {"tls_cert", "tls_key", "client_ca", "allow_anonymous", "allow_anonymous_off_loopback"},
    "telemetry": {"log_level"},
}
"""Settings outside tools, tokens and certificates that take effect without a restart."""


class Reloader:
    """Takes over what can change while calls run. Breakers, slots and the ledger stay, by the tool's name."""

    def __init__(self, service: Service, reread: Reread) -> None:
        self._service = service
        self._config = service.config
        self._reread = reread
        self._log = get_log("lineside.service")

    async def reload(self) -> bool:
        """Read again and apply; whether it was. A broken config changes nothing, and the log says why."""
        try:
            config, loaded = await self._service.threads.run("config-reload", self._reread)
            tls = translate.tls_files(config)
            tools = make_tools(loaded, self._service.threads)
        except ConfigError as error:
            return self._refused([str(mistake) for mistake in error.mistakes])
        except StartError as error:
            return self._refused([str(error)])
        before = {tool.spec.name: tool.spec for tool in self._service.registry.everything()}
        self._service.registry.replace(tools, input_schemas(loaded))
        listening_on = self._service.config.server.listen
        self._service.auth.replace(
            tokens=translate.tokens(config),
            certificates=translate.certificates(config),
            anonymous=translate.lets_anonymous_in(config, listening_on=listening_on),
        )
        if tls is not None:
            self._service.edge.replace_tls(tls)
        set_log_level(config.telemetry.log_level)
        self._tell(before, [tool.spec for tool in tools], config)
        warn_of_exposure(self._service, self._log)
        self._config = config
        return True

    def _refused(self, mistakes: list[str]) -> bool:
        self._log.error("config.refused", mistakes=mistakes, note="nothing was changed")
        return False

    def _tell(self, before: dict[str, ToolSpec], now: Sequence[ToolSpec], config: Config) -> None:
        names = {spec.name for spec in now}
        self._log.info(
            "config.reloaded",
            tools=len(now),
            added=sorted(names - before.keys()),
            removed=sorted(before.keys() - names),
            changed=sorted(spec.name for spec in now if before.get(spec.name, spec) != spec),
            anonymous=self._service.auth.anonymous,
            note="config only: code that was imported before is not read again",
        )
        waiting = needs_restart(self._config, config)
        if waiting:
            self._log.warning("config.needs_restart", settings=waiting)


def needs_restart(before: Config, after: Config) -> list[str]:
    """The changed settings that a running service cannot take over, as dotted names."""
    changed = []
    for part in ("server", "admin", "store", "telemetry"):
        old, new = getattr(before, part), getattr(after, part)
        names = set(type(old).model_fields) - _TAKEN_OVER.get(part, set())
        changed += [f"{part}.{name}" for name in sorted(names) if getattr(old, name) != getattr(new, name)]
    for name in ("tls_cert", "client_ca"):  # renewed files are taken over, TLS itself is not
        if (getattr(before.server, name) is None) != (getattr(after.server, name) is None):
            changed.append(f"server.{name}")
    return changed
