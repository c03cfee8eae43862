"""Numbers that events carry, against the plain way to count them, event by event."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.compile import parse_sql
from headrace.log.contract import (
    Completeness,
    Gap,
    Group,
    LineReport,
    PartitionBatch,
    ProducerReport,
    accept_note,
    heard_note,
    stored_schema,
)
from headrace.log.sequences.event_sequence_streams import EventSequenceStreams
from headrace.model.definitions import Numbering, Stream

SQL = """CREATE STREAM readings (sensor STRING NOT NULL, seq INT NOT NULL, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 5 SECONDS LATE REVISE NUMBERED BY seq PER (sensor)"""
(STREAM,) = parse_sql(SQL).streams
TIMELESS = replace(STREAM, event_time=None)
Row = tuple[str, int, int]  # sensor, number, event time


def _batch(rows: list[Row], received: int, stream: Stream = STREAM) -> pa.RecordBatch:
    columns = [*zip(*rows, strict=True), [received] * len(rows)]
    schema = stored_schema(stream)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class Plain:
    """Every number by itself, one event after the other."""

    def __init__(self, has_time: bool) -> None:
        self.has_time = has_time
        self.lines: dict[str, list[dict[str, Any]]] = {}
        self.heard: dict[str, int] = {}

    def add(self, rows: list[Row], at: int) -> None:
        for sensor, number, time in rows:
            self.heard[sensor] = at
            if number >= 0:
                self._line(sensor, number, time, at)
        for lines in self.lines.values():
            for line in lines:
                seen, noticed = line["seen"], line["noticed"]
                missing = set(range(min(seen), max(seen))) - seen
                line["noticed"] = {number: noticed.get(number, at) for number in missing}

    def _line(self, sensor: str, number: int, time: int, at: int) -> None:
        lines = self.lines.setdefault(sensor, [])
        if not lines:
            lines.append(_fresh(at, time))
        line = lines[-1]
        if self.has_time:
            line = next((one for one in reversed(lines) if time >= one["started"]), lines[0])
        seen = line["seen"]
        is_newest = self.has_time and time > line["newest"] and line is lines[-1]
        if number in seen and is_newest and number < max(seen):
            line = _fresh(at, time)
            lines.append(line)
            seen = line["seen"]
        line["again"] += number in seen
        line["fills"] += number not in seen and number < max(seen, default=-1)
        seen.add(number)
        line["newest"] = max(line["newest"], time)
        line["last"] = at

    def reports(self) -> list[ProducerReport]:
        return [self._report(sensor) for sensor in sorted(self.heard)]

    def _report(self, sensor: str) -> ProducerReport:
        lines = self.lines.get(sensor, [])
        told = [self._told(epoch, line) for epoch, line in enumerate(lines)]
        resets = max(len(told) - 1, 0)
        return ProducerReport(
            sensor, self.heard[sensor], resets, tuple(reversed(told)), False, "events"
        )

    def _told(self, epoch: int, line: dict[str, Any]) -> LineReport:
        seen, gaps = line["seen"], list[Gap]()
        for number, noticed in sorted(line["noticed"].items()):
            if gaps and gaps[-1].last == number - 1:
                assert gaps[-1].noticed_at_microseconds == noticed
                gaps[-1] = Gap(gaps[-1].first, number, noticed)
            else:
                gaps.append(Gap(number, number, noticed))
        newest = line["newest"] if self.has_time else None
        counts = (min(seen), max(seen), len(seen), len(line["noticed"]))
        return LineReport(
            epoch, *counts, tuple(gaps), False, line["fills"], line["again"],
            line["first"], line["last"], newest,
        )  # fmt: skip

    def total(self) -> Completeness:
        lines = [line for lines in self.lines.values() for line in lines]
        return Completeness(
            len(self.heard),
            sum(len(line["noticed"]) for line in lines),
            sum(line["fills"] for line in lines),
            sum(line["again"] for line in lines),
            sum(len(lines) - 1 for lines in self.lines.values()),
        )


def _fresh(at: int, time: int) -> dict[str, Any]:
    return {"seen": set(), "fills": 0, "again": 0, "noticed": {}, "newest": -(2**63),
            "started": time, "first": at, "last": at}  # fmt: skip


def _loaded(stream: Stream, kept: list[Any]) -> EventSequenceStreams:
    numbered = EventSequenceStreams([stream], 100, 1_000)
    for records in kept:
        numbered.load(records)
    return numbered


ROW = st.tuples(st.sampled_from("abc"), st.integers(-1, 25), st.integers(0, 40))
IN_ORDER = st.builds(
    lambda sensor, first, count, time: [(sensor, first + n, time + n) for n in range(count)],
    st.sampled_from("abc"),
    st.integers(0, 20),
    st.integers(1, 9),
    st.integers(0, 40),
)
ROWS = st.one_of(
    st.lists(ROW, min_size=1, max_size=12),
    IN_ORDER,
    st.tuples(IN_ORDER, IN_ORDER).map(lambda both: [*both[0], *both[1]]),
)
STEP = st.tuples(ROWS, st.booleans())


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(STEP, max_size=12), stream=st.sampled_from([STREAM, TIMELESS]))
def test_any_order_of_numbers_is_counted_as_the_plain_way_counts(
    steps: list[tuple[list[Row], bool]], stream: Stream
) -> None:
    """Some steps are followed by a checkpoint from which everything is loaded anew."""
    plain = Plain(stream.event_time is not None)
    numbered, kept = EventSequenceStreams([stream], 100, 1_000), list[Any]()
    for at, (rows, is_loaded) in enumerate(steps, 1):
        plain.add(rows, at)
        numbered.add("Readings", _batch(rows, at, stream))
        if is_loaded:
            is_whole = at % 5 == 0
            kept = [] if is_whole else kept
            kept.append(numbered.take_changed(is_whole))
            numbered = _loaded(stream, kept)
        assert numbered.reports("readings", "", 10) == plain.reports()
        assert numbered.completeness("readings") == plain.total()


DECISION = st.tuples(st.booleans(), st.integers(0, 40), st.integers(1, 12), st.booleans())


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(DECISION, max_size=30))
def test_what_is_accepted_is_missed_no_more_until_it_comes(
    steps: list[tuple[bool, int, int, bool]],
) -> None:
    numbered, kept = EventSequenceStreams([TIMELESS], 100, 1_000), list[Any]()
    seen, accepted = set[int](), set[int]()
    for is_decision, first, count, is_loaded in steps:
        numbers = range(first, first + count)
        missing = set(range(min(seen, default=0), max(seen, default=0))) - seen
        if is_decision:
            (item,) = accept_note(1, "Readings", "a", -1, first, count).ranges
            numbered.decide(item)
            accepted |= set(numbers) & missing
        else:
            rows = [("a", n, 1) for n in numbers] + [("b", 1, 1)]
            numbered.add("readings", _batch(rows, 1, TIMELESS))
            seen, accepted = seen.union(numbers), accepted.difference(numbers)
        if is_loaded:
            kept.append(numbered.take_changed(False))
            numbered = _loaded(TIMELESS, kept)
        missing = set(range(min(seen, default=0), max(seen, default=0))) - seen - accepted
        assert numbered.completeness("readings").missing == len(missing)
        if seen:
            (line,) = numbered.reports("readings", "", 1)[0].lines
            gaps = [number for gap in line.gaps for number in range(gap.first, gap.last + 1)]
            assert gaps == sorted(missing)
            assert (line.missing, line.accepted) == (len(missing), len(accepted))


def test_many_writers_in_any_order_leave_no_gap(seed: int) -> None:
    rows = [(f"s{n % 50}", n // 50, n) for n in range(5_000)]
    random.Random(seed).shuffle(rows)
    numbered = EventSequenceStreams([STREAM], 100, 1_000)
    for at in range(0, 5_000, 500):
        numbered.add("readings", _batch(rows[at : at + 500], at + 1))
    found = numbered.completeness("readings")
    assert (found.producers, found.missing, found.duplicates, found.resets) == (50, 0, 0, 0)
    assert all(len(r.lines[0].gaps) == 0 for r in numbered.reports("readings", "", 100))


def test_a_writer_that_starts_over_again_and_again_is_bounded() -> None:
    numbered = EventSequenceStreams([STREAM], 100, 1_000)
    numbered.add("readings", _batch([("a", n % 2, n) for n in range(100)], 1))
    (report,) = numbered.reports("readings", "", 1)
    assert report.resets == 8
    assert report.lines[0].duplicates == 100 - 2 * 9


def test_what_is_beyond_the_bounds_is_forgotten() -> None:
    numbered = EventSequenceStreams([STREAM], 8, 3)
    numbered.add("readings", _batch([("a", n, n) for n in range(0, 20, 2)], 1))
    (report,) = numbered.reports("readings", "", 10)
    (line,) = report.lines
    assert (line.lowest, line.highest, line.present, line.missing) == (14, 18, 3, 2)
    for n in range(8):
        numbered.add("readings", _batch([(f"b{n}", 0, 1), (f"b{n}", 2, 2)], n + 2))
    found = numbered.completeness("readings")
    assert (found.producers, found.missing, found.late_fills) == (8, 8, 0)
    assert [r.producer for r in numbered.reports("readings", "b5", 9)] == ["b6", "b7"]
    again = _loaded(STREAM, [numbered.take_changed(False)])
    assert again.reports("readings", "", 9) == numbered.reports("readings", "", 9)


def test_several_columns_tell_writers_apart() -> None:
    sql = SQL.replace("sensor STRING", "plant STRING NOT NULL, n BIGINT").replace(
        "PER (sensor)", "PER (plant, n)"
    )
    (stream,) = parse_sql(sql).streams
    columns = [["a/1", "a", "a\\"], [1, 1, 1], [0, 0, 0], [0, 0, 0], [9, 9, 9]]
    schema = stored_schema(stream)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    numbered = EventSequenceStreams([stream], 10, 10)
    numbered.add("readings", pa.RecordBatch.from_arrays(arrays, schema=schema))
    assert [r.producer for r in numbered.reports("readings", "", 9)] == [
        "a/1",
        "a\\/1/1",
        "a\\\\/1",
    ]


def test_another_definition_counts_anew() -> None:
    numbered = EventSequenceStreams([STREAM], 10, 10)
    numbered.add("readings", _batch([("a", 0, 1), ("a", 5, 2)], 3))
    kept = [numbered.take_changed(False)]
    other = replace(STREAM, numbering=Numbering("seq", ("sensor", "at")))
    assert _loaded(other, kept).completeness("readings") == Completeness()
    without = _loaded(replace(STREAM, numbering=None), kept)
    assert "readings" not in without
    kept.append(without.take_changed(False))
    assert _loaded(STREAM, kept[:1]).completeness("readings").missing == 4
    assert _loaded(STREAM, kept).completeness("readings") == Completeness()


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_log_that_is_opened_again_counts_on(
    embedded: Any, is_checkpointed: bool, seed: int
) -> None:
    stream = replace(STREAM, partitions=2, partition_by=("sensor",))
    writer = embedded.writer([stream])
    rng, plain, at = random.Random(seed), Plain(True), 0
    for at in range(1, 60):
        rows = [("ab"[at % 2], rng.randrange(30), at + rng.randrange(50)) for _ in range(9)]
        plain.add(rows, at)
        writer.append(Group((PartitionBatch("readings", at % 2, _batch(rows, at)),)))
        if at % 7 == 0:
            if is_checkpointed and at % 2:
                writer.checkpoint()
            writer.close()
            writer = embedded.writer([stream])
        assert writer.producers("readings", "", 9) == plain.reports()
    assert writer.completeness("Readings") == plain.total()
    assert plain.total().resets > 5
    note = heard_note(at + 10, "readings", "a")
    writer.append(Group(receipts=(note, heard_note(at, "readings", "b"))))
    assert writer.quiet_since({"readings": at + 1}) == {"readings": [("b", at)]}
    found = writer.producers("readings", "", 1)
    assert [(r.producer, r.numbered_by) for r in found] == [("a", "events"), ("a", "requests")]
