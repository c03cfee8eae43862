"""CREATE STREAM as it is written: from words to a StreamDraft."""

from __future__ import annotations

import re

from headrace.compile.faults import Faults, closest
from headrace.compile.sql.intervals import IntervalError, parse_interval
from headrace.compile.sql.reader import Reader
from headrace.compile.streams.draft import Named, StreamDraft, Within
from headrace.model.definitions import Retention, RetentionAction
from headrace.model.errors import Location

__all__ = ["parse_size", "read_stream"]

_SIZES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZES |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_CLAUSES = (
    "WATERMARK",
    "EVENT",
    "LATE",
    "FUTURE",
    "IDLE",
    "SENT",
    "DEDUPLICATE",
    "NUMBERED",
    "EXPECT",
    "PARTITION",
    "INTO",
    "RETAIN",
)
_PARTS = ("UP", "THEN", "WITHIN", "SKEW", "CAP")  # words inside a clause that end a length of time


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
    if not reader.take(")"):
        raise reader.error(
            f"expected , or ), not {reader.peek()}",
            "a column is name TYPE [NOT NULL], with a comma before the next one",
        )
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
            delay = _read_interval(reader, f"stream {draft.name}: DELAY", faults)
            draft.delay_microseconds = delay or 0
    elif reader.take("EVENT", "TIME"):
        draft.event_time = reader.name("the event time column")
    elif reader.take("LATE"):
        draft.late = reader.name("REVISE, SIDE, DROP or HALT")
        if reader.take("WITHIN"):
            draft.late_within = _read_within(reader, f"stream {draft.name}: WITHIN", faults)
    elif reader.take("FUTURE"):
        _expect(reader, "UP", "TO", hint="FUTURE UP TO INTERVAL 1 HOUR")
        draft.future = _read_within(reader, f"stream {draft.name}: FUTURE", faults)
    elif reader.take("IDLE"):
        _expect(reader, "AFTER", hint="IDLE AFTER INTERVAL 30 SECONDS")
        draft.idle = _read_within(reader, f"stream {draft.name}: IDLE", faults)
    elif reader.take("EXPECT"):
        _expect(reader, "EVERY", hint="EXPECT EVERY INTERVAL 1 MINUTE")
        draft.expect = _read_within(reader, f"stream {draft.name}: EXPECT", faults)
    elif reader.take("SENT"):
        _read_clocks(reader, draft, faults)
    elif reader.take("DEDUPLICATE"):
        hint = "DEDUPLICATE BY (column, …) WITHIN INTERVAL 1 HOUR"
        _expect(reader, "BY", hint=hint)
        draft.deduplicate_by = _read_names(reader, hint)
        reader.expect("WITHIN", hint)
        what = f"stream {draft.name}: DEDUPLICATE"
        draft.deduplicate_within = _read_within(reader, what, faults)
    elif reader.take("NUMBERED"):
        hint = "NUMBERED BY number PER (column, …)"
        _expect(reader, "BY", hint=hint)
        draft.numbered_by = reader.name("the column with the event's number")
        reader.expect("PER", hint)
        draft.numbered_per = _read_names(reader, hint)
    elif reader.take("PARTITION", "BY"):
        draft.partition_by = _read_names(reader, "PARTITION BY (column, …) INTO 4 PARTITIONS")
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
            or "clauses are WATERMARK … DELAY OF …, EVENT TIME, LATE, FUTURE UP TO, IDLE AFTER, "
            "SENT, DEDUPLICATE BY, NUMBERED BY, EXPECT EVERY, PARTITION BY, INTO … PARTITIONS, "
            "RETAIN",
        )


def _expect(reader: Reader, *words: str, hint: str) -> None:
    for word in words:
        reader.expect(word, hint)


def _read_names(reader: Reader, hint: str) -> list[Named]:
    names = []
    reader.expect("(", hint)
    while True:
        names.append(reader.name("a column"))
        if not reader.take(","):
            break
    reader.expect(")", hint)
    return names


def _read_within(reader: Reader, what: str, faults: Faults) -> Within | None:
    location = reader.location()
    microseconds = _read_interval(reader, what, faults)
    return None if microseconds is None else (microseconds, location)


def _read_clocks(reader: Reader, draft: StreamDraft, faults: Faults) -> None:
    draft.sent = reader.name("the column with the time an event was sent")
    if reader.take("SKEW"):
        _expect(reader, "OVER", hint="SENT column SKEW OVER INTERVAL 2 SECONDS")
        draft.skew = _read_within(reader, f"stream {draft.name}: SKEW", faults)
    if reader.take("CAP"):
        draft.cap = _read_within(reader, f"stream {draft.name}: CAP", faults)


def _read_interval(reader: Reader, what: str, faults: Faults) -> int | None:
    """None where a fault was noted."""
    location = reader.location()
    text = reader.text_until(*_PARTS, *_CLAUSES).replace("'", "")
    try:
        microseconds = parse_interval(text)
    except IntervalError as error:
        faults.add(f"{what}: {error}", "write it as INTERVAL 5 SECONDS or 7 DAYS", location)
        return None
    if microseconds < 0:
        faults.add(f"{what}: {text!r} is negative", "a length of time from 0 up", location)
        return None
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
