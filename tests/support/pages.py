"""Pages of the documents as blocks: what is fenced, and tables, with the sentences before them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Block", "cells", "sections"]

DOCS = Path(__file__).parents[2] / "docs"
PIECE = re.compile(r"^```.*?^```$|^\S.*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block or a table, with the paragraph that introduces it."""

    kind: str
    text: str
    introduction: str


def sections(page: str) -> dict[str, list[Block]]:
    """The blocks of every section that has definitions, by its heading."""
    found = {}
    text = (DOCS / page).read_text(encoding="utf-8")
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        blocks = list(_blocks(body))
        if any(block.kind == "sql" for block in blocks):
            found[heading] = blocks
    return found


def _blocks(text: str) -> Iterator[Block]:
    paragraph = ""
    for piece in PIECE.findall(text):
        fence = re.fullmatch(r"```(\w+)\n(.*)\n```", piece, re.DOTALL)
        if fence is not None:
            yield Block(fence[1], fence[2], paragraph)
        elif piece.startswith("|"):
            yield Block("table", piece, paragraph)
        else:
            paragraph = " ".join(piece.split())


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|\n").split("|")]
