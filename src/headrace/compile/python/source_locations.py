"""What a Python definition says and where: who collects it, and how its texts are read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from sqlglot import expressions as exp

from headrace.compile.faults import Faults, place_all
from headrace.compile.sql.dialect import parse_expression
from headrace.compile.sql.intervals import IntervalError, parse_interval
from headrace.compile.sql.statements import Statements
from headrace.model.errors import DefinitionError, Location

__all__ = [
    "Collector",
    "collector_in_force",
    "here_said",
    "note_fault",
    "read_expression",
    "read_expressions",
    "read_interval",
]


@dataclass
class Collector:
    file: Path
    shown: str
    statements: Statements
    faults: Faults


collector_in_force: ContextVar[Collector | None] = ContextVar("headrace_collector", default=None)


def here_said() -> Location:
    """The line of the definition file, or else of the caller, that called into this package."""
    frame = sys._getframe(1)
    folder = str(Path(__file__).parent)
    while frame.f_back is not None and str(Path(frame.f_code.co_filename).parent) == folder:
        frame = frame.f_back
    collector = collector_in_force.get()
    name = frame.f_code.co_filename
    if collector is not None and name == str(collector.file):
        name = collector.shown
    return Location(name, frame.f_lineno, 1)


def note_fault(message: str, hint: str, location: Location) -> None:
    """Noted where files are being loaded; raised at once elsewhere."""
    collector = collector_in_force.get()
    if collector is None:
        raise DefinitionError(message, hint=hint, location=location)
    collector.faults.add(message, hint, location)


def read_expression(text: str, location: Location) -> exp.Expr | None:
    try:
        node = parse_expression(text)
    except DefinitionError as error:
        note_fault(f"in {text!r}: {error.message}", "write one Spark SQL expression", location)
        return None
    place_all(node, location)
    return node


def read_expressions(texts: Sequence[str], location: Location) -> list[exp.Expr] | None:
    """None if one of them cannot be read."""
    nodes = [read_expression(text, location) for text in texts]
    read = [node for node in nodes if node is not None]
    return read if len(read) == len(nodes) else None


def read_interval(text: str, what: str, location: Location) -> int:
    try:
        length = parse_interval(text)
    except IntervalError as error:
        note_fault(f"{what}: {error}", "write it as '5 seconds'", location)
        return 1  # any length that is no fault in itself
    if length < 0:
        note_fault(f"{what}: {text!r} is negative", "a length of time from 0 up", location)
    return length
