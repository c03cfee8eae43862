"""The examples of docs/explanation/time.md: each section with definitions is one project, its
events go through the gateway's decoder, the log and the engine, and its tables are compared with
what is there."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from gateway_feed import lines_request, microseconds
from pages import Block, cells, sections

from headrace.gateway.ingest.decoding import StreamDecoder
from headrace.gateway.ingest.heartbeats import HeartbeatReader
from headrace.log.contract import Group, accept_note
from headrace.model.settings import EngineSettings, GatewaySettings
from headrace.store.contract import ViewChange

SECTIONS = sections("explanation/time.md")
DAY = dt.date(2026, 3, 1)
LONG_AFTER = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)  # no event of the page is in its future
TABLE = re.compile(
    r"(?:(Subscribers to|The (?:ledger|status|completeness) of) )?`(\w+)` (?:holds|get)[^`]*:$"
)
EVENTS = re.compile(r"To (`.*):$")
COMMAND = re.compile(r"headrace (late apply|resume|completeness) (\w+)(?: --(\w+)(?: (\S+))?)?")
CHANGES = "Subscribers to"
TABLES_OF = {  # how many tables of each section are compared
    "Late events": 5,
    "Aside, dropped, halted": 7,
    "Final": 5,
    "Three clocks": 1,
    "Windows": 8,
    "Missing events": 2,
}


def shown(value: Any) -> str:
    """A value as the page writes it."""
    if isinstance(value, dt.datetime):
        time = value.astimezone(dt.UTC)
        return time.strftime("%H:%M:%S" if time.date() == DAY else "%Y-%m-%d %H:%M:%S")
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def written(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[list[str]]:
    return sorted([shown(row[column]) for column in columns] for row in rows)


class Example:
    """One section's project, taken through its blocks in their order. One without views is of
    what the log counts, and needs no engine."""

    def __init__(self, rig: Any) -> None:
        self.rig = rig
        rig.recorder.views = frozenset(view.name for view in rig.project.views)
        if rig.project.views:
            rig.start()
        self.tables = 0
        self._is_settled = True
        self._seen = 0
        self._last: list[ViewChange] = []

    def run(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            if block.kind == "ndjson":
                self._append(block)
            elif block.kind == "json":
                self._beat(block)
            elif block.kind == "sh":
                self._decide(block)
            elif block.kind == "table" and (match := TABLE.search(block.introduction)):
                self._compare(block, match[1], match[2])

    def _append(self, block: Block) -> None:
        introduction = EVENTS.search(block.introduction)
        assert introduction is not None, block
        partition = re.search(r"partition (\d+)", introduction[1])
        received = re.search(r"received at ([\d:]+)", introduction[1])
        at = LONG_AFTER
        if received is not None:
            at = dt.datetime.combine(DAY, dt.time.fromisoformat(received[1]), dt.UTC)
        for stream in re.findall(r"`(\w+)`", introduction[1]):
            events = self._decoded(stream, block.text.encode(), at)
            self.rig.append(stream, events, int(partition[1]) if partition else 0)
        self._is_settled = False  # blocks that follow each other are one tick

    def _decoded(self, stream: str, body: bytes, received: dt.datetime) -> list[dict[str, Any]]:
        request = lines_request(stream, body, microseconds(received))
        decoder = StreamDecoder(self.rig.project.stream(stream), GatewaySettings())
        rows = decoder.decode([(request, body)])
        assert [entry.rejected for entry in rows.entries] == [[]]
        events = pa.Table.from_batches(rows.batches).to_pylist()
        return [{**event, "_received_at": received} for event in events]

    def _beat(self, block: Block) -> None:
        beats = HeartbeatReader(self.rig.project)
        asked = beats.read(block.text.encode(), microseconds(LONG_AFTER), lambda stream: None)
        self.rig.writer.append(Group(advances=tuple(asked.advances)))
        self._is_settled = False

    def _decide(self, block: Block) -> None:
        command = COMMAND.fullmatch(block.text)
        assert command is not None, block
        self._settle()
        what, stream, option, producer = command.groups()
        if what == "completeness":
            assert option == "accept", block
            self.rig.writer.append(Group(receipts=(accept_note(0, stream, producer),)))
            return
        if what == "resume":
            self.rig.control.resume(stream, option)
        else:
            self.rig.control.apply_late(stream, None)
        self.rig.engine.decide_what_was_asked()
        self._is_settled = False

    def _settle(self) -> None:
        if self._is_settled or self.rig.engine is None:
            return
        self._is_settled = True
        self.rig.settle()
        self._last = self.rig.recorder.changes[self._seen :]
        self._seen += len(self._last)

    def _compare(self, block: Block, what: str | None, name: str) -> None:
        self._settle()
        header, _, *lines = block.text.splitlines()
        columns, expected = cells(header), [cells(line) for line in lines]
        self.tables += 1
        if what == CHANGES:
            assert self._changes(name, columns[1:]) == expected, block
            return
        rows = self._rows(what, name)
        if what is None and not name.endswith("_late"):
            assert all(list(row) == columns for row in rows), block
        assert written(rows, columns) == sorted(expected), block

    def _changes(self, view: str, columns: Sequence[str]) -> list[list[str]]:
        found = []
        for change in self._last:
            if change.view == view:
                for sign, table in (("-", change.before), ("+", change.after)):
                    found += [[sign, *row] for row in written(table.to_pylist(), columns)]
        return found

    def _rows(self, what: str | None, name: str) -> list[dict[str, Any]]:
        if what == "The status of":
            report = self.rig.control.status().views[name]
            return [{"state": report.state, "detail": report.detail}]
        if what == "The completeness of":
            return [
                {**vars(line), "producer": report.producer}
                for report in self.rig.writer.producers(name, "", 100)
                for line in report.lines
            ]
        if what == "The ledger of":
            streams = self.rig.store.streams()
            totals = streams[name].totals if name in streams else self._view_totals(name)
            assert totals.is_conserved
            return [{word: getattr(totals, word) for word in dir(totals) if word[0] != "_"}]
        if name.endswith("_late"):
            batches = self.rig.store.query(f"SELECT * FROM {name}").batches
            return [row for batch in batches for row in batch.to_pylist()]
        rows: list[dict[str, Any]] = self.rig.rows(name)
        return rows

    def _view_totals(self, view: str) -> Any:
        return self.rig.engine._views[view].totals


@pytest.mark.parametrize(("heading", "tables"), TABLES_OF.items())
def test_the_page_tells_the_truth(make_rig: Callable[..., Any], heading: str, tables: int) -> None:
    blocks = SECTIONS[heading]
    sql = "\n".join(block.text for block in blocks if block.kind == "sql")
    example = Example(make_rig(sql, EngineSettings(cores=1)))
    example.run(blocks)
    assert example.tables == tables  # a table that is not compared proves nothing


def test_no_section_is_left_out() -> None:
    assert set(SECTIONS) == set(TABLES_OF)
