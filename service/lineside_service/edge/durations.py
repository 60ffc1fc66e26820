"""How long RPCs took, as plain integers: what a histogram of the metrics SDK would hold.

Recording into the SDK's own costs 10 us per RPC, a tenth of all that the service adds to a call (measured);
this costs 0.5 us. The readers of metrics add what is counted here to what they collect.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lineside_service.edge import semconv

BOUNDS_S = semconv.CALL_DURATION_BOUNDS_S


@dataclass(slots=True)
class Series:
    """The RPCs of one method that ended with one status. counts: by bucket, the last one without a bound.

    sum_s, min_s, max_s: of their durations, seconds.
    """

    attributes: Mapping[str, str]
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0
    min_s: float = float("inf")
    max_s: float = 0.0

    def copy(self) -> Series:
        """As it stands now."""
        return Series(self.attributes, list(self.counts), self.sum_s, self.min_s, self.max_s)


class CallDurations:
    """Recorded on the loop's thread, read on any."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], Series] = {}

    def record(self, method: str, code: str, elapsed_s: float) -> None:
        """One RPC has ended. method: `package.Service/Method`; code: name of its status."""
        series = self._series.get((method, code)) or self._begin(method, code)
        series.counts[bisect_left(BOUNDS_S, elapsed_s)] += 1
        series.sum_s += elapsed_s
        series.min_s = min(series.min_s, elapsed_s)
        series.max_s = max(series.max_s, elapsed_s)

    def read(self) -> Sequence[Series]:
        """Every series so far."""
        return [series.copy() for series in list(self._series.values())]

    def _begin(self, method: str, code: str) -> Series:
        attributes = {
            semconv.RPC_SYSTEM: semconv.GRPC,
            semconv.RPC_METHOD: method,
            semconv.RPC_STATUS: code,
        }
        if code in semconv.SERVER_ERRORS:
            attributes[semconv.ERROR_TYPE] = code
        series = self._series[method, code] = Series(attributes)
        return series
