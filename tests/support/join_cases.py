"""Tables as events see them, computed change by change."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["START", "Known", "at"]

START = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
Row = Mapping[str, Any]


def at(hour: int, minute: int = 0, second: int = 0) -> dt.datetime:
    return START + dt.timedelta(hours=hour, minutes=minute, seconds=second)


@dataclass
class Known:
    """All changes of one table: each a row with its position and place. A deletion has the
    operation `delete`."""

    key: Sequence[str]
    sequence: str | None = None
    valid_from: str | None = None
    history: dt.timedelta | None = None
    changes: list[Row] = field(default_factory=list)

    def row_at(
        self,
        key: Sequence[Any],
        position: int,
        time: dt.datetime | None = None,
        received: dt.datetime | None = None,
    ) -> Row | None:
        """What an event of this position finds; with `time`, as of that time."""
        if any(value is None for value in key):
            return None
        seen = [
            change
            for change in self.changes
            if change["position"] <= position and [change[name] for name in self.key] == [*key]
        ]
        if time is not None:
            seen = [change for change in seen if self._valid(change) <= time]
            if self.history is not None and received is not None:
                seen = seen if received - time <= self.history else []
            newest = max(map(self._valid, seen), default=None)
            seen = [change for change in seen if self._valid(change) == newest]
        found: Row | None = None
        for change in sorted(seen, key=lambda change: change["place"]):
            if found is None or self._is_above(change, found):
                found = change
        return found if found is not None and found.get("_op") != "delete" else None

    def _valid(self, change: Row) -> dt.datetime:
        named = change.get(self.valid_from) if self.valid_from is not None else None
        valid: dt.datetime = change["_received_at"] if named is None else named
        return valid

    def _is_above(self, change: Row, other: Row) -> bool:
        if self.sequence is None:
            return True
        mine, its = change.get(self.sequence), other.get(self.sequence)
        return mine is not None and (its is None or mine > its)
