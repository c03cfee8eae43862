"""What sessions, event groups, sliding windows and days hold under every late policy: event by
event in the order of the log, in a few lines each. Times are whole seconds after EPOCH."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

EPOCH = dt.datetime(2026, 1, 1, 22, 59, 30, tzinfo=dt.UTC)
MIDNIGHT = 30  # in Berlin
DELAY, GAP, TIMEOUT, REACH, HORIZON = 2, 3, 6, 4, 6
USERS = ("a", "b", "c")
KINDS = ("session", "parcel", "sliding", "daily")
POLICIES = {
    "revised": "REVISE",
    "sided": "SIDE",
    "dropped": "DROP",
    "halted": "HALT",
    "within": f"REVISE WITHIN INTERVAL {HORIZON} SECONDS",
}
_GROUPED = "window.start AS s, window.end AS e, count(*) AS n, sum(weight) AS w"
_OVER = (
    "OVER (PARTITION BY user_id ORDER BY at RANGE BETWEEN "
    f"INTERVAL {REACH} SECONDS PRECEDING AND CURRENT ROW)"
)
QUERIES = {
    "session": f"SELECT user_id AS k, {_GROUPED}, count(DISTINCT weight) AS d FROM {{stream}} "
    f"GROUP BY session_window(at, '{GAP} seconds'), user_id",
    "parcel": f"SELECT user_id AS k, {_GROUPED}, count(DISTINCT weight) AS d FROM {{stream}} "
    f"GROUP BY event_group(status = 'up', status = 'down', '{TIMEOUT} seconds'), user_id",
    "sliding": f"SELECT user_id AS k, at AS s, at AS e, count(*) {_OVER} AS n, "
    f"sum(weight) {_OVER} AS w, max(weight) {_OVER} AS d FROM {{stream}}",
    "daily": f"SELECT 'all' AS k, {_GROUPED}, count(DISTINCT weight) AS d FROM {{stream}} "
    "GROUP BY calendar_window(at, 'day', 'Europe/Berlin')",
}

Row = tuple[Any, ...]


def definitions(policy: str, kinds: Sequence[str], emit: str = "") -> str:
    """A stream of this policy with a view of each of these kinds."""
    text = f"""
    CREATE STREAM {policy} (user_id STRING, at TIMESTAMP NOT NULL, status STRING, weight INT)
    WATERMARK at DELAY OF INTERVAL {DELAY} SECONDS LATE {POLICIES[policy]}
    PARTITION BY (user_id) INTO 2 PARTITIONS;
    """
    for kind in kinds:
        query = QUERIES[kind].format(stream=policy)
        text += f"CREATE MATERIALIZED VIEW {policy}_{kind} AS {query} {emit};\n"
    return text


@dataclass(frozen=True)
class Event:
    user: str
    at: int
    status: str
    weight: int
    partition: int = 0
    offset: int = 0
    watermark: int | None = None
    is_late: bool = False

    @property
    def place(self) -> tuple[int, int, int]:
        return self.at, self.partition, self.offset

    def is_passed(self, end: int, horizon: int = 0) -> bool:
        return self.watermark is not None and end <= self.watermark - horizon

    def stored(self) -> dict[str, Any]:
        at = EPOCH + dt.timedelta(seconds=self.at)
        return {"user_id": self.user, "at": at, "status": self.status, "weight": self.weight}


def placed(events: Sequence[Event], before: Sequence[Event] = ()) -> list[Event]:
    """With their places in the log after those before them, and the watermark before each."""
    highest: dict[int, int] = {}
    offsets: Counter[int] = Counter()
    found = []
    for event in [*before, *events]:
        partition = USERS.index(event.user) % 2
        high = highest.get(partition)
        watermark = None if high is None else high - DELAY
        place = replace(event, partition=partition, offset=offsets[partition])
        found.append(replace(place, watermark=watermark))
        offsets[partition] += 1
        highest[partition] = max(high if high is not None else event.at, event.at)
    return found[len(before) :]


@dataclass
class Model:
    """`aside` are events that no window took, or not every one of a sliding view that they are in;
    `decisions` is what an operator said, by place."""

    kind: str
    policy: str
    decisions: dict[tuple[int, int], str] = field(default_factory=dict)
    applied: list[Event] = field(default_factory=list)
    aside: list[Event] = field(default_factory=list)

    def take(self, event: Event) -> None:
        end = self.end_with(event)
        is_late = end is not None and event.is_passed(end)
        if not is_late or self.takes(event, end or 0):
            self.applied.append(replace(event, is_late=is_late))
        else:
            self.aside.append(replace(event, is_late=True))

    def apply_aside(self) -> None:
        self.applied += self.aside
        self.aside = []

    def takes(self, event: Event, end: int) -> bool:
        if self.policy == "revised":
            return True
        if self.policy == "within":
            return not event.is_passed(end, HORIZON)
        return self.decisions.get((event.partition, event.offset)) == "apply"

    def end_with(self, event: Event) -> int | None:
        """From which watermark on the event's window is passed, by what was applied before it."""
        if self.kind == "sliding":
            return event.at + 1
        mine = [e for e in self.applied if e.user == event.user or self.kind == "daily"]
        group = next((g for g in self.groups([*mine, event]) if event in g), None)
        return None if group is None else self.ends(group)

    def groups(self, events: Sequence[Event]) -> list[list[Event]]:
        """The windows of one key's events."""
        found: list[list[Event]] = []
        is_open = False
        for event in sorted(events, key=lambda e: e.place):
            last = found[-1] if found else [event]
            if self.kind == "daily":
                begins = not found or (event.at >= MIDNIGHT) != (last[0].at >= MIDNIGHT)
            elif self.kind == "session":
                begins = not found or event.at - last[-1].at > GAP
            else:
                is_open = is_open and event.at < last[0].at + TIMEOUT
                if not is_open and event.status != "up":
                    continue
                begins, is_open = not is_open, event.status != "down"
            found.extend([[event]] if begins else [])
            found[-1].extend([] if begins else [event])
        return found

    def window(self, group: list[Event]) -> tuple[int, int]:
        if self.kind == "daily":
            start = MIDNIGHT if group[0].at >= MIDNIGHT else MIDNIGHT - 86_400
            return start, start + 86_400
        if self.kind == "session":
            return group[0].at, group[-1].at + GAP
        is_closed = group[-1].status == "down"
        return group[0].at, group[-1].at if is_closed else group[0].at + TIMEOUT

    def ends(self, group: list[Event]) -> int:
        """A group that an event closed takes further events of that very moment."""
        is_closed = self.kind == "parcel" and group[-1].status == "down"
        return self.window(group)[1] + int(is_closed)

    def rows(self, watermark: int) -> Counter[Row]:
        """k, s, e, n, w, d, revision, final."""
        if self.kind == "sliding":
            return self.sliding_rows(watermark)
        rows: Counter[Row] = Counter()
        keys = ["all"] if self.kind == "daily" else list(USERS)
        for key in keys:
            for group in self.groups([e for e in self.applied if key in ("all", e.user)]):
                weights = [e.weight for e in group]
                values = (len(group), sum(weights), len(set(weights)))
                revision = sum(e.is_late for e in group)
                is_final = self.ends(group) <= watermark
                rows[(key, *self.window(group), *values, revision, is_final)] += 1
        return rows

    def sliding_rows(self, watermark: int) -> Counter[Row]:
        """An event that is aside may still be in rows that it is not late for."""
        rows: Counter[Row] = Counter()
        horizon = HORIZON if self.policy == "within" else 0
        for row in self.applied:
            frame = [e for e in self.applied if e.user == row.user] + [
                e for e in self.aside if e.user == row.user and not e.is_passed(row.at + 1, horizon)
            ]
            frame = [e for e in frame if row.at - REACH <= e.at <= row.at]
            weights = [e.weight for e in frame]
            revision = sum(e.is_passed(row.at + 1) for e in frame)
            values = (len(frame), sum(weights), max(weights))
            rows[(row.user, row.at, row.at, *values, revision, row.at < watermark)] += 1
        return rows

    @property
    def counts(self) -> tuple[int, int]:
        """Events applied to some window, and to none."""
        horizon = HORIZON if self.policy == "within" else 0
        none = [
            e
            for e in self.aside
            if self.kind != "sliding" or e.is_passed(e.at + REACH + 1, horizon)
        ]
        return len(self.applied) + len(self.aside) - len(none), len(none)
