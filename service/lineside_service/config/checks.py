"""Rules that several parts of the config make together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lineside_service.config.mistakes import Mistake
from lineside_service.config.root import Config
from lineside_service.config.said import Said
from lineside_service.config.server import is_loopback
from lineside_service.config.tool import ToolConfig
from lineside_service.core.tool import Effect


def reconcile_mistakes(
    tools: Mapping[str, ToolConfig], known: Mapping[str, Any], said: Said
) -> Iterator[Mistake]:
    """`reconcile` must name a tool that may be asked at any time. known: every name in the config."""
    for name, tool in tools.items():
        words = _reconcile_words(tool.reconcile, tools, known) if tool.reconcile else ""
        if words:
            yield said.mistake(("tools", name, "reconcile"), f'"{tool.reconcile}" {words}')


def _reconcile_words(wanted: str, tools: Mapping[str, ToolConfig], known: Mapping[str, Any]) -> str:
    if wanted not in known:
        safe = ", ".join(sorted(name for name, tool in tools.items() if tool.effect is Effect.SAFE))
        return f"is no tool of this config. Safe tools: {safe or 'none yet'}"
    named = tools.get(wanted)
    if named is not None and named.effect is not Effect.SAFE:
        return 'must be a tool with effect = "safe": it is asked again and again'
    return "is disabled" if named is not None and not named.enabled else ""


def access_mistakes(config: Config, said: Said) -> Iterator[Mistake]:
    """Somebody must be able to call, and nobody by accident."""
    server, tokens = config.server, config.tokens
    if config.certificates and server.client_ca is None:
        yield said.mistake(
            ("certificates",), "need server.client_ca: the authority that signs callers' certificates"
        )
    hashes = [token.sha256 for token in tokens]
    for double in sorted({each for each in hashes if hashes.count(each) > 1}):
        yield said.mistake(("tokens",), f"the same sha256 stands twice: {double[:12]}…")
    reachable = not is_loopback(server.listen) and not server.allow_anonymous_off_loopback
    if reachable and not tokens and not config.certificates:
        yield said.mistake(
            ("server", "listen"),
            f'"{server.listen}" can be reached from other machines, but nobody could call: add [[tokens]] '
            "(`lineside-service token new`) or [[certificates]], or set "
            "server.allow_anonymous_off_loopback = true",
        )
