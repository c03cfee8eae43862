"""Definitions in Python: `headrace.stream(...)`, what follows it, and `headrace.table(...)` build
the same statements as SQL.

Defining is not running: calls only note what was said and where; everything is checked when the
project is loaded, so that every fault is reported at once, at the line that said it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace.compile.faults import Faults, SourceText
from headrace.compile.python.source_locations import (
    Collector,
    collector_in_force,
    here_said,
    note_fault,
    read_expression,
    read_interval,
)
from headrace.compile.python.views import ViewDefinition
from headrace.compile.sql.statements import Statements
from headrace.compile.sql.stream_clauses import parse_size
from headrace.compile.streams.draft import StreamDraft, Within, WrittenColumn
from headrace.compile.tables.draft import TableDraft
from headrace.model.definitions import Retention, RetentionAction
from headrace.model.errors import Location

__all__ = ["ViewDefinition", "run_definitions", "run_python", "stream", "table"]

_ONE_OF = "columns for changes that are posted, or source for a stream of changes"


def run_python(source: SourceText, file: Path, into: Statements, faults: Faults) -> None:
    """Run a definition file in a namespace of its own. What it raises is a fault of the line in
    that file it came from."""
    token = collector_in_force.set(Collector(file, source.file, into, faults))
    try:
        code = compile(source.text, str(file), "exec")
        exec(code, {"__name__": "__headrace__", "__file__": str(file)})
    except SyntaxError as error:
        line, column = error.lineno or 1, error.offset or 1
        place = Location(source.file, line, column)
        faults.add(f"Python: {error.msg}", "correct the Python file", place)
    except Exception as error:  # whatever a user's file raises is that file's fault
        lines = [
            frame.lineno or 1
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == str(file)
        ]
        place = Location(source.file, lines[-1] if lines else 1, 1)
        faults.add(f"Python: {type(error).__name__}: {error}", "correct the Python file", place)
    finally:
        collector_in_force.reset(token)


def run_definitions(define: Callable[[], object], into: Statements, faults: Faults) -> None:
    """Collect what a function defines. Faults name the files that said it by their whole paths."""
    token = collector_in_force.set(Collector(Path(), "", into, faults))
    try:
        define()
    finally:
        collector_in_force.reset(token)


def stream(
    name: str,
    *,
    columns: Mapping[str, str],
    watermark: tuple[str, str] | None = None,
    event_time: str | None = None,
    late: str | None = None,
    future: str | None = None,
    idle: str | None = None,
    sent: str | None = None,
    skew: str | None = None,
    cap: str | None = None,
    deduplicate: tuple[Sequence[str], str] | None = None,
    numbered: tuple[str, Sequence[str]] | None = None,
    expect: str | None = None,
    partition_by: Sequence[str] = (),
    partitions: int = 1,
    retain: str | Mapping[str, str] | None = None,
) -> ViewDefinition:
    """Define a stream. `columns` gives each column's type as in SQL (`"STRING NOT NULL"`),
    `watermark` the event time and its delay (`event_time` alone: no delay), `late` what becomes of
    late events (`"revise within 1 day"`), `sent`, `skew` and `cap` how clocks are corrected,
    `deduplicate` columns and the time within which equal ones are duplicates, `numbered` the column
    in which writers number their events and the columns that tell writers. `retain` is an age
    (`"7 days"`) or a mapping of `age`, `size` and `then`. What it returns begins views over the
    stream."""
    here = here_said()
    draft = StreamDraft(name, here, partitions=partitions, partitions_location=here)
    draft.columns = _written(columns, here)
    if event_time is not None and watermark is not None:
        note_fault(f"stream {name}: event_time and watermark both", "keep watermark", here)
    if event_time is not None:
        draft.event_time = (event_time, here)
    if watermark is not None:
        draft.event_time = (watermark[0], here)
        draft.delay_microseconds = read_interval(watermark[1], f"stream {name}: watermark", here)
    _say_late(draft, late, here)
    draft.future = _within(future, f"stream {name}: future", here)
    draft.idle = _within(idle, f"stream {name}: idle", here)
    draft.expect = _within(expect, f"stream {name}: expect", here)
    _say_clocks(draft, sent, skew, cap, here)
    if deduplicate is not None:
        draft.deduplicate_by = [(column, here) for column in deduplicate[0]]
        draft.deduplicate_within = _within(deduplicate[1], f"stream {name}: deduplicate", here)
    if numbered is not None:
        draft.numbered_by = (numbered[0], here)
        draft.numbered_per = [(column, here) for column in numbered[1]]
    draft.partition_by = [(column, here) for column in partition_by]
    draft.retention = _retention(name, retain, here)
    collector = collector_in_force.get()
    if collector is not None:
        collector.statements.streams.append(draft)
    return ViewDefinition(name)


def table(
    name: str,
    *,
    key: Sequence[str],
    columns: Mapping[str, str] | None = None,
    source: str | ViewDefinition | None = None,
    sequence_by: str | None = None,
    delete_when: str | None = None,
    except_columns: Sequence[str] = (),
    tombstones: str | None = None,
    history: bool | Mapping[str, str] = False,
    partitions: int = 1,
) -> None:
    """Define a table, which keeps the newest row of each key. Its changes are posted, and then
    `columns` gives each column's type as in SQL and `partitions` the number of partitions of the
    changes; or they come from `source`, a stream, whose events that meet `delete_when` delete, and
    whose columns it has without `except_columns`. `sequence_by` names the column that orders
    changes, `tombstones` is how long a delete counts against older changes that come after it.
    `history` is True or a mapping of `valid_from` (a column) and `for` (a length of time)."""
    here = here_said()
    what = f"table {name}"
    draft = TableDraft(name, here, partitions=partitions, partitions_location=here)
    if (columns is None) == (source is None):
        found = "neither columns nor source" if columns is None else "both columns and source"
        note_fault(f"{what}: {found}", _ONE_OF, here)
        return
    if columns is not None:
        draft.columns = _written(columns, here)
        if delete_when is not None or except_columns:
            word = "delete_when" if delete_when is not None else "except_columns"
            note_fault(f"{what}: {word} without source", "leave it out, or name the stream", here)
    else:
        if partitions != 1:
            hint = "leave it out: the changes are in the partitions of the stream"
            note_fault(f"{what}: partitions with source", hint, here)
        draft.source = (_stream_name(what, source, here), here)
    draft.key = [(column, here) for column in key]
    draft.sequence = (sequence_by, here) if sequence_by is not None else None
    if delete_when is not None:
        draft.delete_when = read_expression(delete_when, here)
    draft.left_out = [(column, here) for column in except_columns]
    draft.tombstones = _within(tombstones, f"{what}: tombstones", here)
    _say_history(draft, history, here)
    collector = collector_in_force.get()
    if collector is not None:
        collector.statements.tables.append(draft)


def _written(columns: Mapping[str, str], here: Location) -> list[WrittenColumn]:
    written = []
    for column, spelled in columns.items():
        words = spelled.strip()
        nullable = not words.upper().endswith("NOT NULL")
        if not nullable:
            words = words[: -len("NOT NULL")].strip()
        written.append((column, words, nullable, here))
    return written


def _stream_name(what: str, source: str | ViewDefinition | None, here: Location) -> str:
    if isinstance(source, ViewDefinition):
        if source != ViewDefinition(source.source):
            hint = "give the stream itself: a table has all of its events"
            note_fault(f"{what}: source is more than a stream", hint, here)
        return source.source
    return source or ""


def _say_history(draft: TableDraft, history: bool | Mapping[str, str], here: Location) -> None:
    if history is False:
        return
    said = {} if history is True else dict(history)
    what = f"table {draft.name}: history"
    unknown = sorted(set(said) - {"valid_from", "for"})
    if unknown:
        note_fault(f"{what}: {unknown[0]!r} is not known", "valid_from and for", here)
    draft.history = here
    draft.valid_from = (said["valid_from"], here) if "valid_from" in said else None
    draft.history_for = _within(said.get("for"), what, here)


def _say_late(draft: StreamDraft, late: str | None, here: Location) -> None:
    if late is None:
        return
    policy, _, rest = late.strip().partition(" ")
    draft.late = (policy, here)
    word, _, length = rest.strip().partition(" ")
    if rest and word.lower() != "within":
        note_fault(
            f"stream {draft.name}: late {late!r} is not known", "'revise within 1 day'", here
        )
    elif rest:
        draft.late_within = _within(length, f"stream {draft.name}: late", here)


def _say_clocks(
    draft: StreamDraft, sent: str | None, skew: str | None, cap: str | None, here: Location
) -> None:
    if sent is None and (skew is not None or cap is not None):
        note_fault(
            f"stream {draft.name}: skew or cap without sent", "name the column: sent=…", here
        )
    draft.sent = (sent, here) if sent is not None else None
    draft.skew = _within(skew, f"stream {draft.name}: skew", here)
    draft.cap = _within(cap, f"stream {draft.name}: cap", here)


def _within(text: str | None, what: str, location: Location) -> Within | None:
    return None if text is None else (read_interval(text, what, location), location)


def _retention(name: str, retain: str | Mapping[str, str] | None, location: Location) -> Retention:
    if retain is None:
        return Retention()
    said = {"age": retain} if isinstance(retain, str) else dict(retain)
    what = f"stream {name}: retain"
    unknown = sorted(set(said) - {"age", "size", "then"})
    if unknown:
        note_fault(f"{what}: {unknown[0]!r} is not known", "age, size and then", location)
    age = read_interval(said["age"], what, location) if "age" in said else None
    size = None
    try:
        size = parse_size(said["size"]) if "size" in said else None
    except ValueError as error:
        note_fault(f"{what}: {error}", "write it as '10 GB'", location)
    then = said.get("then", "delete").lower()
    if then not in ("delete", "archive"):
        note_fault(f"{what}: then {then!r} is not known", "'delete' or 'archive'", location)
        then = "delete"
    return Retention(age, size, RetentionAction(then))
