"""The process: config in, one line when it serves, signals, exit code out."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NoReturn

from lineside_service.assembly.lifetime import Addresses, Lifetime
from lineside_service.assembly.logs import SERVICE_NAME, get_log, set_up_logs
from lineside_service.assembly.reload import Reloader, Reread
from lineside_service.assembly.service import Service, assembled
from lineside_service.assembly.toolbox import LoadedTool, load_tools, make_importable
from lineside_service.assembly.translate import StartError
from lineside_service.config import Config, ConfigError, OtelEnvironment, load_config

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_CONFIG: Final = 2

_LEFTOVERS_S: Final = 0.2
"""What tasks that ignore their cancellation get before the process ends over their heads."""


def run(file: Path, flags: Mapping[str, Any]) -> int:
    """Serve until a signal says otherwise; returns the exit code.

    0: drained. 1: it could not start, said in one message on stderr. 2: the config has mistakes, each said.
    A second signal n ends the process at once with 128 + n; what was acknowledged is in the store already.
    """

    def reread() -> tuple[Config, list[LoadedTool]]:
        config = load_config(file, flags)
        return config, load_tools(config)

    make_importable(file.absolute().parent)
    try:
        config, loaded = reread()
    except ConfigError as error:
        for mistake in error.mistakes:
            print(mistake, file=sys.stderr)  # noqa: T201 - there is no log before there is a config
        return EXIT_CONFIG
    env = OtelEnvironment()
    set_up_logs(
        level=config.telemetry.log_level,
        json_lines=_JSON_LINES[config.telemetry.log_format],
        service=env.named or SERVICE_NAME,
    )
    loop = asyncio.new_event_loop()
    try:
        _run_on(loop, _serve(config, loaded, reread, env))
        code = EXIT_OK
    except StartError as error:
        print(f"lineside-service: cannot start: {error}", file=sys.stderr)  # noqa: T201 - for whoever typed it
        code = EXIT_FAILED
    _leave_if_held(loop, code)
    loop.close()
    return code


def _run_on(loop: asyncio.AbstractEventLoop, serving: Coroutine[Any, Any, None]) -> None:
    """Run the loop until `serving` has ended, whatever else raises in it.

    A SystemExit or KeyboardInterrupt in a task that a tool started (Ctrl-C is a signal handler's here) leaves
    the loop, although it belongs to who awaits that task; the loop itself can go on.
    """
    task = loop.create_task(serving)
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done():
                raise
            get_log("lineside.service").error("loop.exit_refused", error_type=type(error).__name__)


_JSON_LINES: Final[Mapping[str, bool | None]] = {"auto": None, "json": True, "console": False}


async def _serve(config: Config, loaded: list[LoadedTool], reread: Reread, env: OtelEnvironment) -> None:
    signals = _Signals()
    async with assembled(config, loaded, env) as service:
        lifetime = Lifetime(service)
        try:
            addresses = await lifetime.start()
            keep_pauses_short()
            _announce(service, addresses)
            await signals.until_stopped(Reloader(service, reread))
            await lifetime.drain()
        finally:
            await lifetime.close()


class _Signals:
    """SIGTERM and SIGINT stop, a second one kills; SIGHUP reloads. Made on the running loop."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._reload = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopped, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)
        os.register_at_fork(after_in_child=_forget_signals)

    async def until_stopped(self, reloader: Reloader) -> None:
        """Reload as often as asked, one after the other, until the first stop."""
        reloads = asyncio.get_running_loop().create_task(self._reloads(reloader), name="reloads")
        try:
            await self._stop.wait()
        finally:
            reloads.cancel()

    async def _reloads(self, reloader: Reloader) -> None:
        while True:
            await self._reload.wait()
            self._reload.clear()
            await reloader.reload()

    def _stopped(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            get_log("lineside.service").warning("drain.cut_short", signal=number.name)
            _end_now(128 + number)
        self._stop.set()


def _forget_signals() -> None:
    """Take a signal as any process does, in a child that a tool forks (multiprocessing, say).

    It has our handlers and our end of the loop's wake-up pipe: told to end, it would not, and its SIGTERM
    would come out of the pipe as one for us.
    """
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def keep_pauses_short() -> None:
    """Never look again at what the start made, and collect the oldest cycles often, while they are few.

    Measured with 50 calls in flight: full collections of 50-160 ms, in which every call that is due comes too
    late, become some of 5 ms; the time spent on them all together stays the same. Young objects are looked at
    after 5,000 new ones, not after 700, since most are gone by then: a keyless call takes 5 to 6 % less time,
    of which 3.6 us were the collector's and now 1.0 us are, and no pause is over 2 ms.
    """
    gc.freeze()
    gc.set_threshold(5_000, 10, 1)
    gc.enable()


def _announce(service: Service, addresses: Addresses) -> None:
    """The one line on stdout: scripts may wait for SERVING."""
    store = service.config.store
    where = f"sqlite {store.path}" if store.kind == "sqlite" else "memory"
    tools = sum(1 for tool in service.registry.everything() if tool.spec.enabled)
    admin = f"http://{addresses.admin}" if addresses.admin else "off"
    print(  # noqa: T201 - the line that tells whoever started it where to call
        f"lineside-service {version('lineside-service')} SERVING on {addresses.grpc}: {tools} tools, "
        f"store {where}, admin {admin}, {service.otel.exports}",
        flush=True,
    )


def _leave_if_held(loop: asyncio.AbstractEventLoop, code: int) -> None:
    """End the process here if a tool would keep it from ending by itself.

    Everything that counts is written by now. Left over are tools that swallow their cancellation, and threads
    that their libraries started; the interpreter would wait for either without a bound.
    """
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(_settled(tasks, loop.shutdown_asyncgens(), loop.shutdown_default_executor()))
    held = [task.get_name() for task in tasks if not task.done()]
    held += [
        thread.name
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.current_thread()
    ]
    if held:
        get_log("lineside.service").warning("exit.forced", held_by=sorted(held)[:20], count=len(held))
        _end_now(code)


async def _settled(tasks: set[asyncio.Task[Any]], *ends: Coroutine[Any, Any, None]) -> None:
    waits = {*tasks, *(asyncio.ensure_future(end) for end in ends)}
    await asyncio.wait(waits, timeout=_LEFTOVERS_S)


def _end_now(code: int) -> NoReturn:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more
            stream.flush()
    os._exit(code)
