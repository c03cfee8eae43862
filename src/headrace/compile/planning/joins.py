"""The look-ups of a view: what the engine needs of each, and the query that says what they find."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import expressions as exp

from headrace.compile.duckdb.spark_types import as_decimal
from headrace.compile.lookups import KnownTable
from headrace.compile.planning.tables import change_expressions, column_text, mentioned_by
from headrace.compile.sql.dialect import canonical, identifier, parse_expression
from headrace.model.definitions import LOOKUP, Column, Join, Lookup
from headrace.model.plan import JoinPlan, changes_name
from headrace.model.types import DataType

__all__ = ["conjuncts", "holds", "join_lines", "joined_events", "plan_joins", "texts_of"]

_INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
Joined = Sequence[tuple[Join, KnownTable]]


def conjuncts(node: exp.Expr) -> list[exp.Expr]:
    """The conditions that are joined by AND, without parentheses around them."""
    if isinstance(node, exp.Paren):
        return conjuncts(node.this)
    if isinstance(node, exp.And):
        return [*conjuncts(node.this), *conjuncts(node.expression)]
    return [node]


def holds(of_type: DataType, other: DataType) -> bool:
    """Whether Spark's cast of the other type to this one keeps every value."""
    if of_type == other:
        return True
    if other.is_integer and of_type.is_integer:
        return _INTEGERS.index(other.name) < _INTEGERS.index(of_type.name)
    if of_type.is_decimal and (other.is_integer or other.is_decimal):
        other = as_decimal(other)
        whole = of_type.precision - of_type.scale
        return other.scale <= of_type.scale and other.precision - other.scale <= whole
    return of_type.name == "TIMESTAMP" and other.name == "DATE"


def _looked_up_in(nodes: Sequence[exp.Expr]) -> set[str]:
    """The looked-up columns that these expressions mention, in lower case."""
    return {
        column.parts[0].name.lower()
        for node in nodes
        for column in node.find_all(exp.Column)
        if column.parts[0].name.lower().startswith(LOOKUP)
    }


def texts_of(join: Join) -> list[str]:
    """All expressions of it."""
    texts = [*(text for _, text in join.lookup.keys), join.lookup.as_of, join.condition]
    return [text for text in texts if text is not None]


def _needed_columns(joined: Joined, roots: Sequence[exp.Expr]) -> dict[str, list[Column]]:
    """Of each look-up, by its name, the columns that the view uses."""
    texts = [text for join, _ in joined for text in texts_of(join)]
    mentioned = _looked_up_in([*roots, *map(parse_expression, texts)])
    needed: dict[str, list[Column]] = {}
    for join, known in joined:
        lookup = join.lookup
        if join.wait_microseconds is not None or join.has_dead_letters:
            mentioned.add(lookup.found)
        columns = known.columns_of(lookup)
        needed[lookup.name] = [column for column in columns if column.name in mentioned]
    return needed


def plan_joins(
    joined: Joined, where: exp.Expr | None, roots: Sequence[exp.Expr]
) -> tuple[JoinPlan, ...]:
    """`roots` are all expressions of the view, `where` among them."""
    needed = _needed_columns(joined, roots)
    plans = []
    for place, (join, known) in enumerate(joined):
        columns = {column.name: column.type for column in known.columns}
        missing = _missing(join, [other.lookup for other, _ in joined[place:]], where)
        keys = [text for _, text in join.lookup.keys]
        keys += [join.lookup.as_of] if join.lookup.as_of is not None else []
        may_come = [f"({text}) IS NOT NULL" for text in keys]
        plans.append(
            JoinPlan(
                lookup=join.lookup,
                columns=tuple(needed[join.lookup.name]),
                key_types=tuple(columns[name] for name, _ in join.lookup.keys),
                wait_microseconds=join.wait_microseconds,
                waits=_all([*missing, *may_come]) if join.wait_microseconds is not None else None,
                dead=_all(missing) if join.has_dead_letters else None,
                has_condition=join.condition is not None,
            )
        )
    return tuple(plans)


def _missing(join: Join, unknown: Sequence[Lookup], where: exp.Expr | None) -> list[str]:
    """What an event meets that wants a row of this look-up and has none. Of WHERE and ON that is
    what can be said without the rows of `unknown`, this look-up and those after it."""
    names = tuple(lookup.name for lookup in unknown)
    on = conjuncts(parse_expression(join.condition)) if join.condition is not None else []
    parts = [*(conjuncts(where) if where is not None else []), *on]
    wanted = [
        canonical(part)
        for part in parts
        if not any(name.startswith(names) for name in _looked_up_in([part]))
    ]
    matches = " AND ".join([join.lookup.found, *(f"({canonical(part)})" for part in on)])
    return [*dict.fromkeys(wanted), f"NOT coalesce({matches}, FALSE)"]


def _all(conditions: Sequence[str]) -> str:
    return canonical(parse_expression(" AND ".join(f"({text})" for text in conditions)))


def join_lines(joined: Joined) -> Iterator[str]:
    """All that gives what is looked up its meaning, for the fingerprint; the types of the columns
    that are mentioned aside."""
    for join, known in joined:
        table, history = known.table, known.table.history
        yield (
            f"join {join.lookup.name} {join.is_outer} {join.condition} {join.wait_microseconds} "
            f"{join.has_dead_letters}"
        )
        yield (
            f"with {known.view.name} from {known.changes.name} "
            f"{', '.join(table.key)} {table.sequence} {table.delete_when} "
            f"{table.tombstones_microseconds} {history}"
        )
        mentioned, columns = mentioned_by(table), known.changes.columns
        yield from (f"{c.name} {c.type}" for c in columns if c.name.lower() in mentioned)


def joined_events(stream: str, joined: Joined, roots: Sequence[exp.Expr]) -> str:
    """The stream's events with the looked-up columns. For each look-up the changes that an event
    sees are those up to its position, and of them the one that counts is the newest, or, with a
    sequence, the first of those with the highest one: what is not above is superseded. As of a
    time it is, of the versions that were valid by then, the one that became valid last; of those
    with the same time it is told in the same way.

    As the query of a table it knows no end of tombstones.
    """
    needed, parts, events = _needed_columns(joined, roots), [], canonical(identifier(stream))
    once = {join.lookup.name: (join.lookup, known) for join, known in joined}
    for number, (lookup, known) in enumerate(once.values()):
        columns = [column.name for column in needed[lookup.name] if column.name != lookup.found]
        parts.append(f"_changes{number} AS ({_changes(lookup, known, columns)})")
        parts.append(
            f"_events{number} AS ({_events(lookup, known, columns, events, f'_changes{number}')})"
        )
        events = f"_events{number}"
    return f"WITH {', '.join(parts)} SELECT * FROM {events}"


def _changes(lookup: Lookup, known: KnownTable, columns: Sequence[str]) -> str:
    """Each change with its key, its row unless it deletes, from which position it is there and
    what it is compared by."""
    at = change_expressions(known.table, known.changes)
    keys = [f"{column_text(name)} AS _key{i}" for i, name in enumerate(known.table.key)]
    by_name = {lookup.column(column.name): column.name for column in known.columns}
    row = [f"TRUE AS {lookup.found}"]
    row += [f"{column_text(by_name[name])} AS {name}" for name in columns]
    made = f"struct({', '.join(row)})"
    if at.deletes is not None:
        made = f"IF({at.deletes}, NULL, {made})"
    order = [f"{name} AS o{i}" for i, name in enumerate(at.places)]
    if at.sequence is not None:  # the first of equal ones: the one with the lowest place
        order = [f"-{name} AS o{i}" for i, name in enumerate(at.places)]
        order.insert(0, f"{at.sequence} AS sequence")
    chosen = [*keys, f"{made} AS _row", f"{at.places[0]} AS _since"]
    if lookup.as_of is not None:
        order.insert(0, f"{at.valid_from} AS valid_from")
        chosen.append(f"{at.valid_from} AS _valid_from")
    chosen.append(f"struct({', '.join(order)}) AS _order")
    source = canonical(identifier(changes_name(known.view.name)))
    return f"SELECT {', '.join(chosen)} FROM {source}"


def _events(
    lookup: Lookup, known: KnownTable, columns: Sequence[str], events: str, changes: str
) -> str:
    seen = [f"_key{i} = ({text})" for i, (_, text) in enumerate(lookup.keys)]
    seen.append("_since <= _position")
    if lookup.as_of is not None:
        seen.append(f"_valid_from <= ({lookup.as_of})")
        history = known.table.history
        bound = history.for_microseconds if history is not None else None
        if bound is not None:
            back = f"unix_micros(_received_at) - unix_micros({lookup.as_of})"
            seen.append(f"{back} <= {bound}L")
    found = (
        f"SELECT any_value(struct(_event.*)) AS _event, max_by(_row, _order) AS _row "
        f"FROM {events} AS _event LEFT JOIN {changes} ON {' AND '.join(seen)} "
        "GROUP BY _partition, _offset"
    )
    added = [f"coalesce(_row.{lookup.found}, FALSE) AS {lookup.found}"]
    added += [f"_row.{name} AS {name}" for name in columns]
    return f"SELECT _event.*, {', '.join(added)} FROM ({found})"
