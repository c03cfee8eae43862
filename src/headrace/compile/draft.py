"""Definitions as written, before the passes have checked and resolved them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import expressions as exp

from headrace.compile.faults import Faults, SourceText, location_of
from headrace.model.definitions import Stream
from headrace.model.errors import Location

__all__ = ["OF_ONE_CHANGE", "ViewDraft"]

OF_ONE_CHANGE = "a condition over the columns of one change"  # the hint for what deletes


@dataclass
class ViewDraft:
    """A view on its way through the passes, which resolve `select` in place and fill the rest; or
    (`kind`) a table, whose `select` has all columns of its source and as WHERE the condition of its
    APPLY AS DELETE WHEN.

    `keys` are the resolved GROUP BY expressions (the window first), `outputs` the resolved SELECT
    list; `emits_on_close` is where EMIT ON WINDOW CLOSE stands, if it does; `text` is the file of a
    view in SQL; `is_broken` stops the passes: what follows could only report consequences.
    """

    name: str
    location: Location
    select: exp.Expr
    streams: Mapping[str, Stream]
    view_names: frozenset[str]
    table_names: frozenset[str]
    faults: Faults
    text: SourceText | None
    stream: Stream | None = None
    alias: str = ""
    outputs: list[tuple[str, exp.Expr, Location]] = field(default_factory=list)
    where: exp.Expr | None = None
    keys: list[exp.Expr] = field(default_factory=list)
    having: exp.Expr | None = None
    emits_on_close: Location | None = None
    kind: str = "view"
    is_per_event: bool = False
    is_broken: bool = False

    def fault(self, node: exp.Expr, message: str, hint: str) -> None:
        at = location_of(node, self.location, self.text)
        self.faults.add(f"{self.kind} {self.name}: {message}", hint, at)

    def break_off(self, node: exp.Expr, message: str, hint: str) -> None:
        self.fault(node, message, hint)
        self.is_broken = True

    @property
    def condition(self) -> str:
        """What WHERE is called in the definition."""
        return "WHERE" if self.kind == "view" else "APPLY AS DELETE WHEN"

    @property
    def source(self) -> Stream:
        assert self.stream is not None
        return self.stream
