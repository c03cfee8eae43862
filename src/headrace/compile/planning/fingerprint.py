"""What stored state means, as one number: a view whose meaning changed must be rebuilt."""

from __future__ import annotations

import hashlib

from sqlglot import expressions as exp

from headrace.compile.planning.joins import join_lines, texts_of
from headrace.compile.planning.resolved import ResolvedView
from headrace.compile.planning.state import State
from headrace.compile.planning.tables import mentioned_by
from headrace.compile.sql.dialect import canonical, parse_expression
from headrace.model.definitions import Stream

__all__ = ["fingerprint"]

_LAYOUT = "state columns by number"  # how a plan names what it keeps
_CLOCKED = ("_event_time", "_skew", "_quality")


def fingerprint(view: ResolvedView, state: State) -> str:
    """Over all that gives stored state its meaning: the query, and of the stream its event time,
    its duplicates, the types of its columns that the query mentions, and, where the view knows
    them, its clocks and what becomes of late events; of a table also all that it says of itself,
    and of a view that joins tables all that says what is looked up."""
    stream = view.stream
    sql = view.query(
        tuple(canonical(node) for _, node in view.outputs),
        canonical(view.having) if view.having is not None else None,
    )
    looked_up = [parse_expression(text) for join, _ in view.joins for text in texts_of(join)]
    mentioned = {
        column.parts[0].name.lower()
        for root in (*view.roots, *looked_up)
        for column in root.find_all(exp.Column)
    }
    if view.table is not None:
        mentioned.update(mentioned_by(view.table))
    duplicates = stream.deduplication
    if duplicates is not None:
        mentioned.update(name.lower() for name in duplicates.columns)
    lines = [_LAYOUT, sql, f"event time {stream.event_time}", *_column_lines(stream, mentioned)]
    if duplicates is not None:
        columns = ", ".join(sorted(duplicates.columns))
        within = f"{duplicates.within_microseconds} {stream.delay_microseconds} {stream.clocks}"
        lines.append(f"duplicates {columns} {within}")
    if view.table is not None:
        table, history = view.table, view.table.history
        lines.append(
            f"table {', '.join(table.key)} {table.sequence} {table.delete_when} "
            f"{table.tombstones_microseconds}"
        )
        if history is not None:
            lines.append(f"history {history.valid_from} {history.for_microseconds}")
    lines += join_lines(view.joins)
    if view.has_window or view.has_over:
        lines.append(
            f"late {stream.late_policy.value} {stream.late_horizon_microseconds} "
            f"{stream.delay_microseconds} {view.emits_on_close}"
        )
    if stream.clocks is not None and _knows_clocks(view, state, mentioned):
        clocks = stream.clocks
        lines.append(
            f"clocks {clocks.sent} {clocks.threshold_microseconds} {clocks.cap_microseconds}"
        )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _knows_clocks(view: ResolvedView, state: State, mentioned: set[str]) -> bool:
    if view.has_window or view.has_over or mentioned.intersection(_CLOCKED):
        return True
    return any(
        name in text
        for partial in state.partials.values()
        for text in (partial.input, *partial.order)
        for name in _CLOCKED
    )


def _column_lines(stream: Stream, mentioned: set[str]) -> list[str]:
    return [
        f"{column.name} {column.type} {'NULL' if column.nullable else 'NOT NULL'}"
        for column in stream.columns
        if column.name.lower() in mentioned
    ]
