"""Definitions as written, before the passes have checked and resolved them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import expressions as exp

from headrace.compile.faults import Faults, SourceText, location_of
from headrace.compile.lookups import KnownTable
from headrace.compile.sql.dialect import canonical
from headrace.compile.sql.join_clauses import JoinClauses
from headrace.model.definitions import Join, Lookup, Stream
from headrace.model.errors import Location

__all__ = ["OF_ONE_CHANGE", "JoinDraft", "ViewDraft"]

OF_ONE_CHANGE = "a condition over the columns of one change"  # the hint for what deletes


@dataclass
class JoinDraft:
    """A join with a table, on its way. `keys` are the columns of the table's key with what they are
    looked up by, `condition` is the rest of ON; both are over the event's columns, and so is
    `as_of`. `lookup` is there when these are."""

    node: exp.Join
    alias: str
    known: KnownTable
    is_outer: bool
    clauses: JoinClauses
    keys: dict[str, exp.Expr] = field(default_factory=dict)
    as_of: exp.Expr | None = None
    condition: exp.Expr | None = None
    lookup: Lookup | None = None

    @property
    def roots(self) -> list[exp.Expr]:
        parts = [*self.keys.values(), self.as_of, self.condition]
        return [part for part in parts if part is not None]

    def made(self) -> Join:
        assert self.lookup is not None
        return Join(
            self.lookup,
            is_outer=self.is_outer,
            condition=canonical(self.condition) if self.condition is not None else None,
            wait_microseconds=self.clauses.wait[0] if self.clauses.wait is not None else None,
            has_dead_letters=self.clauses.dead_letter is not None,
        )


@dataclass
class ViewDraft:
    """A view on its way through the passes, which resolve `select` in place and fill the rest; or
    (`kind`) a table, whose `select` has all columns of its source and as WHERE the condition of its
    APPLY AS DELETE WHEN.

    `keys` are the resolved GROUP BY expressions (the window first), `outputs` the resolved SELECT
    list; `emits_on_close` is where EMIT ON WINDOW CLOSE stands, if it does; `text` is the file of a
    view in SQL; `is_broken` stops the passes: what follows could only report consequences.

    `tables` are those whose definitions are right. With `joins`, `stream` has the looked-up columns
    too, and `own` is the stream without them.
    """

    name: str
    location: Location
    select: exp.Expr
    streams: Mapping[str, Stream]
    view_names: frozenset[str]
    table_names: frozenset[str]
    faults: Faults
    text: SourceText | None
    tables: Mapping[str, KnownTable] = field(default_factory=dict)
    stream: Stream | None = None
    own: Stream | None = None
    alias: str = ""
    joins: list[JoinDraft] = field(default_factory=list)
    outputs: list[tuple[str, exp.Expr, Location]] = field(default_factory=list)
    where: exp.Expr | None = None
    keys: list[exp.Expr] = field(default_factory=list)
    having: exp.Expr | None = None
    emits_on_close: Location | None = None
    kind: str = "view"
    is_per_event: bool = False
    is_broken: bool = False

    def fault(self, node: exp.Expr, message: str, hint: str) -> None:
        self.fault_at(location_of(node, self.location, self.text), message, hint)

    def fault_at(self, at: Location, message: str, hint: str) -> None:
        message, hint = self._in_words(message), self._in_words(hint)
        self.faults.add(f"{self.kind} {self.name}: {message}", hint, at)

    def break_off(self, node: exp.Expr, message: str, hint: str) -> None:
        self.fault(node, message, hint)
        self.is_broken = True

    def _in_words(self, text: str) -> str:
        """Looked-up columns by their tables."""
        for join in self.joins:
            if join.lookup is not None:
                text = text.replace(join.lookup.found, f"JOIN {join.alias}")
                text = text.replace(f"{join.lookup.name}_", f"{join.alias}.")
        return text

    @property
    def condition(self) -> str:
        """What WHERE is called in the definition."""
        return "WHERE" if self.kind == "view" else "APPLY AS DELETE WHEN"

    @property
    def source(self) -> Stream:
        assert self.stream is not None
        return self.stream

    @property
    def own_source(self) -> Stream:
        """Without looked-up columns."""
        assert self.own is not None
        return self.own
