"""Views in Python: each call notes what it was told, and `view` makes the statement of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import expressions as exp

from headrace.compile.faults import place_all
from headrace.compile.over import over_node
from headrace.compile.python.source_locations import (
    collector_in_force,
    here_said,
    note_fault,
    read_expression,
    read_expressions,
    read_interval,
)
from headrace.compile.sql.dialect import identifier, parse_expression
from headrace.compile.sql.join_clauses import JoinClauses, note_clauses
from headrace.compile.sql.statements import ViewStatement
from headrace.model.errors import Location

__all__ = ["ViewDefinition"]

_EVENT_TIME = "_event_time"  # of any stream, and of no table


@dataclass(frozen=True)
class _Said:
    """A piece of text and the line that said it."""

    text: str
    location: Location


@dataclass(frozen=True)
class _Output:
    """An expression of the SELECT list; over a sliding window if `preceding` is said."""

    name: str | None
    said: _Said
    keys: tuple[str, ...] = ()
    preceding: str | None = None

    def node(self) -> exp.Expr | None:
        """None if something of it cannot be read."""
        where = self.said.location
        nodes = read_expressions((self.said.text, *self.keys), where)
        if nodes is None or self.preceding is None:
            return nodes[0] if nodes else None
        length = None
        if self.preceding.strip().lower() != "unbounded":
            length = read_interval(self.preceding, f"over: preceding of {self.name}", where)
        made = over_node(nodes[0], nodes[1:], _EVENT_TIME, length)
        place_all(made, where)
        return made


@dataclass(frozen=True)
class _Windowed:
    """A window's function, its texts, the conditions before them, and the line that said it."""

    function: str
    texts: tuple[str, ...]
    conditions: tuple[str, ...]
    location: Location

    def call(self) -> exp.Expr | None:
        """None if a condition cannot be read."""
        over = read_expressions(self.conditions, self.location)
        if over is None:
            return None
        texts = [exp.Literal.string(text) for text in self.texts]
        over = over or [exp.Column(this=identifier(_EVENT_TIME))]
        made = exp.Anonymous(this=self.function, expressions=[*over, *texts])
        place_all(made, self.location)
        return made


@dataclass(frozen=True)
class _Joined:
    """A table that is joined, and the line that said so."""

    table: str
    on: str
    location: Location
    is_outer: bool
    alias: str | None
    as_of: str | None
    wait: str | None
    has_dead_letters: bool = False

    def node(self) -> exp.Join | None:
        """None if something of it cannot be read."""
        here, wait = self.location, None
        if self.wait is not None:
            wait = (read_interval(self.wait, f"join {self.table}: wait", here), here)
        nodes = read_expressions([text for text in (self.on, self.as_of) if text], here)
        if not nodes:
            return None
        table = exp.Table(this=identifier(self.table))
        if self.alias is not None:
            table.set("alias", exp.TableAlias(this=identifier(self.alias)))
        made = exp.Join(this=table, on=nodes[0], side="LEFT" if self.is_outer else None)
        place_all(made, here)
        clauses = JoinClauses(
            as_of=nodes[1] if self.as_of is not None else None,
            as_of_location=here if self.as_of is not None else None,
            wait=wait,
            dead_letter=here if self.has_dead_letters else None,
        )
        note_clauses(table, clauses)
        return made


@dataclass(frozen=True)
class ViewDefinition:
    """A view in the making; every method gives a new one, so that parts can be shared."""

    source: str
    joined: tuple[_Joined, ...] = ()
    conditions: tuple[_Said, ...] = ()
    keys: tuple[_Output, ...] = ()
    windowed: _Windowed | None = None
    outputs: tuple[_Output, ...] = ()
    conditions_after: tuple[_Said, ...] = ()
    emits_on_close: Location | None = None

    def join(
        self,
        table: str,
        on: str,
        *,
        alias: str | None = None,
        as_of: str | None = None,
        wait: str | None = None,
        else_dead_letter: bool = False,
    ) -> ViewDefinition:
        """Each event with the row of the table that it finds, as `JOIN` in SQL: `on` says by what,
        as in `"prices.model = calls.model"`. An event that finds none is left out, or with
        `else_dead_letter` is a dead letter. `as_of` is the time of the version that it finds (else
        the row is that of the event's position), `wait` how long an event waits for a row."""
        here = here_said()
        made = _Joined(table, on, here, False, alias, as_of, wait, else_dead_letter)
        return replace(self, joined=(*self.joined, made))

    def left_join(
        self,
        table: str,
        on: str,
        *,
        alias: str | None = None,
        as_of: str | None = None,
        wait: str | None = None,
    ) -> ViewDefinition:
        """As `join`, and an event that finds no row is kept, with NULLs."""
        made = _Joined(table, on, here_said(), True, alias, as_of, wait)
        return replace(self, joined=(*self.joined, made))

    def where(self, condition: str) -> ViewDefinition:
        """Only events that meet the condition; several are joined by AND."""
        return replace(self, conditions=(*self.conditions, _Said(condition, here_said())))

    def key_by(self, *columns: str, **named: str) -> ViewDefinition:
        """One row per value of these expressions; those that are not columns need a name."""
        return replace(self, keys=(*self.keys, *_outputs(columns, named)))

    def select(self, *columns: str, **named: str) -> ViewDefinition:
        """Every event is a row of its own, with these expressions; those that are not columns need
        a name."""
        return replace(self, outputs=(*self.outputs, *_outputs(columns, named)))

    def over(self, *keys: str, preceding: str, **outputs: str) -> ViewDefinition:
        """Sliding windows: every event is a row of its own, with these aggregates over the events
        of the same keys from this length of time before it (`"unbounded"`: all) up to it."""
        added = [replace(o, keys=keys, preceding=preceding) for o in _outputs((), outputs)]
        return replace(self, outputs=(*self.outputs, *added))

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
        here = here_said()
        if self.windowed is not None:
            note_fault("two windows in one view", "make one view per window", here)
        return replace(self, windowed=_Windowed(function, texts, conditions, here))

    def emit_on_close(self) -> ViewDefinition:
        """A window is published once, when it is final."""
        return replace(self, emits_on_close=here_said())

    def agg(self, **outputs: str) -> ViewDefinition:
        """The aggregates, each with its output's name."""
        return replace(self, outputs=(*self.outputs, *_outputs((), outputs)))

    def having(self, condition: str) -> ViewDefinition:
        """Only rows that meet the condition; several are joined by AND."""
        return replace(
            self, conditions_after=(*self.conditions_after, _Said(condition, here_said()))
        )

    def view(self, name: str) -> ViewDefinition:
        """Define it under this name. Outputs are window_start and window_end (with a window),
        then the keys, then the others in the order they were said."""
        here = here_said()
        collector = collector_in_force.get()
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
            call = self.windowed.call()
            failed = call is None
            group += [call] if call is not None else []
            for part in ("start", "end"):
                bound = parse_expression(f"window.{part}")
                place_all(bound, self.windowed.location)
                outputs.append(exp.alias_(bound, f"window_{part}"))
        for place, output in enumerate((*self.keys, *self.outputs)):
            node = output.node()
            if node is None:
                failed = True
                continue
            outputs.append(_named(node, output.name, output.said.location))
            if place < len(self.keys):
                group.append(node.copy())
        joins = [made for each in self.joined if (made := each.node()) is not None]
        failed = failed or len(joins) < len(self.joined)
        where = self._all(self.conditions)
        having = self._all(self.conditions_after)
        if failed or where is False or having is False:
            return None
        query = exp.Select(expressions=outputs)
        table = exp.Table(this=identifier(self.source))
        query.set("from_", exp.From(this=table))
        if joins:
            query.set("joins", joins)
        if where:
            query.set("where", exp.Where(this=where))
        if group:
            query.set("group", exp.Group(expressions=group))
        if having:
            query.set("having", exp.Having(this=having))
        return query

    def _all(self, conditions: tuple[_Said, ...]) -> exp.Expr | bool | None:
        """All conditions by AND; False if one cannot be read."""
        nodes = [read_expression(said.text, said.location) for said in conditions]
        read = [node for node in nodes if node is not None]
        if len(read) < len(nodes):
            return False
        return exp.and_(*read, copy=False) if read else None


def _outputs(columns: Sequence[str], named: Mapping[str, str]) -> list[_Output]:
    here = here_said()
    found = [_Output(None, _Said(text, here)) for text in columns]
    return found + [_Output(name, _Said(text, here)) for name, text in named.items()]


def _named(node: exp.Expr, alias: str | None, location: Location) -> exp.Expr:
    if alias is None:
        return node.copy()
    made = exp.alias_(node.copy(), alias)
    place_all(made, location)
    return made
