"""Backends of the log, and events to put into them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest
from holes import HolesReader, HolesWriter

from headrace.log.contract import (
    NO_EVENT_TIME,
    Completeness,
    Gap,
    LineReport,
    LogReader,
    LogWriter,
    PartitionBatch,
    ProducerRange,
    ProducerReport,
    stored_schema,
)
from headrace.log.embedded.backend import open_reader, open_writer
from headrace.model.definitions import Column, Retention, Stream
from headrace.model.settings import GatewaySettings, LogSettings
from headrace.model.types import parse_type


def shop_stream(
    name: str = "transactions",
    *,
    partitions: int = 3,
    retention: Retention | None = None,
    extra: Sequence[Column] = (),
    event_time: str | None = "created_at",
) -> Stream:
    columns = (
        Column("id", parse_type("BIGINT"), nullable=False),
        Column("user_id", parse_type("STRING")),
        Column("amount", parse_type("DECIMAL(18, 2)"), nullable=False),
        Column("created_at", parse_type("TIMESTAMP"), nullable=False),
        *extra,
    )
    return Stream(
        name,
        columns,
        event_time=event_time,
        partitions=partitions,
        retention=retention or Retention(),
    )


def make_batch(
    stream: Stream, first: int, count: int, *, received: int = 1_000, times: Any = None
) -> pa.RecordBatch:
    """Events whose id counts from `first`; every other column follows from the id."""
    ids = list(range(first, first + count))
    values: dict[str, Any] = {
        "id": ids,
        "user_id": [None if i % 7 == 0 else f"user-{i % 5}" for i in ids],
        "amount": [Decimal(i).scaleb(-2) for i in ids],
        "created_at": list(times) if times is not None else [i * 1_000 for i in ids],
        "_received_at": [received] * count,
    }
    schema = stored_schema(stream)
    arrays = [pa.array(values.get(f.name, [None] * count), f.type) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def to_partition(stream: Stream, partition: int, first: int, count: int) -> PartitionBatch:
    return PartitionBatch(stream.name, partition, make_batch(stream, first, count))


def read_ids(reader: LogReader, stream: str, partition: int) -> list[int]:
    start, end = reader.starts(stream)[partition], reader.ends(stream)[partition]
    return [
        i
        for piece in reader.read(stream, partition, start, end, ["id"])
        for i in piece.batch.column("id").to_pylist()
    ]


def places(reader: LogReader, stream: str, partition: int) -> list[int]:
    """The offset of each event that the log holds, and behind them the end."""
    start, end = reader.starts(stream)[partition], reader.ends(stream)[partition]
    found = reader.read(stream, partition, start, end, [])
    return [*(int(o) for piece in found for o in piece.offsets), end]


def rows(reader: LogReader, stream: str) -> tuple[int, ...]:
    """How many events each partition holds."""
    bounds = zip(reader.starts(stream), reader.ends(stream), strict=True)
    return tuple(reader.rows_of(stream, p, *both) for p, both in enumerate(bounds))


class Backend(Protocol):
    """What a backend must offer to be put under the conformance suite."""

    def writer(self, streams: Sequence[Stream], **settings: Any) -> LogWriter: ...

    def reader(self, streams: Sequence[Stream]) -> LogReader: ...


@dataclass
class EmbeddedBackend:
    directory: Path
    opened: list[Any] = field(default_factory=list)

    def writer(
        self,
        streams: Sequence[Stream],
        log: LogSettings = LogSettings(journal_bytes_max=256 * 1024),  # noqa: B008
        gateway: GatewaySettings = GatewaySettings(),  # noqa: B008
    ) -> Any:
        self.opened.append(open_writer(self.directory, streams, log, gateway))
        return self.opened[-1]

    def reader(self, streams: Sequence[Stream]) -> Any:
        self.opened.append(open_reader(self.directory, streams))
        return self.opened[-1]

    def close(self) -> None:
        for item in self.opened:
            item.close()


class HolesBackend(EmbeddedBackend):
    """The same log with holes between its offsets: it shows what the contract leaves open."""

    def writer(self, streams: Sequence[Stream], **settings: Any) -> Any:
        return HolesWriter(super().writer(streams, **settings))

    def reader(self, streams: Sequence[Stream]) -> Any:
        return HolesReader(super().reader(streams))


class NaiveLines:
    """Number lines the plain way: every number by itself, counted again after each step."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, int], dict[str, Any]] = {}
        self.heard: dict[str, int] = {}
        self.resets: dict[str, int] = {}

    def add(self, item: ProducerRange, at: int) -> None:
        self.heard[item.producer] = max(at, self.heard.get(item.producer, 0))
        self.resets.setdefault(item.producer, 0)
        if not item.count:
            return
        epochs = [epoch for producer, epoch in self.lines if producer == item.producer]
        if epochs and item.epoch > max(epochs):
            self.resets[item.producer] += 1
        fresh = {"seen": set(), "fills": 0, "again": 0, "noticed": {}, "times": [], "events": []}
        line = self.lines.setdefault((item.producer, item.epoch), fresh)
        seen = line["seen"]
        highest = max(seen, default=-1)
        for number in range(item.first, item.first + item.count):
            line["again"] += number in seen
            line["fills"] += number not in seen and number < highest
        seen |= set(range(item.first, item.first + item.count))
        missing = set(range(min(seen), max(seen))) - seen
        noticed = line["noticed"]
        line["noticed"] = {number: noticed.get(number, at) for number in missing}
        line["times"].append(at)
        line["events"].append(item.event_time_microseconds)

    def reports(self) -> list[ProducerReport]:
        return [self._report(producer) for producer in sorted(self.heard)]

    def _report(self, producer: str) -> ProducerReport:
        epochs = sorted((e for p, e in self.lines if p == producer), reverse=True)
        lines = tuple(self._line(epoch, self.lines[producer, epoch]) for epoch in epochs)
        return ProducerReport(producer, self.heard[producer], self.resets[producer], lines)

    def _line(self, epoch: int, line: dict[str, Any]) -> LineReport:
        seen, noticed, newest = line["seen"], line["noticed"], max(line["events"])
        gaps: list[Gap] = []
        for number in sorted(noticed):
            if gaps and gaps[-1].last == number - 1:
                assert gaps[-1].noticed_at_microseconds == noticed[number]
                gaps[-1] = Gap(gaps[-1].first, number, noticed[number])
            else:
                gaps.append(Gap(number, number, noticed[number]))
        return LineReport(
            epoch,
            min(seen),
            max(seen),
            len(seen),
            len(noticed),
            tuple(gaps),
            False,
            line["fills"],
            line["again"],
            line["times"][0],
            max(line["times"]),
            None if newest == NO_EVENT_TIME else newest,
        )

    def total(self) -> Completeness:
        lines = self.lines.values()
        return Completeness(
            len(self.heard),
            sum(len(line["noticed"]) for line in lines),
            sum(line["fills"] for line in lines),
            sum(line["again"] for line in lines),
            sum(self.resets.values()),
        )


BACKENDS: dict[str, Callable[[Path], EmbeddedBackend]] = {
    "embedded": EmbeddedBackend,
    "with holes": HolesBackend,
}


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Every backend of the log contract, empty."""
    made = BACKENDS[request.param](tmp_path / "log")
    yield made
    made.close()


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedBackend]:
    made = EmbeddedBackend(tmp_path / "log")
    yield made
    made.close()


@dataclass(frozen=True)
class Shop:
    """Builders, as one fixture: tests of a folder cannot import each other."""

    stream: Callable[..., Stream] = shop_stream
    batch: Callable[..., pa.RecordBatch] = make_batch
    to: Callable[..., PartitionBatch] = to_partition
    ids: Callable[..., list[int]] = read_ids
    places: Callable[..., list[int]] = places
    rows: Callable[..., tuple[int, ...]] = rows
    backend: type[EmbeddedBackend] = EmbeddedBackend
    naive_lines: type[NaiveLines] = NaiveLines


@pytest.fixture(scope="session")
def shop() -> Shop:
    return Shop()
