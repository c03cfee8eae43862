"""What a join says beyond Spark SQL: FOR SYSTEM_TIME AS OF, WAIT UP TO, ELSE DEAD LETTER.

These are taken out of the query's tokens before sqlglot reads it, and noted at the joined table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import expressions as exp
from sqlglot.tokenizer_core import Token, TokenType

from headrace.compile.faults import SourceText
from headrace.compile.sql.dialect import parse_expression_tokens
from headrace.compile.sql.intervals import IntervalError, parse_interval
from headrace.compile.streams.draft import Within
from headrace.model.errors import DefinitionError, Location

__all__ = ["JoinClauses", "clauses_of", "note_clauses", "place_clauses", "take_join_clauses"]

_NOTED = "headrace_join_clauses"
_AS_OF = ["FOR", "SYSTEM_TIME", "AS", "OF"]
_WAIT = ["WAIT", "UP", "TO"]
_DEAD_LETTER = ["ELSE", "DEAD", "LETTER"]
_BEFORE_JOIN = ("JOIN", "LEFT", "RIGHT", "FULL", "INNER", "CROSS", "NATURAL", "SEMI", "ANTI")
_AFTER_FROM = ("WHERE", "GROUP", "GROUP BY", "HAVING", "ORDER", "ORDER BY", "LIMIT", "UNION", ",")
_ENDS = (*_BEFORE_JOIN, *_AFTER_FROM)
_ON = "JOIN prices FOR SYSTEM_TIME AS OF c.at AS p ON p.model = c.model"


@dataclass(frozen=True)
class JoinClauses:
    """Of one join. None means: not said."""

    as_of: exp.Expr | None = None
    as_of_location: Location | None = None
    wait: Within | None = None
    dead_letter: Location | None = None


def clauses_of(table: exp.Expr) -> JoinClauses:
    """What was said at the joined table."""
    found = table.meta.get(_NOTED)
    return found if isinstance(found, JoinClauses) else JoinClauses()


def note_clauses(table: exp.Expr, clauses: JoinClauses) -> None:
    table.meta[_NOTED] = clauses


def place_clauses(query: exp.Expr, clauses: Mapping[int, JoinClauses]) -> None:
    """Notes what `take_join_clauses` found at the tables of the query."""
    for table in query.find_all(exp.Table):
        found = clauses.get(table.parts[0].meta.get("start", -1))
        if found is not None:
            note_clauses(table, found)


def take_join_clauses(
    tokens: Sequence[Token], source: SourceText
) -> tuple[list[Token], dict[int, JoinClauses]]:
    """The tokens without these clauses, and the clauses by where their table's name stands."""
    words = [
        "" if token.token_type in (TokenType.IDENTIFIER, TokenType.STRING) else token.text.upper()
        for token in tokens
    ]
    left: list[Token] = []
    found: dict[int, JoinClauses] = {}
    table: Token | None = None
    depth = place = 0
    while place < len(tokens):
        depth += (words[place] == "(") - (words[place] == ")")
        taken = 0
        if depth == 0:
            if words[place] == "JOIN" and place + 1 < len(tokens):
                table = tokens[place + 1]
            for clause, read in _CLAUSES:
                if words[place : place + len(clause)] == clause:
                    taken = len(clause) + _length(words, place + len(clause), clause)
                    if table is None:
                        raise _fault(f"{' '.join(clause)} without a JOIN", tokens[place], source)
                    said = found.get(table.start, JoinClauses())
                    clause_tokens = list(tokens[place : place + taken])
                    said, kept = read(said, clause_tokens, len(clause), source)
                    found[table.start] = said
                    left += kept
                    break
        if not taken:
            left.append(tokens[place])
        place += taken or 1
    return left, found


def _length(words: Sequence[str], start: int, clause: Sequence[str]) -> int:
    """How many words belong to the clause, those that begin it aside."""
    if clause is _DEAD_LETTER:
        return 0
    ends = ("ON", "USING", *_ENDS) if clause is _AS_OF else ("ELSE", "WAIT", "FOR", *_ENDS)
    depth = 0
    for place in range(start, len(words)):
        if depth == 0 and words[place] in (*ends, ")"):
            return place - start
        depth += (words[place] == "(") - (words[place] == ")")
    return len(words) - start


def _read_as_of(
    said: JoinClauses, tokens: list[Token], begins: int, source: SourceText
) -> tuple[JoinClauses, list[Token]]:
    """The alias behind the expression stays."""
    if said.as_of is not None:
        raise _fault("FOR SYSTEM_TIME is said twice", tokens[0], source)
    rest = tokens[begins:]
    if not rest:
        raise _fault("FOR SYSTEM_TIME AS OF without a time", tokens[0], source)
    node = parse_expression_tokens(rest, source, _ON)
    kept: list[Token] = []
    if isinstance(node, exp.Alias):
        kept = rest[-2:] if rest[-2].token_type == TokenType.ALIAS else rest[-1:]
        node = node.this
    location = source.location(tokens[0].start)
    return replace(said, as_of=node, as_of_location=location), kept


def _read_wait(
    said: JoinClauses, tokens: list[Token], begins: int, source: SourceText
) -> tuple[JoinClauses, list[Token]]:
    if said.wait is not None:
        raise _fault("WAIT is said twice", tokens[0], source)
    text = " ".join(token.text for token in tokens[begins:])
    try:
        length = parse_interval(text)
    except IntervalError as error:
        raise DefinitionError(
            f"WAIT UP TO: {error}",
            hint="behind ON: JOIN … ON … WAIT UP TO INTERVAL 10 MINUTES",
            location=source.location(tokens[0].start),
        ) from error
    return replace(said, wait=(length, source.location(tokens[0].start))), []


def _read_dead_letter(
    said: JoinClauses, tokens: list[Token], begins: int, source: SourceText
) -> tuple[JoinClauses, list[Token]]:
    if said.dead_letter is not None:
        raise _fault("ELSE DEAD LETTER is said twice", tokens[0], source)
    return replace(said, dead_letter=source.location(tokens[0].start)), []


_CLAUSES = ((_AS_OF, _read_as_of), (_WAIT, _read_wait), (_DEAD_LETTER, _read_dead_letter))


def _fault(message: str, token: Token, source: SourceText) -> DefinitionError:
    return DefinitionError(
        message, hint=f"say it once, in a join: {_ON}", location=source.location(token.start)
    )
