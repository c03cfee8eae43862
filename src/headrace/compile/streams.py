"""CREATE STREAM: from words to a checked Stream."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from headrace.compile.faults import Faults, closest
from headrace.compile.intervals import IntervalError, parse_interval
from headrace.compile.reader import Reader
from headrace.model.definitions import (
    COLUMNS_MAX,
    PARTITIONS_MAX,
    Column,
    LatePolicy,
    Retention,
    RetentionAction,
    Stream,
)
from headrace.model.errors import Location
from headrace.model.types import DataType, TypeSyntaxError, parse_type

__all__ = [
    "NAME",
    "UNKNOWN",
    "StreamDraft",
    "check_name",
    "check_stream",
    "known_part",
    "parse_size",
    "read_stream",
]

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}\Z")
UNKNOWN = DataType("UNKNOWN")  # of a column whose type could not be read
_SIZES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZES |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_CLAUSES = ("WATERMARK", "EVENT", "LATE", "PARTITION", "INTO", "RETAIN")


@dataclass
class StreamDraft:
    """A stream as written. Texts are checked together, so that every fault is reported."""

    name: str
    location: Location
    columns: list[tuple[str, str, bool, Location]] = field(default_factory=list)
    event_time: tuple[str, Location] | None = None
    delay_microseconds: int = 0
    late: tuple[str, Location] | None = None
    partition_by: list[tuple[str, Location]] = field(default_factory=list)
    partitions: int = 1
    partitions_location: Location | None = None
    retention: Retention = field(default_factory=Retention)


def read_stream(reader: Reader, faults: Faults) -> StreamDraft:
    """The statement after CREATE STREAM. Raises DefinitionError where it cannot go on."""
    if reader.take("IF"):
        raise reader.error("IF NOT EXISTS has no meaning in a definition", "leave it out")
    name, location = reader.name("the stream's name")
    draft = StreamDraft(name, location)
    reader.expect("(", "CREATE STREAM name (column TYPE [NOT NULL], …)")
    while True:
        draft.columns.append(_read_column(reader))
        if not reader.take(","):
            break
    reader.expect(")", "a column is: name TYPE [NOT NULL]")
    seen: set[str] = set()
    while not reader.at_end():
        place, word = reader.location(), reader.peek().upper()
        if word in seen or (word in ("EVENT", "WATERMARK") and draft.event_time):
            faults.add(f"stream {name}: {word} is said twice", "keep one of them", place)
        seen.add(word)
        _read_clause(reader, draft, faults)
    return draft


def _read_column(reader: Reader) -> tuple[str, str, bool, Location]:
    name, location = reader.name("a column's name")
    spelled = reader.text_until("NOT", ",", ")", "NULL", "COMMENT", "DEFAULT")
    if not spelled:
        raise reader.error(f"column {name} has no type", "name TYPE [NOT NULL], as in id STRING")
    nullable = True
    if reader.take("NOT"):
        reader.expect("NULL", "NOT NULL")
        nullable = False
    elif reader.peek().upper() in ("COMMENT", "DEFAULT", "NULL"):
        raise reader.error(
            f"{reader.peek().upper()} is not part of a stream's column", "name TYPE [NOT NULL]"
        )
    return name, spelled, nullable, location


def _read_clause(reader: Reader, draft: StreamDraft, faults: Faults) -> None:
    if reader.take("WATERMARK"):
        draft.event_time = reader.name("the event time column")
        if reader.take("DELAY"):
            reader.expect("OF", "WATERMARK column DELAY OF INTERVAL 5 SECONDS")
            draft.delay_microseconds = _read_interval(reader, f"stream {draft.name}: DELAY", faults)
    elif reader.take("EVENT", "TIME"):
        draft.event_time = reader.name("the event time column")
    elif reader.take("LATE"):
        draft.late = reader.name("REVISE, SIDE, DROP or HALT")
    elif reader.take("PARTITION", "BY"):
        reader.expect("(", "PARTITION BY (column, …) INTO 4 PARTITIONS")
        while True:
            draft.partition_by.append(reader.name("a column"))
            if not reader.take(","):
                break
        reader.expect(")", "PARTITION BY (column, …) INTO 4 PARTITIONS")
    elif reader.take("INTO"):
        draft.partitions_location = reader.location()
        draft.partitions = reader.number("the number of partitions")
        if not reader.take("PARTITIONS"):
            reader.expect("PARTITION", "INTO 4 PARTITIONS")
    elif reader.take("RETAIN"):
        _read_retention(reader, draft, faults)
    else:
        raise reader.error(
            f"stream {draft.name}: {reader.peek()} is not a clause of CREATE STREAM",
            closest(reader.peek(), _CLAUSES)
            or "clauses are WATERMARK … DELAY OF …, EVENT TIME, LATE, PARTITION BY, "
            "INTO … PARTITIONS, RETAIN",
        )


def _read_interval(reader: Reader, what: str, faults: Faults) -> int:
    location = reader.location()
    text = reader.text_until("UP", "THEN", *_CLAUSES).replace("'", "")
    try:
        microseconds = parse_interval(text)
    except IntervalError as error:
        faults.add(f"{what}: {error}", "write it as INTERVAL 5 SECONDS or 7 DAYS", location)
        return 0
    if microseconds < 0:
        faults.add(f"{what}: {text!r} is negative", "a length of time from 0 up", location)
        return 0
    return microseconds


def _read_retention(reader: Reader, draft: StreamDraft, faults: Faults) -> None:
    age: int | None = None
    bytes_max: int | None = None
    action = RetentionAction.DELETE
    what = f"stream {draft.name}: RETAIN"
    if reader.peek().upper() not in ("UP", "THEN"):
        age = _read_interval(reader, what, faults)
    if reader.take("UP"):
        reader.expect("TO", "RETAIN 7 DAYS UP TO 10 GB")
        location = reader.location()
        text = reader.text_until("THEN", *_CLAUSES)
        try:
            bytes_max = parse_size(text)
        except ValueError as error:
            faults.add(f"{what}: {error}", "write it as 500 MB or 10 GB", location)
    if reader.take("THEN"):
        location = reader.location()
        word, _ = reader.name("DELETE or ARCHIVE")
        if word.upper() not in ("DELETE", "ARCHIVE"):
            faults.add(f"{what}: THEN {word} is not known", "THEN DELETE or THEN ARCHIVE", location)
        else:
            action = RetentionAction(word.lower())
    draft.retention = Retention(age, bytes_max, action)


def parse_size(text: str) -> int:
    """Bytes of `10 GB`. Raises ValueError saying what is wrong."""
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]+)", text.strip())
    if match is None or match.group(2).upper() not in _SIZES:
        raise ValueError(f"{text!r} is not a size")
    size = int(match.group(1)) * _SIZES[match.group(2).upper()]
    if size == 0:
        raise ValueError("a size of 0 would keep nothing")
    return size


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
    columns = _check_columns(draft, faults)
    by_name = {column.name.lower(): column for column in columns}
    event_time = _check_event_time(draft, by_name, faults)
    late = LatePolicy.REVISE
    if draft.late is not None:
        word, location = draft.late
        if word.lower() not in {policy.value for policy in LatePolicy}:
            faults.add(f"{what}: LATE {word} is not known", "LATE REVISE", location)
        elif word.lower() != "revise":
            faults.add(
                f"{what}: LATE {word.upper()} is not available in this version",
                "use LATE REVISE: late events are applied and counted as revisions",
                location,
            )
    elif draft.event_time is not None:
        faults.add(
            f"{what}: what becomes of late events is not said",
            "add LATE REVISE: late events are applied and counted as revisions",
            draft.event_time[1],
        )
    partition_by = []
    for name, location in draft.partition_by:
        column = by_name.get(name.lower())
        if column is None:
            faults.add(
                f"{what}: PARTITION BY column {name} does not exist",
                closest(name, by_name) or "name one of the stream's columns",
                location,
            )
        elif column.type.is_nested:
            faults.add(
                f"{what}: PARTITION BY column {name} is {column.type}",
                "partition by columns of a simple type",
                location,
            )
        elif column.name in partition_by:
            faults.add(f"{what}: PARTITION BY names {name} twice", "name it once", location)
        else:
            partition_by.append(column.name)
    if not 1 <= draft.partitions <= PARTITIONS_MAX:
        faults.add(
            f"{what}: {draft.partitions} partitions",
            f"from 1 to {PARTITIONS_MAX} partitions",
            draft.partitions_location or draft.location,
        )
    if len(faults.errors) > before:
        return None
    return Stream(
        name=draft.name,
        columns=tuple(columns),
        event_time=event_time,
        delay_microseconds=draft.delay_microseconds,
        late_policy=late,
        partition_by=tuple(partition_by),
        partitions=draft.partitions,
        retention=draft.retention,
        location=draft.location,
    )


def known_part(draft: StreamDraft) -> Stream:
    """A faulty stream, as far as it goes: its views are checked against what is right in it."""
    ignored = Faults()
    columns = _check_columns(draft, ignored)
    event_time = draft.event_time[0] if draft.event_time is not None else None
    return Stream(draft.name, tuple(columns), event_time=event_time, location=draft.location)


def _check_columns(draft: StreamDraft, faults: Faults) -> list[Column]:
    columns: list[Column] = []
    seen: set[str] = set()
    what = f"stream {draft.name}"
    for name, spelled, nullable, location in draft.columns:
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
    if len(draft.columns) > COLUMNS_MAX:
        faults.add(
            f"{what} has {len(draft.columns)} columns", f"at most {COLUMNS_MAX}", draft.location
        )
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
