"""Says why a command is silent: the service is not there yet, and what has a key is sent again and again."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

import grpc

from lineside.client import Client

PATIENCE_S = 1.0
"""A person starts to wonder after about so long; nearly every connection is there long before."""


@contextlib.contextmanager
def patience(client: Client, target: str, how_long: str) -> Iterator[None]:
    """Within it, a connection that is not there after PATIENCE_S is told on stderr, once.

    how_long: until when the command tries.
    """

    def say() -> None:
        sys.stderr.write(f"lineside: cannot reach {target} yet, trying {how_long}; Ctrl-C stops\n")
        sys.stderr.flush()

    timer = threading.Timer(PATIENCE_S, _tell_unless_ready, (client, say))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # the channel is closed next, and must not be looked at then


def _tell_unless_ready(client: Client, say: Callable[[], None]) -> None:
    channel = client._connected().channel  # noqa: SLF001 - the channel's state is no matter of the public API
    known = threading.Event()

    def first(state: grpc.ChannelConnectivity) -> None:
        if not known.is_set():
            known.set()
            if state is not grpc.ChannelConnectivity.READY:
                say()

    channel.subscribe(first)
    known.wait(PATIENCE_S)
    channel.unsubscribe(first)
