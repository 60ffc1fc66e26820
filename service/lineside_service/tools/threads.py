"""Own daemon threads for tools that are plain functions.

An executor's threads are waited for when the process exits, and a stuck one keeps a place of its pool for
ever. These are started when needed, used again when idle, and forgotten when the process ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar, cast

T = TypeVar("T")

MAX_IDLE = 32
"""Idle threads that are kept; one more ends instead."""


class NoThread(Exception):
    """The system gave no further thread; the function was not called."""


class _Job:
    """One call of one function, and where its end is told."""

    __slots__ = ("_call", "_context", "_done", "_loop", "name")

    def __init__(
        self, name: str, call: Callable[[], object], done: asyncio.Future[tuple[object, BaseException | None]]
    ) -> None:
        self.name = name
        self._call = call
        self._context = contextvars.copy_context()
        self._done = done
        self._loop = done.get_loop()

    def run(self) -> Callable[[], None]:
        """Call the function, whatever it raises; the returned callable tells the loop."""
        value: object = None
        error: BaseException | None = None
        try:
            value = self._context.run(self._call)
        except BaseException as raised:  # noqa: BLE001 - it goes to the waiter, SystemExit included
            error = raised
        return lambda: self._tell(value, error)

    def _tell(self, value: object, error: BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._settle, value, error)
        except RuntimeError:
            return  # the loop is closed: the process is ending, and nobody waits

    def _settle(self, value: object, error: BaseException | None) -> None:
        if not self._done.done():
            self._done.set_result((value, error))


class Threads:
    """Runs functions on daemon threads. `name` begins each thread's name."""

    def __init__(self, name: str = "tool") -> None:
        self._name = name
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[_Job]] = []
        self._alive = 0

    @property
    def alive(self) -> int:
        """How many threads there are, idle ones included."""
        return self._alive

    async def run(self, name: str, call: Callable[[], T]) -> T:
        """Call `call()` on a thread and return or raise what it does; raises NoThread if none can start.

        Does not end before the function does, even when cancelled: the wait goes on, so that the caller
        learns the real end. Only a second cancel ends it, because a loop that closes waits for its tasks.
        Context variables are those of the caller. name: shown as the thread's name.
        """
        done: asyncio.Future[tuple[object, BaseException | None]] = asyncio.get_running_loop().create_future()
        self._submit(_Job(name, call, done))
        try:
            await asyncio.wait((done,))
        except asyncio.CancelledError:
            await asyncio.wait((done,))
        value, error = done.result()
        if error is None:
            return cast(T, value)
        try:
            raise error
        finally:
            del error, done  # the traceback would keep this frame, and this frame the traceback

    def _submit(self, job: _Job) -> None:
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is not None:
            inbox.put(job)
            return
        inbox = SimpleQueue()
        inbox.put(job)
        thread = threading.Thread(
            target=self._work, args=(inbox,), name=f"{self._name}-{next(self._numbers)}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            raise NoThread("no thread could be started for a tool") from error
        with self._lock:
            self._alive += 1

    def _work(self, inbox: SimpleQueue[_Job]) -> None:
        thread = threading.current_thread()
        idle_name = thread.name
        while True:
            job = inbox.get()
            thread.name = f"{idle_name} {job.name}"
            tell = job.run()
            thread.name = idle_name
            del job
            with self._lock:
                is_kept = len(self._idle) < MAX_IDLE
                if is_kept:
                    self._idle.append(inbox)
                else:
                    self._alive -= 1
            tell()
            del tell
            if not is_kept:
                return
