"""Definitions in Python: `headrace.stream(...)` and what follows build the same statements as SQL.

Defining is not running: calls only note what was said and where; everything is checked when the
project is loaded, so that every fault is reported at once, at the line that said it.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path

from sqlglot import expressions as exp

from headrace.compile.dialect import identifier, parse_expression
from headrace.compile.faults import Faults, SourceText, place_all
from headrace.compile.intervals import IntervalError, parse_interval
from headrace.compile.statements import Statements, ViewStatement
from headrace.compile.stream_clauses import parse_size
from headrace.compile.stream_draft import StreamDraft, Within
from headrace.model.definitions import Retention, RetentionAction
from headrace.model.errors import DefinitionError, Location

__all__ = ["ViewDefinition", "run_python", "stream"]


@dataclass
class _Collector:
    file: Path
    shown: str
    statements: Statements
    faults: Faults


_collector: ContextVar[_Collector | None] = ContextVar("headrace_collector", default=None)


def run_python(source: SourceText, file: Path, into: Statements, faults: Faults) -> None:
    """Run a definition file in a namespace of its own. What it raises is a fault of the line in
    that file it came from."""
    token = _collector.set(_Collector(file, source.file, into, faults))
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
        _collector.reset(token)


def _here() -> Location:
    """The line of the definition file, or else of the caller, that called into this module."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    collector = _collector.get()
    name = frame.f_code.co_filename
    if collector is not None and name == str(collector.file):
        name = collector.shown
    return Location(name, frame.f_lineno, 1)


def _fault(message: str, hint: str, location: Location) -> None:
    """Noted where files are being loaded; raised at once elsewhere."""
    collector = _collector.get()
    if collector is None:
        raise DefinitionError(message, hint=hint, location=location)
    collector.faults.add(message, hint, location)


def _expression(text: str, location: Location) -> exp.Expr | None:
    try:
        node = parse_expression(text)
    except DefinitionError as error:
        _fault(f"in {text!r}: {error.message}", "write one Spark SQL expression", location)
        return None
    place_all(node, location)
    return node


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
    here = _here()
    draft = StreamDraft(name, here, partitions=partitions, partitions_location=here)
    for column, spelled in columns.items():
        words = spelled.strip()
        nullable = not words.upper().endswith("NOT NULL")
        if not nullable:
            words = words[: -len("NOT NULL")].strip()
        draft.columns.append((column, words, nullable, here))
    if event_time is not None and watermark is not None:
        _fault(f"stream {name}: event_time and watermark both", "keep watermark", here)
    if event_time is not None:
        draft.event_time = (event_time, here)
    if watermark is not None:
        draft.event_time = (watermark[0], here)
        draft.delay_microseconds = _interval(watermark[1], f"stream {name}: watermark", here)
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
    collector = _collector.get()
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
        _fault(f"stream {draft.name}: late {late!r} is not known", "'revise within 1 day'", here)
    elif rest:
        draft.late_within = _within(length, f"stream {draft.name}: late", here)


def _say_clocks(
    draft: StreamDraft, sent: str | None, skew: str | None, cap: str | None, here: Location
) -> None:
    if sent is None and (skew is not None or cap is not None):
        _fault(f"stream {draft.name}: skew or cap without sent", "name the column: sent=…", here)
    draft.sent = (sent, here) if sent is not None else None
    draft.skew = _within(skew, f"stream {draft.name}: skew", here)
    draft.cap = _within(cap, f"stream {draft.name}: cap", here)


def _within(text: str | None, what: str, location: Location) -> Within | None:
    return None if text is None else (_interval(text, what, location), location)


def _interval(text: str, what: str, location: Location) -> int:
    try:
        length = parse_interval(text)
    except IntervalError as error:
        _fault(f"{what}: {error}", "write it as '5 seconds'", location)
        return 1  # any length that is no fault in itself
    if length < 0:
        _fault(f"{what}: {text!r} is negative", "a length of time from 0 up", location)
    return length


def _retention(name: str, retain: str | Mapping[str, str] | None, location: Location) -> Retention:
    if retain is None:
        return Retention()
    said = {"age": retain} if isinstance(retain, str) else dict(retain)
    what = f"stream {name}: retain"
    unknown = sorted(set(said) - {"age", "size", "then"})
    if unknown:
        _fault(f"{what}: {unknown[0]!r} is not known", "age, size and then", location)
    age = _interval(said["age"], what, location) if "age" in said else None
    size = None
    try:
        size = parse_size(said["size"]) if "size" in said else None
    except ValueError as error:
        _fault(f"{what}: {error}", "write it as '10 GB'", location)
    then = said.get("then", "delete").lower()
    if then not in ("delete", "archive"):
        _fault(f"{what}: then {then!r} is not known", "'delete' or 'archive'", location)
        then = "delete"
    return Retention(age, size, RetentionAction(then))


@dataclass(frozen=True)
class _Said:
    """A piece of text and the line that said it."""

    text: str
    location: Location


@dataclass(frozen=True)
class _Windowed:
    """A window's function, its texts, the conditions before them, and the line that said it."""

    function: str
    texts: tuple[str, ...]
    conditions: tuple[str, ...]
    location: Location

    def call(self, event_time: str) -> exp.Expr | None:
        """None if a condition cannot be read."""
        over: list[exp.Expr | None] = [exp.Column(this=identifier(event_time))]
        if self.conditions:
            over = [_expression(condition, self.location) for condition in self.conditions]
        read = [node for node in over if node is not None]
        if len(read) < len(over):
            return None
        texts = [exp.Literal.string(text) for text in self.texts]
        made = exp.Anonymous(this=self.function, expressions=[*read, *texts])
        place_all(made, self.location)
        return made


@dataclass(frozen=True)
class ViewDefinition:
    """A view in the making; every method gives a new one, so that parts can be shared."""

    source: str
    conditions: tuple[_Said, ...] = ()
    keys: tuple[tuple[str | None, _Said], ...] = ()
    windowed: _Windowed | None = None
    aggregates: tuple[tuple[str, _Said], ...] = ()
    conditions_after: tuple[_Said, ...] = ()
    emits_on_close: Location | None = None
    event_time: str = field(default="_received_at")

    def where(self, condition: str) -> ViewDefinition:
        """Only events that meet the condition; several are joined by AND."""
        return replace(self, conditions=(*self.conditions, _Said(condition, _here())))

    def key_by(self, *columns: str, **named: str) -> ViewDefinition:
        """One row per value of these expressions; those that are not columns need a name."""
        here = _here()
        added = [(None, _Said(text, here)) for text in columns]
        added += [(name, _Said(text, here)) for name, text in named.items()]  # type: ignore[misc]
        return replace(self, keys=(*self.keys, *added))

    def window(
        self, size: str, slide: str | None = None, start: str | None = None
    ) -> ViewDefinition:
        """Windows over the stream's event time, as Spark's window()."""
        lengths = [size]
        if slide is not None or start is not None:
            lengths.append(slide or size)
        if start is not None:
            lengths.append(start)
        return self._with_window("window", tuple(lengths))

    def session(self, gap: str) -> ViewDefinition:
        """Sessions: events of a key that are at most the gap apart."""
        return self._with_window("session_window", (gap,))

    def calendar(self, unit: str, zone: str) -> ViewDefinition:
        """Each day, week, month, quarter or year as the zone counts them."""
        return self._with_window("calendar_window", (unit, zone))

    def event_group(self, *, open: str, close: str, timeout: str) -> ViewDefinition:  # noqa: A002
        """From an event that meets `open` to one that meets `close`, or up to the timeout."""
        return self._with_window("event_group", (timeout,), (open, close))

    def _with_window(
        self, function: str, texts: tuple[str, ...], conditions: tuple[str, ...] = ()
    ) -> ViewDefinition:
        here = _here()
        if self.windowed is not None:
            _fault("two windows in one view", "make one view per window", here)
        return replace(self, windowed=_Windowed(function, texts, conditions, here))

    def emit_on_close(self) -> ViewDefinition:
        """A window is published once, when it is final."""
        return replace(self, emits_on_close=_here())

    def agg(self, **outputs: str) -> ViewDefinition:
        """The aggregates, each with its output's name."""
        here = _here()
        added = [(name, _Said(text, here)) for name, text in outputs.items()]
        return replace(self, aggregates=(*self.aggregates, *added))

    def having(self, condition: str) -> ViewDefinition:
        """Only rows that meet the condition; several are joined by AND."""
        return replace(self, conditions_after=(*self.conditions_after, _Said(condition, _here())))

    def view(self, name: str) -> ViewDefinition:
        """Define it under this name. Outputs are window_start and window_end (with a window),
        then the keys, then the aggregates."""
        here = _here()
        collector = _collector.get()
        if collector is not None:
            query = self._query()
            if query is not None:
                statement = ViewStatement(name, here, query, None, self.emits_on_close)
                collector.statements.views.append(statement)
        return self

    def _query(self) -> exp.Select | None:
        outputs: list[exp.Expr] = []
        group: list[exp.Expr] = []
        failed = False
        if self.windowed is not None:
            call = self.windowed.call(self.event_time)
            failed = call is None
            group += [call] if call is not None else []
            for part in ("start", "end"):
                bound = parse_expression(f"window.{part}")
                place_all(bound, self.windowed.location)
                outputs.append(exp.alias_(bound, f"window_{part}"))
        for alias, said in (*self.keys, *self.aggregates):
            node = _expression(said.text, said.location)
            if node is None:
                failed = True
                continue
            outputs.append(_named(node, alias, said.location))
            if (alias, said) in self.keys:
                group.append(node.copy())
        where = self._joined(self.conditions)
        having = self._joined(self.conditions_after)
        if failed or where is False or having is False:
            return None
        query = exp.Select(expressions=outputs)
        table = exp.Table(this=identifier(self.source))
        query.set("from_", exp.From(this=table))
        if where:
            query.set("where", exp.Where(this=where))
        if group:
            query.set("group", exp.Group(expressions=group))
        if having:
            query.set("having", exp.Having(this=having))
        return query

    def _joined(self, conditions: tuple[_Said, ...]) -> exp.Expr | bool | None:
        """All conditions by AND; False if one cannot be read."""
        nodes = [_expression(said.text, said.location) for said in conditions]
        read = [node for node in nodes if node is not None]
        if len(read) < len(nodes):
            return False
        return exp.and_(*read, copy=False) if read else None


def _named(node: exp.Expr, alias: str | None, location: Location) -> exp.Expr:
    if alias is None:
        return node.copy()
    made = exp.alias_(node.copy(), alias)
    place_all(made, location)
    return made
