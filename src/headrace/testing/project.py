"""A project in a test: what is sent, what time it is, and what is expected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.compile import define_project, load_project, parse_sql
from headrace.model.definitions import Project as Definitions
from headrace.model.errors import KitError
from headrace.model.moments import moment, moment_text
from headrace.model.settings import Settings, load_settings
from headrace.testing.expectation import Expectation, Looks
from headrace.testing.ingest import Answer, Ingest
from headrace.testing.moments import microseconds
from headrace.testing.running import Running

__all__ = ["Project"]

START = "2026-01-01T00:00:00Z"


class Project:
    """The definitions of a folder, of one SQL text, or of a Python function, running for one test.

        with Project("path/to/project") as project: …
        with Project(sql="CREATE STREAM …; CREATE MATERIALIZED VIEW …;") as project: …
        with Project(define=my_definitions) as project: …

    The log and the store are empty at first, and gone when it is closed. The clock, by which the
    gateway receives events, never lags behind the newest event time that was sent; with `now` it
    stands there instead. Either way `advance` puts it forward. Raises DefinitionErrors with every
    fault of the definitions, and EngineError where Spark does not accept a view.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        sql: str | None = None,
        define: Callable[[], object] | None = None,
        now: str | datetime | None = None,
    ) -> None:
        self._now = microseconds(START if now is None else now)
        self._follows_events = now is None
        self._definitions, settings = _defined(directory, sql, define)
        self._looks: Looks = {}
        self._running = Running(self._definitions, settings)
        self._ingest = Ingest(
            self._definitions, settings.gateway, self._running.writer, self._running.reader
        )

    def __enter__(self) -> Project:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """The project is not used after it."""
        self._running.close()

    # Events and time

    def send(
        self,
        stream: str,
        events: Any,
        *,
        key: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        epoch: int | None = None,
        sent_at: str | datetime | None = None,
    ) -> Answer:
        """One request, as a client sends it at the time that the project's clock shows: an event or
        several, in this order. A `str` among them is a line as it stands, which need not be JSON.

        `key` is the idempotency key; `producer`, `sequence` and `epoch` number the events;
        `sent_at` is when the client's own clock says that it sends. Raises RequestError where the
        gateway refuses the whole request. A record that does not fit becomes a dead letter, which
        the answer names, and the others are accepted.
        """
        headers = {
            "idempotency-key": key,
            "headrace-producer": producer,
            "headrace-sequence": sequence,
            "headrace-epoch": epoch,
            "headrace-sent-at": None if sent_at is None else moment_text(microseconds(sent_at)),
        }
        self._ingest.require_stream(stream)
        body = self._ingest.body(events)
        self._follow(self._ingest.newest_event_time(stream, body))
        return self._ingest.send(stream, body, headers, self._now)

    def upsert(self, table: str, rows: Any, *, key: str | None = None) -> Answer:
        """One request with a row of a table or several, in this order, as a client posts them at
        the time that the project's clock shows. A row is stored whole: a column that it lacks is
        NULL. `key` is the idempotency key. Answers and refuses as `send` does.

            project.upsert("customers", {"id": "c-1", "name": "Ann"})
        """
        self._ingest.require_table(table)
        return self._ingest.send(
            table, self._ingest.body(rows), {"idempotency-key": key}, self._now
        )

    def delete(self, table: str, keys: Any, *, key: str | None = None) -> Answer:
        """Likewise the deletion of one row or several, each named by a mapping with its key columns
        and, in a table with SEQUENCE BY, that column."""
        self._ingest.require_table(table)
        body = self._ingest.body(keys, deletes=True)
        return self._ingest.send(table, body, {"idempotency-key": key}, self._now)

    def heartbeat(
        self, stream: str, complete_up_to: str | datetime, *, producer: str | None = None
    ) -> None:
        """Tell the stream, as a client does, that no event before this time comes any more; with
        `producer` that none of this producer's does. Raises RequestError as the gateway does."""
        self._follow(moment := microseconds(complete_up_to))
        asked = {"complete_up_to": moment_text(moment), "producer": producer}
        self._ingest.heartbeat(stream, asked, self._now)

    @property
    def now(self) -> datetime:
        """What the project's clock shows."""
        return moment(self._now)

    def advance(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None:
        """Put the clock forward. Partitions of streams with IDLE AFTER that have been without
        events for so long then no longer hold the watermark back, which otherwise moves with events
        and heartbeats alone."""
        by = timedelta(
            days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
        )
        if by < timedelta():
            raise KitError(
                f"the clock cannot be put back by {-by}", hint="begin with an earlier `now`"
            )
        self._move(self._now + by // timedelta(microseconds=1))

    def _follow(self, event_time: int | None) -> None:
        if self._follows_events and event_time is not None and event_time > self._now:
            self._move(event_time)

    def _move(self, now: int) -> None:
        self._now = now
        self._ingest.move_idle_on(now)

    # Answers

    def expect(self, name: str) -> Expectation:
        """Of a view or table, of a stream, or of a stream's late events that were set aside
        (STREAM_late). Raises KitError for an unknown name."""
        return Expectation(self._definitions, self._running, self._looks, name)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """The rows of a SELECT over views, as `headrace query` would give them. Raises
        QueryError."""
        self._running.settle()
        rows: list[dict[str, Any]] = self._running.query(sql).to_pylist()
        return rows

    # What operators do

    def resume(self, stream: str, decision: str) -> None:
        """Decide about the late events before which views of a stream with LATE HALT stand:
        `apply`, `side` or `drop`. Raises QueryError where none is halted."""
        if decision not in DECISIONS:
            raise KitError(
                f"there is no decision {decision!r}", hint=f"decide {', '.join(DECISIONS)}"
            )
        self._running.settle()
        _, recorded = self._running.control.resume(self._stream(stream), decision)
        self._running.do_what_was_asked()
        recorded.result()

    def apply_late(self, stream: str, view: str | None = None) -> None:
        """Let the views of a stream, or one of them, take in the late events that were set aside.
        Raises QueryError for a view that the stream does not have."""
        self._running.settle()
        self._running.control.apply_late(self._stream(stream), view)
        self._running.do_what_was_asked()

    def _stream(self, name: str) -> str:
        found = self._definitions.stream(name)
        return name if found is None else found.name


DECISIONS = ("apply", "side", "drop")


def _defined(
    directory: str | Path | None, sql: str | None, define: Callable[[], object] | None
) -> tuple[Definitions, Settings]:
    if sum(given is not None for given in (directory, sql, define)) != 1:
        raise KitError(
            "a project is made of a folder, of sql or of define, and of one of them",
            hint='Project("path/to/project"), Project(sql="CREATE STREAM …") or Project(define=f)',
        )
    if directory is not None:
        folder = Path(directory)
        if not folder.is_dir():
            raise KitError(f"there is no folder {folder}", hint="give the project's folder")
        settings = load_settings(folder)
        definitions = load_project(folder, settings.name)
        where = f"the folder {folder} or its definitions/"
    else:
        settings = Settings(Path())
        definitions = parse_sql(sql) if sql is not None else define_project(_called(define))
        where = "them"
    if not definitions.streams:
        raise KitError(
            f"there are no definitions in {where}", hint="CREATE STREAM …, or headrace.stream(…)"
        )
    return definitions, replace(settings, directory=Path())


def _called(define: Callable[[], object] | None) -> Callable[[], object]:
    assert define is not None, "one of three was given"
    return define
