"""The table that is loaded, as the gateway describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from headrace.model.definitions import Changelog, Column, Stream
from headrace.model.errors import SettingsError
from headrace.model.types import parse_type

__all__ = ["keys_of", "require_before_all_events", "target_of"]


def target_of(name: str, streams: Sequence[Mapping[str, Any]]) -> Stream:
    """The changelog of the table, from the answer to GET /v1/streams. Raises SettingsError for what
    is no table that changes are posted to."""
    tables = {s["name"].lower(): s for s in streams if s["table"] is not None}
    found = tables.get(name.lower())
    if found is None:
        near = get_close_matches(name.lower(), tables, n=1)
        names = ", ".join(table["name"] for table in tables.values()) or "none"
        raise SettingsError(
            f"there is no table {name!r} that takes rows",
            hint=f"did you mean {tables[near[0]]['name']}?" if near else f"there are: {names}",
        )
    columns = tuple(
        Column(c["name"], parse_type(c["type"]), nullable=c["nullable"]) for c in found["columns"]
    )
    told = found["table"]
    changes = Changelog(tuple(told["key"]), tuple(told["required"]), told["sequence"])
    return Stream(found["name"], columns, changelog=changes)


def keys_of(table: Stream) -> Stream:
    """A stream of the key's columns alone."""
    assert table.changelog is not None
    return Stream(table.name, tuple(c for c in table.columns if c.name in table.changelog.key))


def require_before_all_events(table: Stream, streams: Sequence[Mapping[str, Any]]) -> None:
    """Raises SettingsError unless what is stored now stands before every event of the project: an
    event sees a table as it was at the event's place in the log, so rows that come after the first
    event would be missing for it, in every replay too."""
    for stream in streams:
        if stream["table"] is None and any(stream["ends"]):
            raise SettingsError(
                f"the stream {stream['name']} has events already: rows that are loaded now stand "
                "after them",
                hint="load without --initial, for events from now on; or load first in a project "
                "without events",
            )
        if stream["name"] == table.name and any(stream["ends"]):
            raise SettingsError(
                f"the table {table.name} has had changes already",
                hint="load without --initial, or with --replace",
            )
