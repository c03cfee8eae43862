"""What CREATE STREAM and CREATE TABLE are both made of: columns, clauses, lengths of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from headrace.compile.faults import Faults
from headrace.compile.sql.intervals import IntervalError, parse_interval
from headrace.compile.sql.reader import Reader
from headrace.compile.streams.draft import Named, Within, WrittenColumn
from headrace.model.errors import Location

__all__ = [
    "ENDS",
    "expect_words",
    "read_clauses",
    "read_column",
    "read_interval",
    "read_items",
    "read_names",
    "read_partitions",
    "read_within",
]

# Words that end a length of time or a size: those that begin a clause, and those inside one.
ENDS = (
    *("WATERMARK", "EVENT", "LATE", "FUTURE", "IDLE", "SENT", "DEDUPLICATE", "NUMBERED", "EXPECT"),
    *("PARTITION", "INTO", "RETAIN", "UP", "THEN", "WITHIN", "SKEW", "CAP"),
    *("SEQUENCE", "TOMBSTONES", "WITH", "VALID", "FOR", "KEY", "APPLY", "COLUMNS"),
)
_A_COLUMN = "a column is name TYPE [NOT NULL], with a comma before the next one"


def read_items(reader: Reader, hint: str, read_item: Callable[[], None]) -> None:
    """What stands in the parentheses behind the name. `hint` says how they begin."""
    reader.expect("(", hint)
    while True:
        read_item()
        if not reader.take(","):
            break
    if not reader.take(")"):
        raise reader.error(f"expected , or ), not {reader.peek()}", _A_COLUMN)


def read_column(reader: Reader, kind: str) -> WrittenColumn:
    """`name TYPE [NOT NULL]`, of a definition of this kind."""
    name, location = reader.name("a column's name")
    spelled = reader.text_until("NOT", ",", ")", "NULL", "COMMENT", "DEFAULT", "PRIMARY")
    if not spelled:
        raise reader.error(f"column {name} has no type", "name TYPE [NOT NULL], as in id STRING")
    nullable = True
    if reader.take("NOT"):
        reader.expect("NULL", "NOT NULL")
        nullable = False
    elif reader.peek().upper() in ("COMMENT", "DEFAULT", "NULL"):
        raise reader.error(
            f"{reader.peek().upper()} is not part of a {kind}'s column", "name TYPE [NOT NULL]"
        )
    return name, spelled, nullable, location


def read_clauses(
    reader: Reader, what: str, faults: Faults, alike: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The first word of each clause up to the end of the statement, in upper case; whoever asks
    reads the clause before the next. Each clause is said once, also under a word that means
    `alike`."""
    seen: set[str] = set()
    while not reader.at_end():
        place, word = reader.location(), reader.peek().upper()
        meant = (alike or {}).get(word, word)
        if meant in seen:
            faults.add(f"{what}: {word} is said twice", "keep one of them", place)
        seen.add(meant)
        yield word


def expect_words(reader: Reader, *words: str, hint: str) -> None:
    for word in words:
        reader.expect(word, hint)


def read_names(reader: Reader, hint: str) -> list[Named]:
    names = []
    reader.expect("(", hint)
    while True:
        names.append(reader.name("a column"))
        if not reader.take(","):
            break
    reader.expect(")", hint)
    return names


def read_partitions(reader: Reader) -> tuple[int, Location]:
    """The rest of INTO 4 PARTITIONS, and where the number stands."""
    location = reader.location()
    partitions = reader.number("the number of partitions")
    if not reader.take("PARTITIONS"):
        reader.expect("PARTITION", "INTO 4 PARTITIONS")
    return partitions, location


def read_within(reader: Reader, what: str, faults: Faults) -> Within | None:
    location = reader.location()
    microseconds = read_interval(reader, what, faults)
    return None if microseconds is None else (microseconds, location)


def read_interval(reader: Reader, what: str, faults: Faults) -> int | None:
    """None where a fault was noted."""
    location = reader.location()
    text = reader.text_until(*ENDS).replace("'", "")
    try:
        microseconds = parse_interval(text)
    except IntervalError as error:
        faults.add(f"{what}: {error}", "write it as INTERVAL 5 SECONDS or 7 DAYS", location)
        return None
    if microseconds < 0:
        faults.add(f"{what}: {text!r} is negative", "a length of time from 0 up", location)
        return None
    return microseconds
