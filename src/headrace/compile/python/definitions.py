"""Definitions in Python: `headrace.stream(...)` and what follows build the same statements as SQL.

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
    read_interval,
)
from headrace.compile.python.views import ViewDefinition
from headrace.compile.sql.statements import Statements
from headrace.compile.sql.stream_clauses import parse_size
from headrace.compile.streams.draft import StreamDraft, Within
from headrace.model.definitions import Retention, RetentionAction
from headrace.model.errors import Location

__all__ = ["ViewDefinition", "run_definitions", "run_python", "stream"]


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
    for column, spelled in columns.items():
        words = spelled.strip()
        nullable = not words.upper().endswith("NOT NULL")
        if not nullable:
            words = words[: -len("NOT NULL")].strip()
        draft.columns.append((column, words, nullable, here))
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
    event_time_name = draft.event_time[0] if draft.event_time is not None else "_received_at"
    return ViewDefinition(name, event_time=event_time_name)


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
