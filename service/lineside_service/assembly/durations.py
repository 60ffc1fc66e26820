"""Adds the durations of RPCs, counted by the edge, to what the metrics SDK's readers collect."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from opentelemetry.sdk.metrics import Histogram as Instrument
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricReader,
    MetricsData,
)

from lineside_service.edge import semconv
from lineside_service.edge.durations import BOUNDS_S, CallDurations, Series


def reader_with(durations: CallDurations, kind: type[MetricReader], *args: Any, **settings: Any) -> Any:
    """A reader of this kind whose every collection has the histogram of the durations in it."""

    class WithDurations(kind):  # type: ignore[misc, valid-type]
        def _receive_metrics(self, metrics_data: MetricsData, *rest: Any, **options: Any) -> None:
            super()._receive_metrics(added.beside(metrics_data), *rest, **options)

    reader = WithDurations(*args, **settings)
    wanted = reader._instrument_class_temporality.items()  # noqa: SLF001 - what readers are extended by
    added = _Histogram(durations, next(how for kind, how in wanted if issubclass(kind, Instrument)))
    return reader


class _Histogram:
    """What one reader has been told so far. With delta temporality it gets what is new since then."""

    def __init__(self, durations: CallDurations, temporality: AggregationTemporality) -> None:
        self._durations = durations
        self._temporality = temporality
        self._began_ns = time.time_ns()
        self._told: dict[frozenset[tuple[str, str]], Series] = {}

    def beside(self, collected: MetricsData) -> MetricsData:
        """The collection with the histogram in its first scope, which is the service's own."""
        points = self._points()
        if not points or not collected.resource_metrics:
            return collected
        metric = Metric(
            name=semconv.CALL_DURATION,
            description="Time from an RPC's arrival to its status",
            unit="s",
            data=Histogram(data_points=points, aggregation_temporality=self._temporality),
        )
        first, *others = collected.resource_metrics
        scope, *scopes = first.scope_metrics
        scope = replace(scope, metrics=[*scope.metrics, metric])
        return replace(collected, resource_metrics=[replace(first, scope_metrics=[scope, *scopes]), *others])

    def _points(self) -> list[HistogramDataPoint]:
        now_ns, since_ns = time.time_ns(), self._began_ns
        series = self._durations.read()
        if self._temporality is AggregationTemporality.DELTA:
            self._began_ns = now_ns
            series = [new for one in series if sum((new := self._since_told(one)).counts)]
        return [
            HistogramDataPoint(
                attributes=one.attributes,
                start_time_unix_nano=since_ns,
                time_unix_nano=now_ns,
                count=sum(one.counts),
                sum=one.sum_s,
                bucket_counts=one.counts,
                explicit_bounds=BOUNDS_S,
                min=one.min_s,
                max=one.max_s,
            )
            for one in series
        ]

    def _since_told(self, series: Series) -> Series:
        """What came since the last time; its least and greatest are known to the bucket."""
        key = frozenset(series.attributes.items())
        before = self._told.get(key) or Series(series.attributes)
        self._told[key] = series
        counts = [now - then for now, then in zip(series.counts, before.counts, strict=True)]
        filled = [index for index, count in enumerate(counts) if count] or [0]
        lowest, highest = filled[0], filled[-1]
        least = BOUNDS_S[lowest - 1] if lowest else series.min_s
        most = BOUNDS_S[highest] if highest < len(BOUNDS_S) else series.max_s
        return Series(series.attributes, counts, series.sum_s - before.sum_s, least, most)
