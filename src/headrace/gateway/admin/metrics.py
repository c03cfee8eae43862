"""What the gateway counts. Hot paths add to plain numbers; Prometheus' forms are made on scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from headrace.gateway.admin.clock_offset import ClockOffsets
from headrace.gateway.ingest.commit_group import MeasuredClockOffsets
from headrace.gateway.ingest.conservation import Counts
from headrace.log.contract import QUALITIES, Group

__all__ = ["Metrics"]

_EVENT_BUCKETS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
_SECONDS_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)


class Metrics(Collector):
    """Counters are written by one thread each and read by any."""

    def __init__(self) -> None:
        self.responses: dict[int, int] = {}
        self.body_bytes = 0
        self.counts: dict[str, Counts] = {}
        self.clock_offsets: dict[str, ClockOffsets] = {}
        self.violations: Callable[[], Mapping[str, str]] = dict
        self.sampled_records = 0
        self.sampled_with_unknown_fields = 0
        self.queue: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.forwarding: Callable[[], int] = lambda: 0
        self.is_healthy: Callable[[], bool] = lambda: True
        self.producers: Callable[[], Iterable[Metric]] = lambda: ()
        self._registry = CollectorRegistry()
        self._group_events = Histogram(
            "headrace_gateway_group_events",
            "Events stored by one group commit",
            buckets=_EVENT_BUCKETS,
            registry=self._registry,
        )
        self._append_seconds = Histogram(
            "headrace_gateway_append_seconds",
            "Time to make one group durable, fsync included",
            buckets=_SECONDS_BUCKETS,
            registry=self._registry,
        )
        self._registry.register(self)

    def add_response(self, status: int) -> None:
        self.responses[status] = self.responses.get(status, 0) + 1

    def observe_group(self, group: Group, seconds: float) -> None:
        self._group_events.observe(sum(batch.batch.num_rows for batch in group.batches))
        self._append_seconds.observe(seconds)

    def add_counts(self, counts: Mapping[str, Counts]) -> None:
        """A stream's totals are replaced as a whole: a reader never sees half of a group."""
        for stream, added in counts.items():
            self.counts[stream] = self.counts.get(stream, Counts()).plus(added)

    def add_clock_offsets(self, measured: Iterable[MeasuredClockOffsets]) -> None:
        for one in measured:
            self.clock_offsets.setdefault(one.stream, ClockOffsets()).add(
                one.producer, one.clock_offsets, one.qualities
            )

    def add_sample(self, unknown_fields: int) -> None:
        """A record is looked at a few times a second: reading every field of all would cost more
        than storing them."""
        self.sampled_records += 1
        self.sampled_with_unknown_fields += unknown_fields > 0

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        responses = CounterMetricFamily(
            "headrace_gateway_responses", "Requests answered", labels=["status"]
        )
        for status, count in sorted(self.responses.items()):
            responses.add_metric([str(status)], count)
        yield responses
        yield CounterMetricFamily(
            "headrace_gateway_body_bytes", "Bytes of event bodies received", self.body_bytes
        )
        events = CounterMetricFamily(
            "headrace_gateway_events",
            "Records by what became of them: received = appended + retried + dead",
            labels=["stream", "outcome"],
        )
        for stream, counts in sorted(self.counts.items()):
            for outcome in ("received", "appended", "retried", "dead"):
                events.add_metric([stream, outcome], getattr(counts, outcome))
        yield events
        violated = GaugeMetricFamily(
            "headrace_gateway_conservation_violated",
            "1 for a stream that is closed because events were lost or doubled",
            labels=["stream"],
        )
        for stream in sorted(self.counts):
            violated.add_metric([stream], int(stream in self.violations()))
        yield violated
        yield self._clock_events()
        yield CounterMetricFamily(
            "headrace_gateway_sampled_records", "Records sampled", self.sampled_records
        )
        yield CounterMetricFamily(
            "headrace_gateway_sampled_records_with_unknown_fields",
            "Sampled records with a field that the stream does not declare",
            self.sampled_with_unknown_fields,
        )
        requests, size = self.queue()
        yield GaugeMetricFamily("headrace_gateway_queue_requests", "Requests waiting", requests)
        yield GaugeMetricFamily("headrace_gateway_queue_bytes", "Bytes waiting", size)
        yield GaugeMetricFamily(
            "headrace_gateway_forwarding", "Requests the engine is answering", self.forwarding()
        )
        yield GaugeMetricFamily(
            "headrace_gateway_healthy", "1 while the log can be written", int(self.is_healthy())
        )
        yield from self.producers()

    def _clock_events(self) -> Metric:
        judged = CounterMetricFamily(
            "headrace_gateway_clock_events",
            "Events of streams with clocks, by what their event time rests on",
            labels=["stream", "quality"],
        )
        for stream, clock_offsets in sorted(self.clock_offsets.items()):
            for quality, count in zip(QUALITIES, clock_offsets.totals().qualities, strict=True):
                judged.add_metric([stream, quality], count)
        return judged
