"""Reading our own statements token by token, with the place of every word."""

from __future__ import annotations

import re
from typing import NamedTuple

from sqlglot.tokenizer_core import Token, TokenType

from headrace.compile.faults import SourceText
from headrace.model.errors import DefinitionError, Location

__all__ = ["Reader"]


class _Word(NamedTuple):
    text: str
    token_type: TokenType
    start: int
    end: int
    token: int  # which of the statement's tokens it came from


class Reader:
    """A cursor over the words of one statement, compared without regard to case.

    The tokenizer takes some pairs of words, such as PARTITION BY, as one token; here they are two.
    """

    def __init__(self, tokens: list[Token], source: SourceText) -> None:
        self.source = source
        self.position = 0
        self._tokens = tokens
        self.tokens = [word for i, token in enumerate(tokens) for word in _words(token, i, source)]

    def peek(self) -> str:
        """The next word as written; `the end` after the last."""
        if self.position < len(self.tokens):
            return self.tokens[self.position].text
        return "the end"

    def at_end(self) -> bool:
        return self.position >= len(self.tokens)

    def location(self) -> Location:
        if self.position < len(self.tokens):
            return self.source.location(self.tokens[self.position].start)
        return self.source.location(self.tokens[-1].end + 1)

    def error(self, message: str, hint: str) -> DefinitionError:
        return DefinitionError(message, hint=hint, location=self.location())

    def take(self, *words: str) -> bool:
        """Go past these words if all of them come next."""
        if not self._is_next(words):
            return False
        self.position += len(words)
        return True

    def _is_next(self, words: tuple[str, ...]) -> bool:
        ahead = self.tokens[self.position : self.position + len(words)]
        if [token.text.upper() for token in ahead] != list(words):
            return False
        quoted = (TokenType.IDENTIFIER, TokenType.STRING)
        return not any(token.token_type in quoted for token in ahead)

    def expect(self, word: str, hint: str) -> None:
        if not self.take(word):
            raise self.error(f"expected {word}, not {self.peek()}", hint)

    def name(self, what: str) -> tuple[str, Location]:
        """A name, plain or in backquotes, and its place."""
        location = self.location()
        token = None if self.at_end() else self.tokens[self.position]
        if token is None or not (
            token.token_type == TokenType.IDENTIFIER or token.text.replace("_", "a").isalnum()
        ):
            raise self.error(f"expected {what}, not {self.peek()}", "letters, digits and _")
        if token.token_type in (TokenType.STRING, TokenType.NUMBER):
            raise self.error(f"expected {what}, not {self.peek()}", "letters, digits and _")
        self.position += 1
        return token.text, location

    def number(self, what: str) -> int:
        token = None if self.at_end() else self.tokens[self.position]
        if token is None or token.token_type != TokenType.NUMBER or not token.text.isdigit():
            raise self.error(f"expected {what}, not {self.peek()}", "a whole number")
        self.position += 1
        return int(token.text)

    def text_until(self, *words: str) -> str:
        """The text as written up to one of the words on the outermost level, which is left."""
        depth, first = 0, self.position
        while not self.at_end():
            text = self.tokens[self.position].text
            if depth == 0 and text.upper() in words:
                break
            depth += text.count("(") + text.count("<") - text.count(")") - text.count(">")
            self.position += 1
        if first == self.position:
            return ""
        start, end = self.tokens[first].start, self.tokens[self.position - 1].end
        return self.source.text[start : end + 1]

    def tokens_until(self, *phrases: tuple[str, ...]) -> list[Token]:
        """The tokens up to one of the phrases on the outermost level, which is left, or to the
        end."""
        depth, first = 0, self.position
        while not self.at_end() and not (depth == 0 and any(self._is_next(p) for p in phrases)):
            text = self.tokens[self.position].text
            depth += (text == "(") - (text == ")")
            self.position += 1
        if first == self.position:
            return []
        return self._tokens[self.tokens[first].token : self.tokens[self.position - 1].token + 1]

    def rest(self) -> list[Token]:
        """The tokens not yet read."""
        return [] if self.at_end() else self._tokens[self.tokens[self.position].token :]


def _words(token: Token, number: int, source: SourceText) -> list[_Word]:
    kind = token.token_type
    if kind in (TokenType.STRING, TokenType.IDENTIFIER) or " " not in token.text.strip():
        return [_Word(token.text, kind, token.start, token.end, number)]
    written = source.text[token.start : token.end + 1]
    return [
        _Word(part.group(), kind, token.start + part.start(), token.start + part.end() - 1, number)
        for part in re.finditer(r"\S+", written)
    ]
