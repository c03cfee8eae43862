"""SQL text → statements: CREATE STREAM and CREATE TABLE by our own parser, the query of a view by
sqlglot's.

Every fault of a file is found: a statement that cannot be read is skipped up to its semicolon.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import expressions as exp
from sqlglot.tokenizer_core import Token, TokenType

from headrace.compile.faults import Faults, SourceText
from headrace.compile.sql.dialect import parse_tokens, tokenize
from headrace.compile.sql.join_clauses import place_clauses, take_join_clauses
from headrace.compile.sql.reader import Reader
from headrace.compile.sql.stream_clauses import read_stream
from headrace.compile.sql.table_clauses import read_table
from headrace.compile.streams.draft import StreamDraft
from headrace.compile.tables.draft import TableDraft
from headrace.model.errors import DefinitionError, Location

__all__ = ["Statements", "ViewStatement", "read_statements"]

_DEFINITIONS = "CREATE STREAM …, CREATE TABLE … or CREATE MATERIALIZED VIEW … AS SELECT …"
_EMIT = ["EMIT", "ON", "WINDOW", "CLOSE"]
_AFTER_EMIT = (["ON"], ["CHANGES"], ["FINAL"], ["AFTER"], ["WITH"])


@dataclass(frozen=True)
class ViewStatement:
    name: str
    location: Location
    query: exp.Expr
    text: SourceText | None = None
    emits_on_close: Location | None = None  # where that is said


@dataclass
class Statements:
    """What the files of a project define, in the order written."""

    streams: list[StreamDraft] = field(default_factory=list)
    tables: list[TableDraft] = field(default_factory=list)
    views: list[ViewStatement] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)  # streams and tables, in lower case


def read_statements(source: SourceText, into: Statements, faults: Faults) -> None:
    """Appends to `into` what could be read and to `faults` what could not."""
    try:
        tokens = tokenize(source)
    except DefinitionError as error:
        faults.add(error.message, error.hint, error.location)
        return
    for statement in _split(tokens):
        try:
            _read_statement(statement, source, into, faults)
        except DefinitionError as error:
            faults.add(error.message, error.hint, error.location)
            create, kind, name, *_ = [*(token.text.lower() for token in statement), "", "", ""]
            if create == "create" and kind in ("stream", "table"):
                into.unreadable.add(name)


def _split(tokens: list[Token]) -> list[list[Token]]:
    statements: list[list[Token]] = [[]]
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            statements.append([])
        else:
            statements[-1].append(token)
    return [statement for statement in statements if statement]


def _read_statement(
    tokens: list[Token], source: SourceText, into: Statements, faults: Faults
) -> None:
    reader = Reader(tokens, source)
    first = reader.peek()
    if not reader.take("CREATE"):
        raise reader.error(
            f"a definition begins with CREATE, not {first}",
            _DEFINITIONS,
        )
    if reader.take("OR"):
        raise reader.error(
            "CREATE OR REPLACE is not a definition: files say what is, not what to change",
            "write CREATE, and run `headrace rebuild VIEW` after changing a view",
        )
    if reader.take("STREAM"):
        into.streams.append(read_stream(reader, faults))
    elif reader.take("TABLE"):
        into.tables.append(read_table(reader, faults))
    elif reader.take("MATERIALIZED"):
        into.views.append(_read_view(reader))
    elif reader.peek().upper() == "VIEW":
        raise reader.error(
            "a plain VIEW is not kept up to date", "write CREATE MATERIALIZED VIEW … AS SELECT …"
        )
    else:
        raise reader.error(
            f"CREATE {reader.peek()} is not known",
            _DEFINITIONS,
        )


def _read_view(reader: Reader) -> ViewStatement:
    reader.expect("VIEW", "CREATE MATERIALIZED VIEW name AS SELECT …")
    if reader.take("IF"):
        raise reader.error("IF NOT EXISTS has no meaning in a definition", "leave it out")
    name, location = reader.name("the view's name")
    if reader.peek() == "(":
        raise reader.error(
            "a view's columns are named in its SELECT list",
            "SELECT expression AS name instead of a list after the view's name",
        )
    reader.expect("AS", "CREATE MATERIALIZED VIEW name AS SELECT …")
    rest = reader.rest()
    if not rest:
        raise reader.error("the query is missing", "… AS SELECT … FROM stream …")
    rest, emits = _without_emit(rest, reader.source)
    rest, clauses = take_join_clauses(rest, reader.source)
    query = parse_tokens(rest, reader.source)
    place_clauses(query, clauses)
    return ViewStatement(name, location, query, reader.source, emits)


def _without_emit(tokens: list[Token], source: SourceText) -> tuple[list[Token], Location | None]:
    """The query's tokens, and where EMIT ON WINDOW CLOSE stands behind them."""
    words = [
        "" if token.token_type in (TokenType.IDENTIFIER, TokenType.STRING) else token.text.upper()
        for token in tokens
    ]
    for place in range(len(words) - 1, 0, -1):
        if words[place] == "EMIT" and words[place + 1 : place + 2] in _AFTER_EMIT:
            location = source.location(tokens[place].start)
            if words[place:] != _EMIT:
                raise DefinitionError(
                    "near 'EMIT': only EMIT ON WINDOW CLOSE is known",
                    hint="write EMIT ON WINDOW CLOSE at the end, or leave it out: every change is "
                    "published",
                    location=location,
                )
            return tokens[:place], location
    return tokens, None
