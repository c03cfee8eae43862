"""Joins with tables: which table, by which columns, and what the rest of the view sees of it.

Every name that is a table's becomes a looked-up column of the event, so that no later pass knows
of joins. A row that was found but fails the rest of ON counts as missing: an inner join says so in
WHERE, an outer one wherever the row is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import expressions as exp

from headrace.compile.draft import JoinDraft, ViewDraft
from headrace.compile.faults import closest, keep_place
from headrace.compile.functions import function_name
from headrace.compile.known_types import known_type
from headrace.compile.lookups import make_lookup, with_columns
from headrace.compile.passes.columns import name_units, resolve_in
from headrace.compile.passes.source import refused_part
from headrace.compile.planning.aggregates import read_call
from headrace.compile.planning.finals import WRITTEN
from headrace.compile.planning.joins import conjuncts, holds
from headrace.compile.planning.resolved import is_window_key
from headrace.compile.sql.dialect import canonical, identifier
from headrace.compile.sql.join_clauses import clauses_of
from headrace.compile.windows import USAGE, is_event_time, time_column
from headrace.model.definitions import LOOKUP, Column

__all__ = ["find_tables", "resolve_joins"]

_OWN = "headrace_own_column"  # in ON: the name of a column of the table that is being joined
_FORM = "FROM stream JOIN table [FOR SYSTEM_TIME AS OF time] AS t ON t.key = stream.column"
_OF_ONE_EVENT = "say it of one event, and of the row that it finds"
_ROUNDED = ("FLOAT", "DOUBLE")


def find_tables(draft: ViewDraft) -> None:
    for node in draft.select.args.get("joins") or ():
        _find_table(draft, node)
    _check_clauses(draft)


def _find_table(draft: ViewDraft, node: exp.Join) -> None:
    table = node.this
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        draft.break_off(table, "JOIN must name a table", _FORM)
        return
    name = table.name
    if table.args.get("db") is not None:
        draft.break_off(table, f"{table.sql()} has a qualifier", "tables have plain names")
        return
    part = refused_part(table) or refused_part(node)
    if part is not None:
        draft.break_off(table, f"{part} is not in this version", _FORM)
        return
    if not _check_kind(draft, node):
        return
    known = draft.tables.get(name.lower())
    if known is None:
        _say_what_it_is(draft, table)
        return
    alias = table.alias or known.view.name
    taken = [draft.alias, draft.own_source.name, *(join.alias for join in draft.joins)]
    if alias.lower() in (other.lower() for other in taken):
        draft.break_off(
            table, f"two of FROM are named {alias}", f"give each another name: JOIN {name} AS t"
        )
        return
    is_outer = node.side.upper() == "LEFT"
    draft.joins.append(JoinDraft(node, alias, known, is_outer, clauses_of(table)))


def _check_kind(draft: ViewDraft, node: exp.Join) -> bool:
    name = node.this.name
    words = [word for word in (node.method, node.side, node.kind) if word]
    said = " ".join([*words, "JOIN"])
    hint = f"JOIN {name} ON … leaves out events without a row, LEFT JOIN {name} ON … keeps them"
    if said == "CROSS JOIN":
        said = "CROSS JOIN, or a comma in FROM"
        hint = f"each event finds one row of {name}: JOIN {name} AS t ON t.key = …"
    elif said in ("JOIN", "INNER JOIN", "LEFT JOIN", "LEFT OUTER JOIN"):
        if node.args.get("using"):
            column = node.args["using"][0].name
            said = "USING is not in this version"
            hint = f"ON {name}.{column} = {draft.alias}.{column}"
        else:
            return True
    else:
        said = f"{said} is not in this version"
    draft.break_off(node, said, hint)
    return False


def _say_what_it_is(draft: ViewDraft, table: exp.Table) -> None:
    name = table.name
    lower = name.lower()
    if lower in draft.table_names:
        draft.is_broken = True  # the table's own faults are said
    elif lower in draft.view_names:
        draft.break_off(
            table,
            f"{name} is a view, and a stream cannot be joined with a view yet",
            "join a table: CREATE TABLE t FROM stream KEY (…) keeps the newest event of each key; "
            "or join the two views when querying",
        )
    elif lower in draft.streams:
        draft.break_off(
            table,
            f"{name} is a stream, and a stream cannot be joined with a stream yet",
            f"CREATE TABLE t FROM {name} KEY (…) keeps the newest event of each key: join that",
        )
    else:
        tables = [known.view.name for known in draft.tables.values()]
        known_names = ", ".join(sorted(tables)) or "none"
        draft.break_off(
            table,
            f"table {name} does not exist",
            closest(name, tables) or f"tables are: {known_names}; CREATE TABLE defines one",
        )


def _check_clauses(draft: ViewDraft) -> None:
    waiting: JoinDraft | None = None
    for join in draft.joins:
        clauses, name = join.clauses, join.known.view.name
        if clauses.as_of_location is not None and join.known.table.history is None:
            draft.fault_at(
                clauses.as_of_location,
                f"FOR SYSTEM_TIME, and table {name} keeps no versions",
                f"say WITH HISTORY in CREATE TABLE {name}, or leave it out: then an event finds "
                "the row of its own position",
            )
        if clauses.dead_letter is not None and join.is_outer:
            draft.fault_at(
                clauses.dead_letter,
                f"ELSE DEAD LETTER with LEFT JOIN {name}, which keeps events without a row",
                f"say JOIN {name}, or leave out ELSE DEAD LETTER",
            )
        if clauses.wait is None:
            continue
        if clauses.wait[0] <= 0:
            draft.fault_at(clauses.wait[1], "WAIT UP TO no time at all", "a length of time above 0")
        if waiting is not None:
            draft.fault_at(
                clauses.wait[1],
                f"a second WAIT: this view waits for {waiting.known.view.name} already",
                "let an event wait for the table that lags most, and join the other without WAIT",
            )
        waiting = waiting or join


def resolve_joins(draft: ViewDraft) -> None:
    if not draft.joins:
        return
    before = len(draft.faults.errors)
    for place, join in enumerate(draft.joins):
        _resolve_join(draft, join, draft.joins[:place])
        if draft.is_broken:
            return
    select = draft.select
    group = select.args.get("group")
    has_window = group is not None and any(map(is_window_key, group.walk()))
    left = frozenset({"window", *USAGE} if has_window else ())
    for index, (name, node, at) in enumerate(draft.outputs):
        draft.outputs[index] = (name, _looked_up(draft, node, draft.joins, left), at)
    where = select.args.get("where")
    conditions = [] if where is None else [_looked_up(draft, where.this, draft.joins, left)]
    found = [part for join in draft.joins if not join.is_outer for part in _inner(join)]
    parts = [*found, *(part for node in conditions for part in conjuncts(node))]
    if parts:
        select.set("where", exp.Where(this=exp.and_(*parts, copy=False)))
    if group is not None:
        keys = [_looked_up(draft, node, draft.joins, left) for node in group.expressions]
        group.set("expressions", keys)
    having = select.args.get("having")
    if having is not None:
        outputs = left.union(name.lower() for name, _, _ in draft.outputs)
        having.set("this", _looked_up(draft, having.this, draft.joins, outputs))
    draft.is_broken = draft.is_broken or len(draft.faults.errors) > before


def _inner(join: JoinDraft) -> Iterator[exp.Expr]:
    assert join.lookup is not None
    found = exp.Column(this=identifier(join.lookup.found))
    keep_place(found, join.node.this)
    yield found
    if join.condition is not None:
        yield from conjuncts(join.condition.copy())


def _resolve_join(draft: ViewDraft, join: JoinDraft, before: Sequence[JoinDraft]) -> None:
    said = len(draft.faults.errors)
    scope = [*before, join]
    if join.clauses.as_of is not None:
        _resolve_as_of(draft, join, before)
    rest: list[exp.Expr] = []
    for part in conjuncts(join.node.args["on"]):
        node = _looked_up(draft, part, scope, frozenset(), join)
        if len(draft.faults.errors) > said or not _is_plain(draft, node, "ON"):
            continue
        if not _is_key(draft, join, node):
            rest.append(node)
    table = join.known.table
    missing = [name for name in table.key if name not in join.keys]
    if len(draft.faults.errors) > said:
        draft.is_broken = True
        return
    if missing:
        written = [f"{join.alias}.{name} = …" for name in table.key]
        draft.break_off(
            join.node.args["on"],
            f"JOIN {join.known.view.name} does not say {join.alias}.{missing[0]} = …: "
            f"a row is looked up by the table's whole key, ({', '.join(table.key)})",
            f"ON {' AND '.join(written)}; joins on other columns come with views over views",
        )
        return
    keys = [(name, canonical(join.keys[name])) for name in table.key]
    as_of = canonical(join.as_of) if join.as_of is not None else None
    join.lookup = make_lookup(join.known.view.name, keys, as_of)
    draft.stream = with_columns(draft.source, join.known.columns_of(join.lookup))
    if rest:
        named = [part.transform(_named_own, join, copy=False) for part in rest]
        join.condition = exp.and_(*named, copy=False)
        resolve_in(draft, join.condition)
    draft.is_broken = len(draft.faults.errors) > said


def _resolve_as_of(draft: ViewDraft, join: JoinDraft, before: Sequence[JoinDraft]) -> None:
    assert join.clauses.as_of is not None
    node = _looked_up(draft, join.clauses.as_of, before, frozenset())
    if not _is_plain(draft, node, "FOR SYSTEM_TIME AS OF"):
        return
    text = canonical(node)
    resolve_in(draft, node)
    if is_event_time(node, draft.own_source):
        made = exp.Column(this=identifier(time_column(draft.own_source)))
        keep_place(made, node)
        node = made
    of_type = known_type(node, draft.source)
    if of_type is not None and of_type.name != "TIMESTAMP":
        draft.fault(
            node,
            f"FOR SYSTEM_TIME AS OF {text}, which is {of_type}",
            f"a TIMESTAMP: CAST({text} AS TIMESTAMP)",
        )
    join.as_of = node


def _is_plain(draft: ViewDraft, node: exp.Expr, place: str) -> bool:
    """Whether it is about one event and rows found for it."""
    for part in node.walk():
        call = read_call(part)
        if call is not None:
            draft.fault(part, f"{call.name}() in {place}", _OF_ONE_EVENT)
            return False
        if isinstance(part, exp.Window) or is_window_key(part):
            word = "OVER (…)" if isinstance(part, exp.Window) else f"{function_name(part)}()"
            draft.fault(part, f"{word} in {place}", _OF_ONE_EVENT)
            return False
    return True


def _is_key(draft: ViewDraft, join: JoinDraft, node: exp.Expr) -> bool:
    """Whether it is `column of the key = what it is looked up by`; that is noted then."""
    if not isinstance(node, exp.EQ):
        return False
    for side, other in ((node.this, node.expression), (node.expression, node.this)):
        while isinstance(side, exp.Paren):
            side = side.this
        name = side.meta.get(_OWN) if isinstance(side, exp.Column) else None
        if name not in join.known.table.key or name in join.keys:
            continue
        if any(part.meta.get(_OWN) for part in other.find_all(exp.Column)):
            continue
        while isinstance(other, exp.Paren):
            other = other.this
        text = canonical(other)
        resolve_in(draft, other)
        column = join.known.column(str(name))
        assert column is not None
        join.keys[column.name] = _of_type(draft, join, other, column, text)
        return True
    return False


def _of_type(
    draft: ViewDraft, join: JoinDraft, node: exp.Expr, column: Column, text: str
) -> exp.Expr:
    """What it is looked up by, with the key's own type. Where only Spark knows the type, Spark is
    asked whether it is that one. `text` is what was written."""
    of_type = known_type(node, draft.source)
    if of_type is None or of_type == column.type:
        return node
    key = f"{join.alias}.{column.name}"
    if of_type.name in _ROUNDED:
        draft.fault(
            node,
            f"{key} = {text}: {text} is {of_type}, which is rounded",
            f"send it as {column.type}",
        )
    elif not holds(column.type, of_type):
        draft.fault(
            node,
            f"{key} = {text}: {text} is {of_type}, and {key} is {column.type}, which does not hold "
            "every value of it",
            f"{key} = CAST({text} AS {column.type})",
        )
    made = exp.Cast(this=node.copy(), to=exp.DataType.build(str(column.type), dialect="spark"))
    keep_place(made, node)
    return made


def _named_own(node: exp.Expr, join: JoinDraft) -> exp.Expr:
    if not isinstance(node, exp.Column) or _OWN not in node.meta:
        return node
    assert join.lookup is not None
    name = join.lookup.column(str(node.meta[_OWN]))
    parts = [part for part in node.parts if isinstance(part, exp.Identifier)]
    return _column([name, *(part.name for part in parts[1:])], node)


def _looked_up(
    draft: ViewDraft,
    root: exp.Expr,
    scope: Sequence[JoinDraft],
    left: frozenset[str],
    own: JoinDraft | None = None,
) -> exp.Expr:
    """The expression with every column of a table in scope as a looked-up column, those of `own`
    marked. Unqualified names in `left`, the window's and those of outputs, stay as they are, but
    for those under an aggregate."""
    name_units(root)

    def replaced(node: exp.Expr, left: frozenset[str]) -> exp.Expr:
        if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
            return _looked_up_column(draft, node, scope, left, own)
        inner = frozenset[str]() if read_call(node) is not None else left
        for child in list(node.iter_expressions()):
            made = replaced(child, inner)
            if made is not child:
                child.replace(made)
        return node

    return replaced(root, left)


def _looked_up_column(
    draft: ViewDraft,
    node: exp.Column,
    scope: Sequence[JoinDraft],
    left: frozenset[str],
    own: JoinDraft | None,
) -> exp.Expr:
    names = [part.name for part in node.parts if isinstance(part, exp.Identifier)]
    first, is_event = names[0].lower(), draft.own_source.column(names[0]) is not None
    if first.startswith(LOOKUP):
        draft.fault(node, f"column {names[0]} does not exist", "name a column of FROM")
        return node
    join = next((join for join in draft.joins if join.alias.lower() == first), None)
    if join is not None and len(names) > 1:
        if join not in scope:
            draft.fault(node, f"{join.alias} is joined after this", "join it before")
        elif (column := join.known.column(names[1])) is not None:
            return _row_column(join, column.name, names[2:], node, own)
        else:
            table = join.known
            hint = closest(names[1], [c.name for c in table.columns])
            draft.fault(
                node,
                f"column {names[1]} does not exist in table {table.view.name}",
                hint or f"columns are {', '.join(c.name for c in table.columns)}",
            )
        return node
    is_qualified = first in (draft.alias.lower(), draft.own_source.name.lower())
    is_left = first in left and (len(names) == 1 or first in USAGE)
    if (len(names) > 1 and is_qualified and not is_event) or is_left:
        return node
    having = [join for join in scope if join.known.column(names[0]) is not None]
    if len(having) + is_event > 1:
        owners = [*([draft.alias] if is_event else []), *(join.alias for join in having)]
        written = [f"{owner}.{names[0]}" for owner in owners]
        draft.fault(
            node,
            f"{names[0]} may be {' or '.join(written)}",
            f"say which one: {' or '.join(written)}",
        )
    elif having:
        column = having[0].known.column(names[0])
        assert column is not None
        return _row_column(having[0], column.name, names[1:], node, own)
    return node


def _row_column(
    join: JoinDraft, name: str, fields: list[str], node: exp.Column, own: JoinDraft | None
) -> exp.Expr:
    if join is own:
        made = _column([name, *fields], node)
        made.meta[_OWN] = name
        return made
    assert join.lookup is not None
    column = _column([join.lookup.column(name), *fields], node)
    made = column
    if join.is_outer and join.condition is not None:
        made = exp.Case(ifs=[exp.If(this=join.condition.copy(), true=column)])
        keep_place(made, node)
    made.meta[WRITTEN] = ".".join([join.alias, name, *fields])
    return made


def _column(names: list[str], node: exp.Column) -> exp.Expr:
    parts = [identifier(name) for name in reversed(names)]
    made = exp.Column(**dict(zip(("this", "table", "db", "catalog"), parts, strict=False)))
    keep_place(made, node)
    return made
