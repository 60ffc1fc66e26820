"""What `lineside-service check` says about a config that can be served."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from lineside_service.assembly.toolbox import load_tools, make_importable
from lineside_service.commands.explain import headline, rules
from lineside_service.config import Config, anonymous_allowed, in_words, load_config
from lineside_service.config.server import is_loopback
from lineside_service.core.tool import Effect, Idempotency, ToolSpec


def report(file: Path, *, brief: bool) -> Iterator[str]:
    """Lines that tell what the service would do; raises ConfigError with all mistakes before the first."""
    config = load_config(file)
    make_importable(config.directory)
    specs = [loaded.spec for loaded in load_tools(config)]
    return _lines(config, specs, brief=brief)


def fitted(line: str, columns: int) -> str:
    """The line wrapped to a terminal's columns, what follows hanging below its beginning."""
    margin = " " * (len(line) - len(line.lstrip()))
    return textwrap.fill(
        line.lstrip(),
        max(columns, 40),
        initial_indent=margin,
        subsequent_indent=margin + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _lines(config: Config, specs: list[ToolSpec], *, brief: bool) -> Iterator[str]:
    yield f"{config.file} is fine: {len(specs)} tool{'' if len(specs) == 1 else 's'}."
    if not brief:
        yield from _service(config)
    for spec in specs:
        if not brief:
            yield ""
        yield headline(spec)
        if not brief:
            yield from (f"    {rule}" for rule in rules(spec))
            is_default = "keep_done" not in config.tools[spec.name].model_fields_set
            yield from (f"    note: {note}" for note in _notes(spec, is_default=is_default))


def _service(config: Config) -> Iterator[str]:
    server = config.server
    yield f"    listens on {server.listen}, {'TLS' if server.tls_cert else 'no TLS'}; {_callers(config)}"
    if not is_loopback(server.listen) and server.tls_cert is None:
        yield "    note: tokens and arguments cross the network unencrypted; set server.tls_cert and tls_key"
    where = (
        f"SQLite file {config.store.path}"
        if config.store.kind == "sqlite"
        else "memory: gone with the process"
    )
    yield f"    remembers keyed calls in {where}"
    yield f"    after SIGTERM calls in flight get {in_words(server.grace)}"
    admin = config.admin.listen
    yield f"    /metrics, /livez, /readyz on {admin}" if config.admin.enabled else "    no admin port"


def _callers(config: Config) -> str:
    count = len(config.tokens) + len(config.certificates)
    known = f"{len(config.tokens)} tokens, {len(config.certificates)} certificates"
    if anonymous_allowed(config.server, has_credentials=count > 0):
        anybody = "anybody who can connect is tenant `local` with every scope"
        return f"{anybody}; {known}" if count else anybody
    return known


def _notes(spec: ToolSpec, *, is_default: bool) -> Iterator[str]:
    if is_default and (spec.effect is Effect.FINAL or spec.idempotency is Idempotency.NO):
        kept = in_words(spec.keep_done_s)
        yield f"{kept} after its end the same key runs it again (keep_done, as nothing else is said)"
    if spec.idempotency is Idempotency.YES and spec.reconcile:
        yield f"{spec.reconcile} is never asked: an idempotent tool leaves nothing unknown"
    if spec.idempotency is Idempotency.NO and not spec.reconcile:
        yield "without reconcile, unknown outcomes wait for a person"
    if spec.timeout_s > 60:
        yield "the timeout is longer than the 60 s that a call without a deadline gets"
