"""A real store behind a real server; only the engine is played, tick by tick, by the test."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from headrace.model.errors import QueryError
from headrace.model.plan import BoundColumn, BoundView, Expression, Partial, ViewPlan
from headrace.model.settings import Settings, StoreSettings
from headrace.model.types import parse_type
from headrace.serve.operate.control import (
    EngineStatus,
    RebuildReport,
    StreamReport,
    TickDurations,
    ViewReport,
)
from headrace.serve.server import Server, start_server
from headrace.store.contract import (
    Counts,
    Store,
    StoreDeadLetter,
    TickWrite,
    ViewStatus,
    ViewWrite,
    copy_name,
)
from headrace.store.opening import open_store

STRING, MONEY, BIGINT = (parse_type(t) for t in ("STRING", "DECIMAL(28, 2)", "BIGINT"))
PARTIALS = pa.schema(
    [("user_id", pa.string()), ("_rows", pa.int64()), ("total", pa.decimal128(28, 2))]
)


def bound_view(name: str) -> BoundView:
    plan = ViewPlan(
        view=name,
        stream="payments",
        where=None,
        keys=(Expression("user_id", "user_id"),),
        window=None,
        partials=(Partial("total", "sum", "amount", 'sum("total")'),),
        distincts=(),
        finals=(
            Expression("user_id", "user_id"),
            Expression("total", "total"),
            Expression("payments", "_rows"),
        ),
        having=None,
        is_global=False,
        fingerprint="1",
        sql="SELECT user_id, sum(amount) AS total, count(*) AS payments FROM payments GROUP BY 1",
    )
    return BoundView(
        plan,
        keys=(BoundColumn("user_id", STRING),),
        partials=(BoundColumn("total", MONEY),),
        distincts=(),
        finals=(
            (BoundColumn("user_id", STRING), '"user_id"'),
            (BoundColumn("total", MONEY), '"total"'),
            (BoundColumn("payments", BIGINT), '"_rows"'),
        ),
        having=None,
    )


@dataclass
class PlayedEngine:
    """What a Control says, as the test wants it."""

    pending_events: int = 0
    watermarks: dict[str, int] = field(default_factory=dict)
    rebuilds: list[Any] = field(default_factory=list)
    rebuild_report: RebuildReport | None = None
    halted: list[tuple[int, int]] = field(default_factory=list)
    recordings: list[Future[None]] = field(default_factory=list)
    decisions: list[tuple[str, str]] = field(default_factory=list)
    late_applied: list[tuple[str, str | None]] = field(default_factory=list)
    views: tuple[str, ...] = ()
    held_back: tuple[int, int] = (-1, 0)
    partitions: int = 1
    state: str = "live"
    log: str = "log"
    log_ends: dict[str, tuple[int, ...]] = field(default_factory=dict)
    standing: dict[str, ViewStatus] = field(default_factory=dict)

    def status(self) -> EngineStatus:
        return EngineStatus(
            state=self.state,
            generation=1,
            tick=7,
            committed_at_microseconds=1_000_000,
            durations=TickDurations(7, 1.0, 2.0, 3.0, 4.0),
            streams={"payments": StreamReport("live", "", {0: 5}, 2)},
            views={
                name: ViewReport(
                    "payments",
                    "live",
                    "",
                    dict.fromkeys(range(self.partitions), 3),
                    2,
                    self.watermarks.get(name),
                    Counts(read=3, applied=3),
                    *self.held_back,
                    self.rebuild_report,
                )
                for name in self.views
            },
        )

    def pending(self, view: str) -> int:
        return self.pending_events

    def watermark(self, view: str) -> int | None:
        return self.watermarks.get(view)

    def standstill(self, view: str) -> ViewStatus | None:
        return self.standing.get(view)

    def log_identity(self) -> str:
        return self.log

    def ends(self, stream: str) -> tuple[int, ...]:
        return self.log_ends.get(stream, ())

    def rebuild(self, view: str, *, hold: bool = False, from_oldest: bool = False) -> None:
        self.rebuilds.append((view, hold, from_oldest))

    def rebuilt(self, view: str) -> RebuildReport | None:
        return self.rebuild_report

    def swap(self, view: str) -> None:
        self.rebuilds.append((view, "swap"))

    def cancel(self, view: str) -> None:
        self.rebuilds.append((view, "cancel"))

    def resume(self, stream: str, decision: str) -> tuple[Sequence[tuple[int, int]], Future[None]]:
        if stream != "payments":
            raise QueryError(f"there is no stream {stream!r} with views", status=404)
        if not self.halted:
            raise QueryError(f"no view of stream {stream} is halted", status=409)
        self.decisions.append((stream, decision))
        places, self.halted = list(self.halted), []
        recorded: Future[None] = Future()
        self.recordings.append(recorded)
        return places, recorded

    def apply_late(self, stream: str, view: str | None) -> None:
        if stream != "payments":
            raise QueryError(f"there is no stream {stream!r} with views", status=404)
        if view is not None and view not in self.views:
            raise QueryError(f"stream {stream} has no view {view!r}", status=404)
        self.late_applied.append((stream, view))

    def metrics(self) -> Mapping[str, float]:
        return {"events_total": 12.0}


@dataclass
class Shop:
    settings: Settings
    store: Store
    control: PlayedEngine
    server: Server
    http: httpx.Client
    generation: int

    def tick(self, **payments: Sequence[tuple[str | None, str]]) -> int:
        """Commit one tick with (user, amount) per view and publish it; returns its number."""
        tick = self.store.last_tick() + 1
        watched = self.server.watched()
        writes = []
        for view, paid in payments.items():
            rows = [{"user_id": u, "_rows": 1, "total": Decimal(a)} for u, a in paid]
            count = len(rows)
            writes.append(
                ViewWrite(
                    view,
                    pa.Table.from_pylist(rows, PARTIALS) if rows else None,
                    {},
                    {0: self._next_offset(view) + count},
                    Counts(read=count, applied=count),
                    None,
                )
            )
        write = TickWrite(tick, self.generation, time.time_ns() // 1_000, tuple(writes))
        changes = self.store.commit(write, watched)
        self.server.moved()
        self.server.publish(changes)
        return tick

    def _next_offset(self, view: str) -> int:
        return self.store.catalog()[view].next_offsets.get(0, 0)

    def add_dead_letter(self, view: str) -> None:
        letter = StoreDeadLetter(view, "payments", 0, 17, "division by zero", '{"amount":0}')
        offsets = {0: self._next_offset(view) + 1}
        write = ViewWrite(view, None, {}, offsets, Counts(read=1, dead=1), None, (letter,))
        tick = self.store.last_tick() + 1
        self.store.commit(TickWrite(tick, self.generation, 0, (write,)))

    def client(self) -> httpx.Client:
        address = json.loads((self.settings.run_directory / "engine.json").read_text())
        return httpx.Client(
            base_url=f"http://127.0.0.1:{address['port']}",
            headers={"Headrace-Internal": address["secret"]},
            timeout=20,
        )

    def rebuild(
        self, view: str, payments: Sequence[tuple[str | None, str]] = (), *, followed: bool = True
    ) -> None:
        """What the engine does: a copy is filled beside the view and takes its place. One that has
        other columns cannot be followed."""
        copy = bound_view(copy_name(view))
        if not followed:
            copy = replace(copy, finals=copy.finals[:2])
        self.store.create_view(copy, {0: 0})
        rows = [{"user_id": u, "_rows": 1, "total": Decimal(a)} for u, a in payments]
        events = self._next_offset(view)
        write = ViewWrite(
            copy.name,
            pa.Table.from_pylist(rows, PARTIALS) if rows else None,
            {},
            {0: events},
            Counts(read=events, applied=events),
            None,
        )
        self.store.commit(TickWrite(self.store.last_tick() + 1, self.generation, 0, (write,)))
        self.server.watched()
        swap = TickWrite(self.store.last_tick() + 1, self.generation, 0, ())
        change = self.store.swap(swap, view)
        if change is None:
            self.server.expire(view)
        self.server.publish([] if change is None else [change], tick=swap.tick)

    def restart_server(self) -> None:
        self.server.stop()
        self.server = start_server(self.store, self.control, self.settings)
        self.http.close()
        self.http = self.client()


@contextmanager
def _shops(directory: Path) -> Iterator[Callable[..., Shop]]:
    made: list[Shop] = []

    def make(views: Sequence[str] = ("income",), **store: int) -> Shop:
        settings = Settings(directory / f"shop{len(made)}", store=StoreSettings(**store))
        settings.store_file.parent.mkdir(parents=True)
        opened = open_store(settings.store_file, settings.store)
        generation = opened.claim()
        for view in views:
            opened.create_view(bound_view(view), {0: 0})
        control = PlayedEngine(views=tuple(views))
        server = start_server(opened, control, settings)
        shop = Shop(settings, opened, control, server, httpx.Client(), generation)
        shop.http = shop.client()
        made.append(shop)
        return shop

    yield make
    for shop in made:
        shop.http.close()
        shop.server.stop()
        shop.store.close()


@pytest.fixture
def make_shop(tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    with _shops(tmp_path) as make:
        yield make


@pytest.fixture
def shop(make_shop: Callable[..., Shop]) -> Shop:
    return make_shop()


@pytest.fixture(scope="module")
def empty_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Shared by tests that change nothing."""
    with _shops(tmp_path_factory.mktemp("empty")) as make:
        yield make()
