"""Changes of a table, and a plain fold of them that knows nothing of ticks."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from store_cases import bound_view

from headrace.model.plan import BoundView, TablePlan

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
LASTING = 10  # microseconds that a tombstone counts
HISTORY = 25
KEYS = {
    "k0": "INT",
    "k1": "BIGINT",
    "k2": "STRING",
    "k3": "STRING",
    "k4": "BOOLEAN",
    "k5": "INT",
    "k6": "BIGINT",
    "k7": "TIMESTAMP",
    "k8": "TIMESTAMP",
}


def table_view(
    name: str = "customers", *, is_sequenced: bool = True, has_history: bool = False
) -> BoundView:
    """id (the key) and name."""
    table = TablePlan(
        key=("k2",),
        deletes="k4",
        sequence="k5" if is_sequenced else None,
        position="k6",
        received="k7",
        tombstones_microseconds=LASTING,
        keeps_history=has_history,
        valid_from="k8",
        history_microseconds=HISTORY if has_history else None,
    )
    finals = (("id", "STRING", '"k2"'), ("name", "STRING", '"k3"'))
    view = bound_view(name, keys=KEYS, partials=(), finals=finals)
    return replace(view, plan=replace(view.plan, is_rows=True, table=table))


@dataclass(frozen=True)
class Change:
    """`received` and `valid_from` are microseconds after START."""

    partition: int
    offset: int
    id: str | None
    name: str | None
    deletes: bool
    sequence: int | None
    position: int
    received: int
    valid_from: int | None = None

    @property
    def order(self) -> tuple[int, int, int]:
        return (self.position, self.partition, self.offset)

    @property
    def partial(self) -> tuple[Any, ...]:
        valid = None if self.valid_from is None else moment(self.valid_from)
        own = (self.partition, self.offset, self.id, self.name, self.deletes, self.sequence)
        return (*own, self.position, moment(self.received), valid, 1)


def moment(microseconds: int) -> dt.datetime:
    return START + dt.timedelta(microseconds=microseconds)


def microseconds(time: dt.datetime) -> int:
    return (time - START) // dt.timedelta(microseconds=1)


@dataclass
class Folded:
    """Of each key the newest change that applied, and when it came; `forgotten` are keys whose
    delete no longer counts."""

    newest: dict[str | None, tuple[Change, int]]
    superseded: int
    resurrected: int
    now: int

    @property
    def rows(self) -> set[tuple[str | None, str | None]]:
        return {(c.id, c.name) for c, _ in self.newest.values() if not c.deletes}

    @property
    def tombstones(self) -> set[tuple[str | None, int | None, int]]:
        return {
            (c.id, c.sequence, at)
            for c, at in self.newest.values()
            if c.deletes and self.now - at <= 2 * LASTING
        }


def folded(changes: Iterable[Change], *, is_sequenced: bool = True) -> Folded:
    """One after the other, in the order of the log."""
    state = Folded({}, 0, 0, -(10**9))
    for change in sorted(changes, key=lambda c: c.order):
        state.now = max(state.now, change.received)
        known = state.newest.get(change.id)
        if known is not None and known[0].deletes and state.now - known[1] > 2 * LASTING:
            known = None
        if known is not None and is_sequenced and not _is_above(change, known[0]):
            if not known[0].deletes or state.now - known[1] <= LASTING:
                state.superseded += 1
                continue
            state.resurrected += 1
        state.newest[change.id] = (change, state.now)
    return state


def _is_above(change: Change, other: Change) -> bool:
    if change.sequence is None:
        return False
    return other.sequence is None or change.sequence > other.sequence


def as_of(changes: Sequence[Change], id_: str | None, time: int) -> str | None:
    """The name that was valid then."""
    last = version(changes, id_, time)
    return None if last is None else last.name


def version(
    changes: Sequence[Change], id_: str | None, time: int, *, is_sequenced: bool = True
) -> Change | None:
    """The change that was valid then; None where the row is missing."""
    known = [c for c in changes if c.id == id_ and _valid_from(c) <= time]
    if not known:
        return None
    last = max(known, key=lambda c: (_valid_from(c), is_sequenced and _rank(c), c.order))
    return None if last.deletes else last


@dataclass(frozen=True)
class Request:
    """An event that looks up a row. Times are microseconds after START."""

    id: str | None
    position: int
    time: int | None
    received: int

    def found(
        self, changes: Sequence[Change], as_of: bool, *, is_sequenced: bool = True
    ) -> tuple[bool, str | None]:
        """Whether there is a row, and its name."""
        seen = [change for change in changes if change.position <= self.position]
        if self.id is None:
            return False, None
        if not as_of:
            newest = folded(seen, is_sequenced=is_sequenced).newest.get(self.id)
            row = None if newest is None or newest[0].deletes else newest[0]
        elif self.time is None or self.time < self.received - HISTORY:
            row = None
        else:
            row = version(seen, self.id, self.time, is_sequenced=is_sequenced)
        return (False, None) if row is None else (True, row.name)


def random_requests(
    rng: random.Random, changes: Sequence[Change], lowest: int, count: int
) -> list[Request]:
    """Of events that come at these changes or soon after, from a position on."""
    highest = max([lowest, *(change.position for change in changes)])
    found = []
    for _ in range(count):
        position = rng.randint(lowest, highest + 2)
        times = [change.received for change in changes if change.position <= position]
        received = max(times, default=0) + rng.randrange(4)
        time = rng.choice([None, received + 3, *range(received - HISTORY - 2, received + 1)])
        id_ = rng.choice(["a", "b", "c", "never there", None])
        found.append(Request(id_, position, time, received))
    return found


def requests_table(requests: Sequence[Request], key: str) -> pa.Table:
    """As Store.look_up takes them, with a column of surplus."""
    times = [None if r.time is None else moment(r.time) for r in requests]
    time = pa.timestamp("us", "UTC")
    return pa.table(
        {
            "_time": pa.array(times, time),
            "_received": pa.array([moment(r.received) for r in requests], time),
            "surplus": pa.nulls(len(requests)),
            key: pa.array([r.id for r in requests], pa.string()),
            "_position": pa.array([r.position for r in requests], pa.int64()),
        }
    )


def _valid_from(change: Change) -> int:
    return change.received if change.valid_from is None else change.valid_from


def _rank(change: Change) -> tuple[int, int]:
    return (-1, 0) if change.sequence is None else (0, change.sequence)


def random_changes(rng: random.Random, count: int, *, partitions: int = 2) -> list[Change]:
    """In the order of the log: deletes, repetitions, sequences out of order, leaps of time, and a
    clock that is put back."""
    found: list[Change] = []
    offsets = [0] * partitions
    position = received = 0
    for _ in range(count):
        if rng.random() < 0.6:
            position += rng.randrange(1, 3)
            received += rng.choice([0, 1, 1, 2, 3, LASTING + 1, 2 * LASTING + 1, -2])
            partition = 0
        else:
            partition = found[-1].partition if found else 0
        partition = rng.randrange(partition, partitions)
        offsets[partition] += rng.randrange(1, 3)
        found.append(
            Change(
                partition,
                offsets[partition],
                rng.choice(["a", "b", "c", None]),
                rng.choice(["x", "y", None]),
                rng.random() < 0.35,
                rng.choice([None, *range(6)]),
                position,
                received,
                rng.choice([None, received - rng.randrange(2 * HISTORY), received + 5]),
            )
        )
    return found


def partials(view: BoundView, changes: Sequence[Change], number: int = 1) -> pa.Table:
    """As a tick brings them to a kind."""
    from headrace.kinds.inputs import partials_schema

    schema = partials_schema(view)
    rows = [(number, *change.partial) for change in changes]
    columns = list(zip(*rows, strict=True)) or [[] for _ in schema]
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
