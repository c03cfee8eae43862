"""A view with every name resolved: what the passes end with and planning starts from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import expressions as exp

from headrace.compile.functions import function_name
from headrace.compile.lookups import KnownTable, with_columns
from headrace.compile.planning.aggregates import read_call
from headrace.compile.sql.dialect import canonical, identifier, parse_expression
from headrace.compile.windows import USAGE
from headrace.model.definitions import Join, Stream, Table, View

__all__ = [
    "ResolvedView",
    "has_aggregate",
    "has_over",
    "is_window_key",
    "resolve_text",
    "window_part",
]


@dataclass(frozen=True)
class ResolvedView:
    """Expressions mention the stream's columns by their own spelling, `window`, `window.start`
    and `window.end`; nothing else. With `joins` the stream has the looked-up columns too."""

    name: str
    stream: Stream
    outputs: tuple[tuple[str, exp.Expr], ...]
    where: exp.Expr | None
    keys: tuple[exp.Expr, ...]
    having: exp.Expr | None
    emits_on_close: bool = False
    table: Table | None = None
    joins: tuple[tuple[Join, KnownTable], ...] = ()

    @property
    def roots(self) -> list[exp.Expr]:
        """All expressions."""
        found = [*(node for _, node in self.outputs), *self.keys, self.where, self.having]
        return [node for node in found if node is not None]

    @property
    def has_window(self) -> bool:
        return any(is_window_key(key) for key in self.keys)

    @property
    def has_over(self) -> bool:
        return any(has_over(node) for _, node in self.outputs)

    @property
    def has_aggregates(self) -> bool:
        return self.having is not None or any(has_aggregate(node) for _, node in self.outputs)

    @property
    def is_global(self) -> bool:
        """No GROUP BY, but aggregates: one row, whatever comes."""
        return not self.keys and self.has_aggregates

    @property
    def is_per_event(self) -> bool:
        return not self.keys and not self.has_aggregates

    def select(self, outputs: tuple[str, ...]) -> str:
        """The SELECT list, with these texts for the outputs."""
        return ", ".join(
            f"{text} AS {canonical(identifier(name))}"
            for text, (name, _) in zip(outputs, self.outputs, strict=True)
        )

    def query(self, outputs: tuple[str, ...], having: str | None) -> str:
        """The whole view as one Spark SQL query, with these texts for outputs and HAVING."""
        source = canonical(identifier(self.stream.name))
        sql = f"SELECT {self.select(outputs)} FROM {source}"
        if self.where is not None:
            sql += f" WHERE {canonical(self.where)}"
        if self.keys:
            sql += f" GROUP BY {', '.join(canonical(key) for key in self.keys)}"
        if having is not None:
            sql += f" HAVING {having}"
        return sql


def has_aggregate(node: exp.Expr) -> bool:
    """Whether it needs a group; what is under OVER does not."""
    parts = node.walk(prune=lambda part: isinstance(part, exp.Window))
    return any(read_call(part) is not None for part in parts)


def has_over(node: exp.Expr) -> bool:
    return node.find(exp.Window) is not None


def is_window_key(node: exp.Expr) -> bool:
    return function_name(node) in USAGE


def window_part(node: exp.Expr, has_window: bool) -> str | None:
    """`start`, `end` or `` (all of it) if the node is the view's window column or part of it."""
    if not has_window or not isinstance(node, exp.Column):
        return None
    if not node.args.get("table") and node.name.lower() == "window":
        return ""
    if node.table.lower() == "window" and node.name.lower() in ("start", "end"):
        return node.name.lower()
    return None


def resolve_text(view: View, stream: Stream, tables: Sequence[KnownTable]) -> ResolvedView:
    """The model's canonical texts, parsed again. `tables` are those that its joins look up."""
    joins = tuple(zip(view.joins, tables, strict=True))
    looked_up = [column for join, known in joins for column in known.columns_of(join.lookup)]
    return ResolvedView(
        name=view.name,
        stream=with_columns(stream, looked_up),
        outputs=tuple((out.name, parse_expression(out.expression)) for out in view.outputs),
        where=parse_expression(view.where) if view.where is not None else None,
        keys=tuple(parse_expression(key) for key in view.keys),
        having=parse_expression(view.having) if view.having is not None else None,
        emits_on_close=view.emits_on_close,
        table=view.table,
        joins=joins,
    )
