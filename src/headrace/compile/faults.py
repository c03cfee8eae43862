"""Collecting every fault of a project, each at its place in the user's files."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property

from sqlglot import expressions as exp

from headrace.model.errors import DefinitionError, Location

__all__ = ["Faults", "SourceText", "closest", "location_of", "place_all"]

_AT = "headrace_location"


@dataclass(frozen=True)
class SourceText:
    """A definition file. Offsets of tokens become lines and columns, both from 1."""

    file: str
    text: str

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def location(self, offset: int) -> Location:
        line = bisect_right(self._line_starts, max(offset, 0))
        return Location(self.file, line, max(offset, 0) - self._line_starts[line - 1] + 1)

    def mark(self, node: exp.Expr) -> None:
        """Note on every node below where it was written. Nodes without a token of their own get
        the place of their first descendant that has one."""
        for part in node.walk():
            start = part.meta.get("start")
            if start is not None:
                part.meta[_AT] = self.location(start)


@dataclass
class Faults:
    """Faults found so far; one message at one place counts once."""

    errors: list[DefinitionError] = field(default_factory=list)
    _seen: set[tuple[str, Location | None]] = field(default_factory=set)

    def add(self, message: str, hint: str, location: Location | None) -> None:
        if (message, location) not in self._seen:
            self._seen.add((message, location))
            self.errors.append(DefinitionError(message, hint=hint, location=location))


def place_all(node: exp.Expr, location: Location) -> None:
    """Every node of an expression written in Python is at the line that called."""
    for part in node.walk():
        part.meta[_AT] = location


def location_of(node: exp.Expr, default: Location) -> Location:
    """Where the leftmost marked part of the node stands, or else of what it is part of."""
    above: exp.Expr | None = node
    while above is not None:
        own = above.meta.get(_AT)
        if isinstance(own, Location):
            return own
        found = [at for part in above.walk() if isinstance(at := part.meta.get(_AT), Location)]
        if found:
            return min(found)
        above = above.parent
    return default


def closest(word: str, known: Iterable[str]) -> str:
    """`did you mean X?` or nothing."""
    by_lower = {name.lower(): name for name in known}
    matches = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"did you mean {by_lower[matches[0]]}?" if matches else ""
