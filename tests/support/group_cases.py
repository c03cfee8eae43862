"""A view by event group made by hand, events for it, and the groups that one walk finds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from store_cases import bound_view

from headrace.model.plan import BoundView, EventGroup
from headrace.store.contract import Counts, ViewWrite

FINALS = ("key", "since", "up_to", "events", "total", "n", "cards", "taken")


@dataclass(frozen=True)
class Event:
    key: str | None
    partition: int
    offset: int
    time: int
    opens: bool
    closes: bool
    value: int | None
    card: str | None
    is_late: bool


def grouped_view(timeout: int) -> BoundView:
    view = bound_view(
        "groups",
        keys={"key": "STRING"},
        partials=(
            ("total", "sum", "BIGINT", 'sum("total")'),
            ("n", "count", "BIGINT", 'sum("n")'),
        ),
        distincts={"cards": "STRING"},
        finals=(
            ("key", "STRING", '"key"'),
            ("since", "BIGINT", 'epoch_us("window_start")'),
            ("up_to", "BIGINT", 'epoch_us("window_end")'),
            ("events", "BIGINT", '"_rows"'),
            ("total", "BIGINT", '"total"'),
            ("n", "BIGINT", '"n"'),
            ("cards", "BIGINT", '"cards"'),
            ("taken", "BIGINT", '"revision"'),
        ),
    )
    return replace(view, plan=replace(view.plan, window=EventGroup("o", "c", timeout)))


def partials_of(events: list[Event]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "key": e.key,
                "_pane": e.time,
                "_passed": 0,
                "_late": int(e.is_late),
                "_beyond": 0,
                "_event_partition": e.partition,
                "_event_offset": e.offset,
                "_opens": e.opens,
                "_closes": e.closes,
                "_rows": 1,
                "total": e.value,
                "n": int(e.value is not None),
                "cards": e.card,
            }
            for e in events
        ]
    )


def write_of(events: list[Event], watermark: int | None = None, view: str = "groups") -> ViewWrite:
    partials = partials_of(events) if events else None
    counts = Counts(read=len(events), applied=len(events))
    return ViewWrite(view, partials, {}, {}, counts, watermark)


def groups_in(events: list[Event], timeout: int) -> list[list[Event]]:
    found: list[list[Event]] = []
    for key in {e.key for e in events}:
        mine = [e for e in events if e.key == key]
        group: list[Event] = []
        for event in sorted(mine, key=lambda e: (e.time, e.partition, e.offset)):
            if group and event.time >= group[0].time + timeout:
                found.append(group)
                group = []
            if group or event.opens:
                group.append(event)
            if group and event.closes:
                found.append(group)
                group = []
        if group:
            found.append(group)
    return found


def model(
    events: list[Event], timeout: int, watermark: int | None = None
) -> Counter[tuple[Any, ...]]:
    """Given a watermark, only the groups that it has passed."""
    groups = groups_in(events, timeout)
    if watermark is not None:
        groups = [group for group in groups if passed_from(group, timeout) <= watermark]
    return Counter(_row(group, timeout) for group in groups)


def passed_from(group: list[Event], timeout: int) -> int:
    return group[-1].time + 1 if group[-1].closes else group[0].time + timeout


def _row(group: list[Event], timeout: int) -> tuple[Any, ...]:
    values = [e.value for e in group if e.value is not None]
    end = group[-1].time if group[-1].closes else group[0].time + timeout
    return (
        group[0].key,
        group[0].time,
        end,
        len(group),
        sum(values) if values else None,
        len(values),
        len({e.card for e in group if e.card is not None}),
        sum(e.is_late for e in group),
    )
