"""CREATE TABLE as it is written: from words to a TableDraft."""

from __future__ import annotations

from headrace.compile.faults import Faults, closest
from headrace.compile.sql.dialect import parse_expression_tokens
from headrace.compile.sql.parts import (
    expect_words,
    read_clauses,
    read_column,
    read_items,
    read_names,
    read_partitions,
    read_within,
)
from headrace.compile.sql.reader import Reader
from headrace.compile.tables.draft import TableDraft
from headrace.model.errors import Location

__all__ = ["read_table"]

_BEGINS = (
    "CREATE TABLE name (column TYPE, …, PRIMARY KEY (column)), or CREATE TABLE name FROM stream"
)
_POSTED = ("SEQUENCE", "TOMBSTONES", "WITH", "INTO")
_FROM_STREAM = ("KEY", "SEQUENCE", "APPLY", "COLUMNS", "TOMBSTONES", "WITH")
_SPELLED = {
    "SEQUENCE": "SEQUENCE BY column",
    "TOMBSTONES": "TOMBSTONES FOR INTERVAL 7 DAYS",
    "WITH": "WITH HISTORY [VALID FROM column] [FOR INTERVAL 400 DAYS]",
    "INTO": "INTO 4 PARTITIONS",
    "KEY": "KEY (column, …)",
    "APPLY": "APPLY AS DELETE WHEN condition",
    "COLUMNS": "COLUMNS * EXCEPT (column, …)",
}
_OF_STREAMS = "leave it out: a table keeps the newest row of each key, whenever it came"
_INSTEAD = {
    "KEY": "name the key among the columns: PRIMARY KEY (column, …)",
    "PRIMARY": "PRIMARY KEY (…) stands among the columns; FROM a stream it is KEY (…)",
    "APPLY": "leave it out: who posts a change says whether it deletes",
    "COLUMNS": "list the columns in parentheses behind the table's name",
    "INTO": "leave it out: the changes are in the partitions of the stream",
    "PARTITION": "leave it out: changes are partitioned by the key",
    "RETAIN": "leave it out: what the table no longer needs goes by itself",
    "AS": "CREATE MATERIALIZED VIEW name AS SELECT … keeps a query up to date",
    "WHERE": "a row that APPLY AS DELETE WHEN meets deletes its key; all others are kept",
    "USING": "leave it out: Headrace stores the table",
    **dict.fromkeys(("WATERMARK", "EVENT", "LATE", "FUTURE", "IDLE", "DEDUPLICATE"), _OF_STREAMS),
}
_CONSTRAINTS = (("CONSTRAINT",), ("FOREIGN", "KEY"), ("UNIQUE", "("), ("CHECK", "("))
_CONDITION = "APPLY AS DELETE WHEN op = 'd'"
# What may come after a condition, in so many words that no expression has them.
_AFTER_CONDITION = (
    *(("KEY", "("), ("SEQUENCE", "BY"), ("APPLY", "AS"), ("COLUMNS", "*", "EXCEPT")),
    *(("TOMBSTONES", "FOR"), ("WITH", "HISTORY")),
)


def read_table(reader: Reader, faults: Faults) -> TableDraft:
    """The statement after CREATE TABLE. Raises DefinitionError where it cannot go on."""
    if reader.take("IF"):
        raise reader.error("IF NOT EXISTS has no meaning in a definition", "leave it out")
    name, location = reader.name("the table's name")
    draft = TableDraft(name, location, text=reader.source)
    if reader.take("FROM"):
        draft.source = reader.name("the stream with the changes")
        _read_clauses(reader, draft, _FROM_STREAM, "CREATE TABLE … FROM stream", faults)
        return draft
    if reader.peek().upper() == "AS":
        raise reader.error("a table is not made of a query", _INSTEAD["AS"])
    keys: list[Location] = []
    read_items(reader, _BEGINS, lambda: _read_item(reader, draft, keys))
    for place in keys[1:]:
        faults.add(
            f"table {name}: a second PRIMARY KEY",
            "name all its columns in one: PRIMARY KEY (column, column)",
            place,
        )
    _read_clauses(reader, draft, _POSTED, "CREATE TABLE", faults)
    return draft


def _read_item(reader: Reader, draft: TableDraft, keys: list[Location]) -> None:
    """A column, or the key; its place is added to `keys`."""
    place = reader.location()
    if reader.take("PRIMARY", "KEY"):
        keys.append(place)
        draft.key += read_names(reader, "PRIMARY KEY (column, …)")
        return
    for words in _CONSTRAINTS:
        if reader.take(*words):
            raise reader.error(
                f"table {draft.name}: {words[0]} is not known here",
                "the only constraints are NOT NULL and PRIMARY KEY (column, …), without a name",
            )
    column = read_column(reader, "table")
    place = reader.location()
    if reader.take("PRIMARY", "KEY"):
        keys.append(place)
        draft.key.append((column[0], column[3]))
        reader.take("NOT", "NULL")
    draft.columns.append(column)


def _read_clauses(
    reader: Reader, draft: TableDraft, known: tuple[str, ...], form: str, faults: Faults
) -> None:
    for word in read_clauses(reader, f"table {draft.name}", faults):
        if word not in known:
            spelled = ", ".join(_SPELLED[one] for one in known)
            raise reader.error(
                f"table {draft.name}: {reader.peek()} is not a clause of {form}",
                _INSTEAD.get(word) or closest(word, known) or f"clauses are {spelled}",
            )
        _read_clause(reader, draft, faults)


def _read_clause(reader: Reader, draft: TableDraft, faults: Faults) -> None:
    what = f"table {draft.name}"
    if reader.take("KEY"):
        draft.key = read_names(reader, _SPELLED["KEY"])
    elif reader.take("SEQUENCE"):
        expect_words(reader, "BY", hint=_SPELLED["SEQUENCE"])
        draft.sequence = reader.name("the column that orders changes")
    elif reader.take("APPLY"):
        expect_words(reader, "AS", "DELETE", "WHEN", hint=_CONDITION)
        tokens = reader.tokens_until(*_AFTER_CONDITION)
        if not tokens:
            raise reader.error(f"{what}: APPLY AS DELETE WHEN has no condition", _CONDITION)
        draft.delete_when = parse_expression_tokens(tokens, reader.source, _CONDITION)
    elif reader.take("COLUMNS"):
        expect_words(reader, "*", "EXCEPT", hint=_SPELLED["COLUMNS"])
        draft.left_out = read_names(reader, _SPELLED["COLUMNS"])
    elif reader.take("TOMBSTONES"):
        expect_words(reader, "FOR", hint=_SPELLED["TOMBSTONES"])
        draft.tombstones = read_within(reader, f"{what}: TOMBSTONES", faults)
    elif reader.take("WITH"):
        _read_history(reader, draft, faults)
    else:
        expect_words(reader, "INTO", hint=_SPELLED["INTO"])
        draft.partitions, draft.partitions_location = read_partitions(reader)


def _read_history(reader: Reader, draft: TableDraft, faults: Faults) -> None:
    hint = _SPELLED["WITH"]
    draft.history = reader.location()
    expect_words(reader, "HISTORY", hint=hint)
    if reader.take("VALID"):
        expect_words(reader, "FROM", hint=hint)
        draft.valid_from = reader.name("the column with the time from which a row is valid")
    if reader.take("FOR"):
        draft.history_for = read_within(reader, f"table {draft.name}: WITH HISTORY FOR", faults)
