"""CREATE STREAM as it is written: from words to a StreamDraft."""

from __future__ import annotations

import re

from headrace.compile.faults import Faults, closest
from headrace.compile.sql.parts import (
    ENDS,
    expect_words,
    read_clauses,
    read_column,
    read_interval,
    read_items,
    read_names,
    read_partitions,
    read_within,
)
from headrace.compile.sql.reader import Reader
from headrace.compile.streams.draft import StreamDraft
from headrace.model.definitions import Retention, RetentionAction
from headrace.model.errors import DefinitionError

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
_A_KEY = "leave it out; CREATE TABLE name (… PRIMARY KEY (column)) keeps the newest row of each key"


def read_stream(reader: Reader, faults: Faults) -> StreamDraft:
    """The statement after CREATE STREAM. Raises DefinitionError where it cannot go on."""
    if reader.take("IF"):
        raise reader.error("IF NOT EXISTS has no meaning in a definition", "leave it out")
    name, location = reader.name("the stream's name")
    draft = StreamDraft(name, location)
    begins = "CREATE STREAM name (column TYPE [NOT NULL], …)"
    read_items(reader, begins, lambda: _read_item(reader, draft))
    for _ in read_clauses(reader, f"stream {name}", faults, {"EVENT": "WATERMARK"}):
        _read_clause(reader, draft, faults)
    return draft


def _read_item(reader: Reader, draft: StreamDraft) -> None:
    _refuse_key(reader, draft)
    draft.columns.append(read_column(reader, "stream"))
    _refuse_key(reader, draft)


def _refuse_key(reader: Reader, draft: StreamDraft) -> None:
    place = reader.location()
    if reader.take("PRIMARY", "KEY"):
        raise DefinitionError(
            f"stream {draft.name}: a stream has no PRIMARY KEY", hint=_A_KEY, location=place
        )


def _read_clause(reader: Reader, draft: StreamDraft, faults: Faults) -> None:
    if reader.take("WATERMARK"):
        draft.event_time = reader.name("the event time column")
        if reader.take("DELAY"):
            reader.expect("OF", "WATERMARK column DELAY OF INTERVAL 5 SECONDS")
            delay = read_interval(reader, f"stream {draft.name}: DELAY", faults)
            draft.delay_microseconds = delay or 0
    elif reader.take("EVENT", "TIME"):
        draft.event_time = reader.name("the event time column")
    elif reader.take("LATE"):
        draft.late = reader.name("REVISE, SIDE, DROP or HALT")
        if reader.take("WITHIN"):
            draft.late_within = read_within(reader, f"stream {draft.name}: WITHIN", faults)
    elif reader.take("FUTURE"):
        expect_words(reader, "UP", "TO", hint="FUTURE UP TO INTERVAL 1 HOUR")
        draft.future = read_within(reader, f"stream {draft.name}: FUTURE", faults)
    elif reader.take("IDLE"):
        expect_words(reader, "AFTER", hint="IDLE AFTER INTERVAL 30 SECONDS")
        draft.idle = read_within(reader, f"stream {draft.name}: IDLE", faults)
    elif reader.take("EXPECT"):
        expect_words(reader, "EVERY", hint="EXPECT EVERY INTERVAL 1 MINUTE")
        draft.expect = read_within(reader, f"stream {draft.name}: EXPECT", faults)
    elif reader.take("SENT"):
        _read_clocks(reader, draft, faults)
    elif reader.take("DEDUPLICATE"):
        hint = "DEDUPLICATE BY (column, …) WITHIN INTERVAL 1 HOUR"
        expect_words(reader, "BY", hint=hint)
        draft.deduplicate_by = read_names(reader, hint)
        reader.expect("WITHIN", hint)
        what = f"stream {draft.name}: DEDUPLICATE"
        draft.deduplicate_within = read_within(reader, what, faults)
    elif reader.take("NUMBERED"):
        hint = "NUMBERED BY number PER (column, …)"
        expect_words(reader, "BY", hint=hint)
        draft.numbered_by = reader.name("the column with the event's number")
        reader.expect("PER", hint)
        draft.numbered_per = read_names(reader, hint)
    elif reader.take("PARTITION", "BY"):
        draft.partition_by = read_names(reader, "PARTITION BY (column, …) INTO 4 PARTITIONS")
    elif reader.take("INTO"):
        draft.partitions, draft.partitions_location = read_partitions(reader)
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


def _read_clocks(reader: Reader, draft: StreamDraft, faults: Faults) -> None:
    draft.sent = reader.name("the column with the time an event was sent")
    if reader.take("SKEW"):
        expect_words(reader, "OVER", hint="SENT column SKEW OVER INTERVAL 2 SECONDS")
        draft.skew = read_within(reader, f"stream {draft.name}: SKEW", faults)
    if reader.take("CAP"):
        draft.cap = read_within(reader, f"stream {draft.name}: CAP", faults)


def _read_retention(reader: Reader, draft: StreamDraft, faults: Faults) -> None:
    age: int | None = None
    bytes_max: int | None = None
    action = RetentionAction.DELETE
    what = f"stream {draft.name}: RETAIN"
    if reader.peek().upper() not in ("UP", "THEN"):
        age = read_interval(reader, what, faults)
    if reader.take("UP"):
        reader.expect("TO", "RETAIN 7 DAYS UP TO 10 GB")
        location = reader.location()
        text = reader.text_until(*ENDS)
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
