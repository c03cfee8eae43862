"""One load of files into a table, from the first row to the last delete.

  1. each file: find how far the log has it, read on from there, cast, send, one batch ahead;
  2. with `replace`: the keys of the table that no file has are deleted;
  3. the producers of the files are retired: from here on a load of the same files is a new one.

Whatever interrupts it, the same load goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from headrace.loading.bodies import Body, body_of
from headrace.loading.files import STDIN, Piece, read_pieces
from headrace.loading.lacking import delete_what_lacks
from headrace.loading.sender import Numbers, Sender, Tally, producer_of
from headrace.model.covers import COVERS_NOW
from headrace.model.definitions import Stream
from headrace.model.errors import RefusedError

__all__ = ["Loaded", "Progress", "Source", "begin", "load"]

Item = TypeVar("Item")
Progress = Callable[[int, int], None]  # bytes of all files read, rows durable
_TOO_LARGE = ("too-many-records", "body-too-large", "inflated-too-large")


@dataclass(frozen=True)
class Source:
    """`size` is None for what cannot be known before."""

    file: Path
    kind: str
    size: int | None


@dataclass
class Loaded:
    """`skipped` are rows that an interrupted load had stored before, `deleted` those that no file
    has."""

    sent: Tally = field(default_factory=Tally)
    skipped: int = 0
    deleted: int = 0


def load(
    sender: Sender,
    table: Stream,
    sources: Sequence[Source],
    begun: Sequence[Numbers],
    loaded: Loaded,
    progress: Progress,
    *,
    replaces: bool,
) -> None:
    """Loads the sources, each from where `begun` says. `loaded` tells what was done, also when it
    raises."""
    before = 0
    for source, numbers in zip(sources, begun, strict=True):
        loaded.skipped += numbers.next
        _load_file(sender, table, source, numbers, loaded, progress, before)
        before += source.size or 0
    if replaces:
        pieces = (piece for s in sources for piece in read_pieces(s.file, s.kind, table))
        bodies = (body_of(piece, table) for piece in pieces)
        loaded.deleted = delete_what_lacks(sender, table, bodies, loaded.sent.covers or COVERS_NOW)
    sender.finish([numbers.producer for numbers in begun])


def begin(sender: Sender, table: Stream, sources: Sequence[Source]) -> list[Numbers]:
    """Where each source goes on."""
    return [
        Numbers(producer_of(source.file, table.name), 0, 0)
        if source.file == STDIN
        else sender.numbers(producer_of(source.file, table.name))
        for source in sources
    ]


def _load_file(
    sender: Sender,
    table: Stream,
    source: Source,
    numbers: Numbers,
    loaded: Loaded,
    progress: Progress,
    bytes_before: int,
) -> None:
    pieces = _from(numbers.next, read_pieces(source.file, source.kind, table))
    for piece, body in _one_ahead((piece, body_of(piece, table)) for piece in pieces):
        _send(sender, table, piece, body, numbers, loaded.sent)
        numbers = replace(numbers, next=numbers.next + len(piece))
        progress(bytes_before + piece.read_bytes, loaded.sent.rows)


def _send(
    sender: Sender, table: Stream, piece: Piece, body: Body, numbers: Numbers, tally: Tally
) -> None:
    """In halves, where the gateway takes no request as large."""
    try:
        sender.send(body, numbers, tally)
    except RefusedError as error:
        if error.problem.get("code") not in _TOO_LARGE or len(piece) == 1:
            raise
        middle = len(piece) // 2
        for start, count in ((0, middle), (middle, len(piece) - middle)):
            part = piece.slice(start, count)
            there = replace(numbers, next=numbers.next + start)
            _send(sender, table, part, body_of(part, table), there, tally)


def _from(start: int, pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The rows from number `start` on."""
    at = 0
    for piece in pieces:
        skipped = min(max(start - at, 0), len(piece))
        at += len(piece)
        if skipped < len(piece):
            yield piece.slice(skipped, len(piece) - skipped)


def _one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The next item is made while this one is used."""
    with ThreadPoolExecutor(1, "headrace-load") as maker:
        upcoming = maker.submit(next, items, None)
        while (item := upcoming.result()) is not None:
            upcoming = maker.submit(next, items, None)
            yield item
