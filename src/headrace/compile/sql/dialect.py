"""Spark SQL as it is written: sqlglot's Spark dialect, with every function kept by its own name.

sqlglot knows many functions and rewrites some of them when it prints; here a function it does not
need special syntax for stays what the user wrote, so that Spark computes what the user meant.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, ClassVar

from sqlglot import expressions as exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.generator import Generator
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token

from headrace.compile.faults import SourceText
from headrace.model.errors import DefinitionError

__all__ = [
    "canonical",
    "identifier",
    "parse_expression",
    "parse_expression_tokens",
    "parse_tokens",
    "tokenize",
]

_SPECIAL_SYNTAX = ("CAST", "TRY_CAST", "EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "POSITION")
_A_VIEW = "a view is SELECT … FROM stream [WHERE …] [GROUP BY …] [HAVING …] in Spark SQL"
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class HeadraceSpark(Spark):
    class Tokenizer(Spark.Tokenizer):
        # Spark 4 reads 'it''s' as it's.
        STRING_ESCAPES = ["\\", "'"]  # noqa: RUF012
        # window is a function and a column here; the WINDOW clause is not in this version. Clocks
        # without parentheses are read as columns, which know their place, and then refused.
        KEYWORDS = {  # noqa: RUF012
            word: kind
            for word, kind in Spark.Tokenizer.KEYWORDS.items()
            if word != "WINDOW" and kind not in SparkParser.NO_PAREN_FUNCTIONS
        }

    class Parser(SparkParser):
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            **{name: SparkParser.FUNCTION_PARSERS[name] for name in _SPECIAL_SYNTAX},
            "OVERLAY": SparkParser.FUNCTION_PARSERS["OVERLAY"],
        }
        NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: parser
            for name, parser in SparkParser.NO_PAREN_FUNCTION_PARSERS.items()
            if name in ("CASE", "IF")
        }


_DIALECT = HeadraceSpark()
_GENERATOR_OPTIONS: dict[str, Any] = {
    "normalize_functions": "lower",
    "comments": False,
    "unsupported_level": None,
}


def tokenize(source: SourceText) -> list[Token]:
    """Raises DefinitionError where the text cannot even be cut into words."""
    try:
        return _DIALECT.tokenize(source.text)
    except TokenError as error:
        raise DefinitionError(
            "the text cannot be read: a quote or comment is not closed",
            hint="close it; text is written 'like this'",
            location=source.location(_first_open_quote(source.text, str(error.__cause__))),
        ) from error


def _first_open_quote(text: str, message: str) -> int:
    """sqlglot says `Missing ' from LINE:OFFSET`; nothing useful about a comment."""
    match = re.search(r"from \d+:(\d+)", message)
    return int(match.group(1)) if match is not None else max(text.rfind("/*"), 0)


def parse_tokens(tokens: list[Token], source: SourceText) -> exp.Expr:
    """One query out of the tokens of one statement. Raises DefinitionError at the first token
    that does not fit."""
    try:
        parsed = _DIALECT.parser().parse(tokens, source.text)
    except ParseError as error:
        raise _syntax_error(error, tokens, source) from error
    if len(parsed) != 1 or parsed[0] is None:
        raise DefinitionError(
            "a query is missing", hint="SELECT …", location=source.location(tokens[0].start)
        )
    return parsed[0]


def _syntax_error(
    error: ParseError, tokens: list[Token], source: SourceText, hint: str = _A_VIEW
) -> DefinitionError:
    first = error.errors[0] if error.errors else {}
    line, column = first.get("line"), first.get("col")
    token = next((t for t in tokens if t.line == line and t.col == column), tokens[-1])
    described = str(first.get("description") or "").lower()
    if described.startswith("required"):
        described = "an expression is missing"
    elif described.startswith("expecting"):
        described = f"expected {described.removeprefix('expecting').strip()}"
    else:
        described = "not expected here"
    if token.text.upper() == "CREATE":
        return DefinitionError(
            "near 'CREATE': the definition before it has no end",
            hint="write ; between two definitions",
            location=source.location(token.start),
        )
    return DefinitionError(
        f"near {token.text!r}: {described}",
        hint=hint,
        location=source.location(token.start),
    )


def parse_expression(text: str, source: SourceText | None = None) -> exp.Expr:
    """One expression. Raises DefinitionError if the text is anything else."""
    source = source or SourceText("<expression>", text)
    tokens = tokenize(source)
    if not tokens:
        raise DefinitionError("an expression is missing", location=source.location(0))
    return parse_expression_tokens(tokens, source)


def parse_expression_tokens(
    tokens: list[Token], source: SourceText, hint: str = _A_VIEW
) -> exp.Expr:
    """One expression out of some tokens of a text. Raises DefinitionError, with this hint, at the
    first token that does not fit."""
    try:
        parsed = _DIALECT.parser().parse_into(exp.Expr, tokens, source.text)
    except ParseError as error:
        raise _syntax_error(error, tokens, source, hint) from error
    if len(parsed) != 1 or parsed[0] is None:
        raise DefinitionError(
            "one expression is expected",
            hint="no semicolon",
            location=source.location(tokens[0].start),
        )
    return parsed[0]


@cache
def _generator() -> Generator:
    """One for all: printing an expression neither changes it nor leaves anything behind."""
    return _DIALECT.generator(**_GENERATOR_OPTIONS)


def canonical(node: exp.Expr) -> str:
    """The one spelling of an expression: equal meaning of text gives equal text."""
    return _generator().generate(node, copy=False)


@cache
def _words() -> frozenset[str]:
    """Every word that means something in SQL, those of ORDER BY and the like one by one."""
    return frozenset(word for key in HeadraceSpark.Tokenizer.KEYWORDS for word in key.split())


def identifier(name: str) -> exp.Identifier:
    """Quoted only where it must be, so that `Amount` and Amount are one text."""
    return exp.Identifier(this=name, quoted=not _PLAIN.match(name) or name.upper() in _words())
