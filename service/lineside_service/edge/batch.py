"""DispatchBatch: the streams that are open, and how they end when the service drains."""

from __future__ import annotations

import itertools

from lineside_service.core.errors import Failure
from lineside_service.edge.refusals import draining
from lineside_service.edge.rpc import RawContext, Rpc
from lineside_service.edge.stream import BatchStream, Behind
from lineside_service.edge.trailers import FRAMES_KEY


class BatchMethod:
    """DispatchBatch, over the engine's dispatcher."""

    def __init__(self, behind: Behind) -> None:
        self._behind = behind
        self._numbers = itertools.count(1)
        self._streams: set[BatchStream] = set()
        self._draining = False

    @property
    def open_streams(self) -> int:
        """Streams being served."""
        return len(self._streams)

    @property
    def items_in_flight(self) -> int:
        """Items of all streams whose answer has not been written."""
        return sum(stream.in_flight for stream in list(self._streams))

    async def __call__(self, rpc: Rpc, context: RawContext) -> Failure | None:
        """Serve one stream to its end."""
        if self._draining:
            rpc.trailers = ((FRAMES_KEY, "0"),)
            return draining()
        stream = BatchStream(self._behind, rpc, context, next(self._numbers))
        self._streams.add(stream)
        try:
            return await stream.run()
        finally:
            self._streams.discard(stream)

    def begin_drain(self) -> None:
        """Refuse new streams; the open ones take no further frame and end when what they took is answered."""
        self._draining = True
        for stream in self._streams:
            stream.drain()
