"""A whole engine in one process, stepped tick by tick: real log, real Spark, real store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.compile import load_project
from headrace.engine import shared_plan
from headrace.engine.control import EngineControl
from headrace.engine.loop import Engine
from headrace.log.contract import Group, LogReader, LogWriter, PartitionBatch, stored_schema
from headrace.log.embedded.backend import open_reader, open_writer
from headrace.model.definitions import Project
from headrace.model.settings import EngineSettings, GatewaySettings, LogSettings, Settings
from headrace.store.contract import Store, ViewChange
from headrace.store.opening import open_store

SHOP = """
CREATE STREAM transactions (
  id STRING, user_id STRING, amount DECIMAL(18, 2), status STRING, quantity INT,
  price DOUBLE, created_at TIMESTAMP NOT NULL
)
WATERMARK created_at DELAY OF INTERVAL 5 SECONDS
LATE REVISE
INTO 2 PARTITIONS;

CREATE MATERIALIZED VIEW income AS
SELECT window.start AS window_start, window.end AS window_end,
       sum(amount) AS income, count(*) AS payments, avg(amount) AS average
FROM transactions WHERE status = 'paid' GROUP BY window(created_at, '3 seconds');
"""


@dataclass
class Recorder:
    """Takes the place of the server: keeps every published change."""

    views: frozenset[str] = frozenset()
    changes: list[ViewChange] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)
    on_moved: Callable[[], object] = lambda: None

    def watched(self) -> frozenset[str]:
        return self.views

    def publish(
        self,
        changes: Sequence[ViewChange],
        *,
        tick: int | None = None,
        committed_at_microseconds: int | None = None,
    ) -> None:
        self.changes.extend(changes)

    def moved(self) -> None:
        self.on_moved()

    def expire(self, view: str) -> None:
        self.expired.append(view)


@dataclass
class Rig:
    """One project on disk with its writer, and an engine that can be opened, stepped and lost."""

    spark: SparkSession
    directory: Path
    settings: Settings
    project: Project
    writer: LogWriter
    reader: LogReader
    store: Store | None = None
    engine: Engine | None = None
    control: EngineControl | None = None
    recorder: Recorder = field(default_factory=Recorder)

    def append(self, stream: str, events: Sequence[Mapping[str, Any]], partition: int = 0) -> None:
        self.append_parts(stream, {partition: events})

    def append_parts(self, stream: str, parts: Mapping[int, Sequence[Mapping[str, Any]]]) -> int:
        """In one group: partitions that begin together are not behind each other. Gives its
        position."""
        definition = self.project.stream(stream)
        assert definition is not None
        schema = stored_schema(definition)
        batches = []
        for partition, events in parts.items():
            rows = [{"_received_at": 0, **event} for event in events]
            batch = pa.RecordBatch.from_pylist(rows, schema=schema)
            batches.append(PartitionBatch(stream, partition, batch))
        return self.writer.append(Group(tuple(batches))).position

    def start(self) -> Engine:
        self.store = open_store(self.settings.store_file, self.settings.store)
        self.control = EngineControl(self.reader, self.store)
        self.engine = Engine(
            self.settings,
            self.project,
            self.spark,
            self.reader,
            self.store,
            self.control,
            self.recorder,
        )
        self.engine.open()
        return self.engine

    def stop(self) -> None:
        if self.engine is not None:
            self.engine.close()
        if self.store is not None:
            self.store.close()
        self.engine = self.store = None

    def lose_store(self) -> None:
        """As if the process had died: the engine in memory is gone, the store's file stays."""
        if self.store is not None:
            self.store.close()
        self.engine = self.store = None

    def settle(self, ticks_max: int = 500) -> None:
        """Tick until every running view has taken everything."""
        assert self.engine is not None
        for _ in range(ticks_max):
            if self.engine.step() is None and not self.engine.is_isolating:
                return
        raise AssertionError("the engine did not settle")

    def rows(self, view: str) -> list[dict[str, Any]]:
        assert self.store is not None
        page = self.store.read_view(view, {}, [], 100_000, None)
        return page.table.to_pylist()

    def redefine(self, sql: str) -> None:
        (self.directory / "definitions.sql").write_text(sql)
        self.project = load_project(self.directory)


@pytest.fixture
def shop() -> str:
    return SHOP


def rigs(spark: SparkSession, folder: Path) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(
        sql: str = SHOP, engine: EngineSettings | None = None, log: LogSettings | None = None
    ) -> Rig:
        directory = folder / f"project{len(made)}"
        directory.mkdir()
        (directory / "definitions.sql").write_text(sql)
        settings = Settings(directory, engine=engine or EngineSettings())
        settings.log_directory.mkdir(parents=True)
        project = load_project(directory)
        writer = open_writer(
            settings.log_directory, project.streams, log or LogSettings(), GatewaySettings()
        )
        reader = open_reader(settings.log_directory, project.streams)
        rig = Rig(spark, directory, settings, project, writer, reader)
        made.append(rig)
        return rig

    yield make
    for rig in made:
        rig.stop()
        rig.writer.close()
        rig.reader.close()


@pytest.fixture(scope="module")
def both_ways() -> Iterator[None]:
    """For tests of what views hold: a tick of some events is computed event by event, one of some
    more is grouped, and the states of both are merged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_plan, "ROWS_TIMES_VIEWS_MAX", 24)
        yield


@pytest.fixture
def make_rig(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    yield from rigs(spark, tmp_path)


@pytest.fixture(scope="module")
def make_shared_rig(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Rig]]:
    """For tests of one module that look at one engine, in their order."""
    yield from rigs(spark, tmp_path_factory.mktemp("rig"))
