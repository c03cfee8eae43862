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

__all__ = ["Faults", "SourceText", "closest", "keep_place", "location_of", "nearest", "place_all"]

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


def location_of(node: exp.Expr, default: Location, source: SourceText | None) -> Location:
    """Where the leftmost part of the node that knows its place stands, or else of what the node is
    part of. `source` is the file, for SQL: its nodes know the offset of their token."""
    above: exp.Expr | None = node
    while above is not None:
        own = _place(above, source)
        if own is not None:
            return own
        found = [at for part in above.walk() if (at := _place(part, source)) is not None]
        if found:
            return min(found)
        above = above.parent
    return default


def _place(node: exp.Expr, source: SourceText | None) -> Location | None:
    own = node.meta.get(_AT)
    if isinstance(own, Location):
        return own
    start = node.meta.get("start")
    return source.location(start) if source is not None and isinstance(start, int) else None


def keep_place(made: exp.Expr, original: exp.Expr) -> None:
    """What replaces a node stands where that stood, all of it."""
    for part in made.walk():
        part.meta.pop("start", None)
    for part in original.walk():
        for key in (_AT, "start"):
            if key in part.meta:
                made.meta[key] = part.meta[key]
                return


def closest(word: str, known: Iterable[str]) -> str:
    """`did you mean X?` or nothing."""
    found = nearest(word, known)
    return f"did you mean {found}?" if found else ""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Of the known words the one that was probably meant."""
    by_lower = {name.lower(): name for name in known}
    matches = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None
