"""A table's changes: what Spark computes of each, and the query that says what the table is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import expressions as exp

from headrace.compile.planning.resolved import ResolvedView
from headrace.compile.sql.dialect import canonical, identifier, parse_expression
from headrace.model.definitions import History, Stream, Table
from headrace.model.plan import Expression, TablePlan

__all__ = [
    "ChangeExpressions",
    "change_expressions",
    "column_text",
    "mentioned_by",
    "plan_table",
    "table_oracle",
]

_POSITION = "_position"  # BIGINT, in every event: the number of the group commit that stored it
_RECEIVED = "_received_at"
_NEWEST = "_newest"


def plan_table(view: ResolvedView, add_key: Callable[[exp.Expr], Expression]) -> TablePlan:
    """Adds the keys that the table's rows do not show."""
    table = view.table
    assert table is not None

    def key(text: str) -> str:
        return add_key(parse_expression(text)).name

    deletes, history = _deletes(table), table.history
    return TablePlan(
        key=tuple(key(column_text(name)) for name in table.key),
        deletes=key(deletes) if deletes is not None else None,
        sequence=key(column_text(table.sequence)) if table.sequence is not None else None,
        position=key(_POSITION),
        received=key(_RECEIVED),
        tombstones_microseconds=table.tombstones_microseconds,
        keeps_history=history is not None,
        valid_from=key(_valid_from(view.stream, history)) if history is not None else None,
        history_microseconds=history.for_microseconds if history is not None else None,
    )


def table_oracle(view: ResolvedView) -> str:
    """The table's rows as they are after all changes. Of the changes of a key with the highest
    sequence the first counts, since a change that is not above the newest one is superseded;
    without a sequence the last.

    It knows no end of tombstones: a change that came so long after a delete that it applied
    (`resurrected`) although its sequence is not above the delete's, is not in these rows.
    """
    table = view.table
    assert table is not None
    by = ", ".join(column_text(name) for name in table.key)
    order, places = [], "DESC"
    if table.sequence is not None:
        order.append(f"{column_text(table.sequence)} DESC NULLS LAST")
        places = "ASC"
    order += [f"{name} {places}" for name in (_POSITION, "_partition", "_offset")]
    numbered = f"row_number() OVER (PARTITION BY {by} ORDER BY {', '.join(order)}) AS {_NEWEST}"
    changes = f"SELECT *, {numbered} FROM {column_text(view.stream.name)}"
    if view.where is not None:
        changes += f" WHERE {canonical(view.where)}"
    deletes = _deletes(table)
    is_there = "" if deletes is None else f" AND NOT {deletes}"
    outputs = view.select(tuple(canonical(node) for _, node in view.outputs))
    return f"SELECT {outputs} FROM ({changes}) WHERE {_NEWEST} = 1{is_there}"


def mentioned_by(table: Table) -> set[str]:
    """The columns of the changes that say which change counts, in lower case."""
    names = {*table.key}
    names.update(name for name in (table.sequence,) if name is not None)
    if table.history is not None and table.history.valid_from is not None:
        names.add(table.history.valid_from)
    if table.delete_when is not None:
        condition = parse_expression(table.delete_when)
        names.update(column.parts[0].name for column in condition.find_all(exp.Column))
    return {name.lower() for name in names}


def column_text(name: str) -> str:
    return canonical(identifier(name))


@dataclass(frozen=True)
class ChangeExpressions:
    """Of a table's changes: whether one deletes (None: none does), its sequence if there is one,
    from when it is valid, and its place in the one order of the log."""

    deletes: str | None
    sequence: str | None
    valid_from: str
    places: tuple[str, ...] = (_POSITION, "_partition", "_offset")


def change_expressions(table: Table, changes: Stream) -> ChangeExpressions:
    return ChangeExpressions(
        deletes=_deletes(table),
        sequence=column_text(table.sequence) if table.sequence is not None else None,
        valid_from=_valid_from(changes, table.history or History()),
    )


def _valid_from(stream: Stream, history: History) -> str:
    """A change that says no time is valid from when it was received."""
    if history.valid_from is None:
        return _RECEIVED
    column = stream.column(history.valid_from)
    assert column is not None
    name = column_text(column.name)
    return f"coalesce({name}, {_RECEIVED})" if column.nullable else name


def _deletes(table: Table) -> str | None:
    """Whether a change deletes, never NULL."""
    if table.delete_when is None:
        return None
    return canonical(parse_expression(f"coalesce(({table.delete_when}), FALSE)"))
