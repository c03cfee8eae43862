"""A store of format 1, which is read once: what cannot be found again in the log is carried over.

Views are filled again from the log; with that, late events are set aside or dropped again, dead
letters are found again, and duplicates are judged again. What the log does not hold is the
generation, the number of the last tick, what operators decided about late events, and which events
were applied after they had been set aside. Dead letters are given too, for those whose events the
log no longer holds.

The old file stays beside the new one as NAME.format1, until somebody deletes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from headrace.model.errors import StoreError
from headrace.model.settings import StoreSettings
from headrace.store.contract import StoredDecision, StoreDeadLetter, ViewStatus
from headrace.store.duckdb.connection import connect

__all__ = ["OldDecision", "OldReplay", "OldStore", "OldView", "carry_over", "check_reach"]

SUFFIX = ".format1"


@dataclass(frozen=True)
class OldView:
    name: str
    stream: str
    fingerprint: str
    status: ViewStatus
    start_offsets: Mapping[int, int]
    next_offsets: Mapping[int, int]


@dataclass(frozen=True)
class OldDecision:
    decision: StoredDecision
    decided_at_microseconds: int


@dataclass(frozen=True)
class OldReplay:
    """An event that was applied to the view after it had been set aside; `come` is the offset that
    the view had come to in the partition by then. It is to be applied at the same place again."""

    stream: str
    view: str
    partition: int
    offset: int
    come: int


@dataclass(frozen=True)
class OldStore:
    generation: int
    last_tick: int
    views: tuple[OldView, ...]
    decisions: tuple[OldDecision, ...]
    replays: tuple[OldReplay, ...]
    dead_letters: tuple[tuple[int, StoreDeadLetter], ...]  # each with its tick


def carry_over(
    file: Path,
    settings: StoreSettings,
    check: Callable[[OldStore], None],
    write: Callable[[OldStore, Path], None],
) -> bool:
    """Make a store of today's format of the one of format 1; False if there is none. To be called
    where `file` is missing or cannot be opened as it is.

    1. What the old store holds is read: from `file`, or where that is missing from NAME.format1.
    2. `check` refuses by raising, and all is as it was. It is not asked about NAME.format1: who
       gave the file that name has been told what is lost, or crashed after step 4.
    3. `write` makes the new store, closed and durable, in a file beside.
    4. The old file is named NAME.format1, and the new one NAME.
    """
    aside, new = _beside(file, SUFFIX), _beside(file, ".new")
    if not file.exists() and not aside.exists():
        return False
    is_told = not file.exists()
    old = _read(aside if is_told else file, settings)
    if old is None:
        return False
    if not is_told:
        check(old)
    for left in (new, _beside(new, ".wal")):
        left.unlink(missing_ok=True)
    write(old, new)
    if not is_told:
        file.replace(aside)
    new.replace(file)
    return True


def check_reach(
    file: Path, old: OldStore, oldest: Mapping[str, Sequence[int]], views: Collection[str]
) -> None:
    """Raises StoreError where the log, which begins at the `oldest` offsets by stream, no longer
    reaches the start of one of these views: filled again, it would lack what it has now."""
    missing = []
    for view in old.views:
        if view.name not in views:
            continue
        for partition, first in enumerate(oldest.get(view.stream, ())):
            start = view.start_offsets.get(partition, 0)
            if start < first:
                missing.append(
                    f"view {view.name} holds events of stream {view.stream} from offset {start} of"
                    f" partition {partition} on, and the log begins at {first}"
                )
    if missing:
        raise StoreError(
            f"the store {file} is of an older format, and its views cannot be filled again whole:"
            f" {'; '.join(missing)}",
            hint=f"to let what is missing go, rename it: mv {file} {_beside(file, SUFFIX)}; "
            "the views then begin where the log does",
        )


def _beside(file: Path, suffix: str) -> Path:
    return file.with_name(file.name + suffix)


def _read(file: Path, settings: StoreSettings) -> OldStore | None:
    """None for a store of another format. Ticks that a crash left in the write-ahead log are folded
    in, so that the file is whole by itself."""
    connection = connect(file, settings)
    try:
        found = connection.execute(
            "SELECT 1 FROM duckdb_tables() WHERE schema_name = '_headrace' AND table_name ="
            " 'numbers'"
        ).fetchall()
        numbers = (
            dict(connection.execute("SELECT name, value FROM _headrace.numbers").fetchall())
            if found
            else {}
        )
        if numbers.get("format") != 1:
            return None
        connection.execute("CHECKPOINT")
        return OldStore(
            int(numbers.get("generation", 0)),
            _last_tick(connection),
            _views(connection),
            _decisions(connection),
            _replays(connection),
            _dead_letters(connection),
        )
    except duckdb.Error as error:
        raise StoreError(f"the store {file} of format 1 cannot be read: {error}") from error
    finally:
        connection.close()


def _last_tick(connection: duckdb.DuckDBPyConnection) -> int:
    ((tick,),) = connection.execute(
        "SELECT coalesce(max(tick), 0) FROM _headrace.ledger"
    ).fetchall()
    return int(tick)


def _views(connection: duckdb.DuckDBPyConnection) -> tuple[OldView, ...]:
    rows = connection.execute(
        "SELECT view, stream, fingerprint, state, detail, start_offsets, (SELECT max_by(offsets,"
        " tick) FROM _headrace.progress p WHERE p.number = v.number) FROM _headrace.views v"
        " ORDER BY number"
    ).fetchall()
    views = []
    for name, stream, fingerprint, state, detail, starts, reached in rows:
        start = _offsets(starts)
        come = {**start, **_offsets(reached or "{}")}
        views.append(OldView(name, stream, fingerprint, ViewStatus(state, detail), start, come))
    return tuple(views)


def _offsets(text: str) -> dict[int, int]:
    return {int(partition): offset for partition, offset in json.loads(text).items()}


def _decisions(connection: duckdb.DuckDBPyConnection) -> tuple[OldDecision, ...]:
    rows = connection.execute(
        "SELECT stream, partition, position, decision, epoch_us(decided_at)"
        " FROM _headrace.decisions ORDER BY ALL"
    ).fetchall()
    return tuple(OldDecision(StoredDecision(*row[:4]), row[4]) for row in rows)


def _replays(connection: duckdb.DuckDBPyConnection) -> tuple[OldReplay, ...]:
    """Those of views that had been rebuilt before, and of those that are rebuilt now."""
    streams = connection.execute("SELECT number, stream FROM _headrace.late_streams").fetchall()
    rows = connection.execute(
        "SELECT stream, view, partition, position, come FROM _headrace.replays"
    ).fetchall()
    found = set(rows)
    known = {row[:4] for row in found}
    for number, stream in streams:
        rows = connection.execute(
            "SELECT DISTINCT ?, view, _partition, _offset, _applied_at_offset"
            f" FROM _headrace.sided_{int(number)} WHERE _applied_in_tick IS NOT NULL",
            [stream],
        ).fetchall()
        found |= {row for row in rows if row[:4] not in known}
    return tuple(OldReplay(*row) for row in sorted(found))


def _dead_letters(
    connection: duckdb.DuckDBPyConnection,
) -> tuple[tuple[int, StoreDeadLetter], ...]:
    rows = connection.execute(
        "SELECT d.tick, v.view, d.stream, d.partition, d.position, d.reason, d.raw"
        " FROM _headrace.dead_letters d JOIN _headrace.views v USING (number)"
        " ORDER BY d.tick, v.view, d.partition, d.position"
    ).fetchall()
    return tuple((row[0], StoreDeadLetter(*row[1:])) for row in rows)
