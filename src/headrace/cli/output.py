"""What verbs print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["cell", "print_json", "print_table", "say"]

SHOWN_CHARACTERS_MAX = 200


def say(text: str) -> None:
    """A line about progress: to stderr, so that stdout holds results only."""
    print(text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None)
    sys.stdout.write("\n")
    sys.stdout.flush()


def cell(value: Any) -> str:
    """A value as people read it, on one line and cut at a stated length."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping | list):
        value = json.dumps(value, ensure_ascii=False)
    text = f"{value:,}" if isinstance(value, int) else str(value)
    text = text.replace("\n", " ")
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[: SHOWN_CHARACTERS_MAX - 1] + "…"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """Numbers to the right, text to the left; a pipe gets the same table without colours."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    listed = [list(row) for row in rows]
    table = Table(title=title or None, title_justify="left", header_style="bold")
    for index, name in enumerate(columns):
        values = [row[index] for row in listed if row[index] is not None]
        numeric = bool(values) and all(_is_number(value) for value in values)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in listed:
        table.add_row(*(Text(cell(value)) for value in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(200, console.width))
    console.print(table)


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return value.replace(".", "", 1).lstrip("-").isdigit()
    return isinstance(value, int | float) and not isinstance(value, bool)
