"""A stream as written → a checked Stream, with every fault of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headrace.compile.faults import Faults, closest, nearest
from headrace.compile.streams.draft import UNKNOWN, StreamDraft, WrittenColumn, choose_columns
from headrace.compile.streams.event_sequences import check_numbering
from headrace.compile.streams.time import (
    check_bounds,
    check_clocks,
    check_deduplication,
    check_late,
)
from headrace.model.definitions import (
    COLUMNS_MAX,
    DAY,
    PARTITIONS_MAX,
    Column,
    Stream,
)
from headrace.model.errors import Location
from headrace.model.types import TypeSyntaxError, parse_type

__all__ = ["NAME", "check_columns", "check_name", "check_partitions", "check_stream", "known_part"]

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}\Z")


def check_name(name: str, what: str, location: Location, faults: Faults) -> None:
    if not NAME.match(name):
        reason = "is a name kept for Headrace" if name.startswith("_") else "is not a name"
        faults.add(
            f"{what} {name!r} {reason}",
            "begin with a letter, go on with letters, digits and _, at most 128",
            location,
        )


def check_stream(draft: StreamDraft, faults: Faults) -> Stream | None:
    """The model of a stream, or None when a fault was found in it."""
    before = len(faults.errors)
    what = f"stream {draft.name}"
    check_name(draft.name, "stream", draft.location, faults)
    columns = check_columns(what, draft.columns, draft.location, faults)
    by_name = {column.name.lower(): column for column in columns}
    event_time = _check_event_time(draft, by_name, faults)
    late = check_late(draft, faults)
    check_bounds(draft, faults)
    clocks = check_clocks(draft, by_name, faults)
    partition_by = choose_columns(f"{what}: PARTITION BY", draft.partition_by, by_name, faults)
    check_partitions(what, draft.partitions, draft.partitions_location or draft.location, faults)
    deduplication = check_deduplication(draft, by_name, faults)
    numbering = check_numbering(draft, by_name, faults)
    if len(faults.errors) > before:
        return None
    return Stream(
        name=draft.name,
        columns=tuple(columns),
        event_time=event_time,
        delay_microseconds=draft.delay_microseconds,
        late_policy=late,
        late_horizon_microseconds=draft.late_within[0] if draft.late_within else None,
        future_microseconds=draft.future[0] if draft.future else DAY,
        idle_microseconds=draft.idle[0] if draft.idle else None,
        expect_microseconds=draft.expect[0] if draft.expect else None,
        clocks=clocks,
        deduplication=deduplication,
        numbering=numbering,
        partition_by=partition_by,
        partitions=draft.partitions,
        retention=draft.retention,
        location=draft.location,
    )


def known_part(draft: StreamDraft) -> Stream:
    """A faulty stream, as far as it goes: its views are checked against what is right in it, or
    was meant."""
    ignored = Faults()
    columns = check_columns("", draft.columns, draft.location, ignored)
    event_time = draft.event_time[0] if draft.event_time is not None else None
    if event_time is not None:
        event_time = nearest(event_time, [column.name for column in columns]) or event_time
    return Stream(draft.name, tuple(columns), event_time=event_time, location=draft.location)


def check_partitions(what: str, partitions: int, location: Location, faults: Faults) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        hint = f"from 1 to {PARTITIONS_MAX} partitions"
        faults.add(f"{what}: {partitions} partitions", hint, location)


def check_columns(
    what: str, written: Sequence[WrittenColumn], place: Location, faults: Faults
) -> list[Column]:
    columns: list[Column] = []
    seen: set[str] = set()
    for name, spelled, nullable, location in written:
        check_name(name, f"{what}: column", location, faults)
        if name.lower() in seen:
            faults.add(f"{what}: two columns named {name}", "rename one of them", location)
            continue
        seen.add(name.lower())
        try:
            columns.append(Column(name, parse_type(spelled), nullable, location))
        except TypeSyntaxError as error:
            faults.add(f"{what}: column {name}: {error}", "choose an accepted type", location)
            columns.append(Column(name, UNKNOWN, nullable, location))
    if len(written) > COLUMNS_MAX:
        faults.add(f"{what} has {len(written)} columns", f"at most {COLUMNS_MAX}", place)
    return columns


def _check_event_time(draft: StreamDraft, by_name: dict[str, Column], faults: Faults) -> str | None:
    if draft.event_time is None:
        return None
    name, location = draft.event_time
    what = f"stream {draft.name}: event time {name}"
    column = by_name.get(name.lower())
    if column is None:
        hint = closest(name, by_name) or "name a TIMESTAMP NOT NULL column of the stream"
        faults.add(f"{what} is not a column", hint, location)
    elif column.type != UNKNOWN and (column.type.name != "TIMESTAMP" or column.nullable):
        spelled = f"{column.type}{'' if column.nullable else ' NOT NULL'}"
        faults.add(
            f"{what} is {spelled}", f"declare it as {column.name} TIMESTAMP NOT NULL", location
        )
    return column.name if column is not None else None
