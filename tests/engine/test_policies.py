"""Late policies of sessions, event groups, sliding windows and days through one engine that is lost
and started anew: rows, revisions, what is final and what subscribers saw are those of a model; the
proof agrees, finds what was tampered with, and says why a row is as it is."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from policy_model import DELAY, EPOCH, KINDS, USERS, Event, Model, Row, definitions, placed
from pyspark.sql import SparkSession
from tampering import tamper

from headrace.proof.comparison import Compared
from headrace.proof.reconcile import reconcile, subject
from headrace.proof.why import Explained, explain

pytestmark = pytest.mark.usefixtures("both_ways")

CLOSING = ("revised", "dropped")  # their views emit on close
RUN = {
    "sided": KINDS,
    "halted": ("session", "parcel"),
    "revised": ("parcel", "sliding"),
    "dropped": ("session", "parcel", "sliding"),
}
FIRST_EVENTS = 20  # all that the stream gets that halts: each halt takes a few ticks
NAMES = ("k", "s", "e", "n", "w", "d", "revision", "final")


def made_up(count: int, seed: int) -> list[Event]:
    chance = random.Random(seed)
    steps = ["up", "on", "on", "down"]
    return placed(
        [
            Event(
                chance.choice(USERS),
                i // 2 + 10 - chance.choice([0, 0, 0, 1, 2, 4, 6, 11]),
                chance.choice(steps),
                chance.randrange(5),
            )
            for i in range(count)
        ]
    )


EVENTS = made_up(75, seed=3)


class Run:
    """One engine with streams of some policies, and a model of each view. The streams get the same
    events."""

    def __init__(self, rig: Any) -> None:
        self.rig = rig
        self.highest: dict[tuple[str, int], int] = {}
        self.decisions: dict[str, dict[tuple[int, int], str]] = {p: {} for p in RUN}
        self.models = {
            (policy, kind): Model(kind, policy, self.decisions[policy])
            for policy, kinds in RUN.items()
            for kind in kinds
        }
        self.taken: list[Event] = []
        self.waiting: dict[str, list[Event]] = {}
        rig.start()

    def append(self, events: list[Event], policies: Iterable[str] = RUN) -> None:
        for policy in policies:
            if policy == "halted" and len(self.taken) >= FIRST_EVENTS:
                continue
            parts: dict[int, list[Event]] = defaultdict(list)
            for event in events:
                parts[event.partition].append(event)
            stored = {p: [e.stored() for e in mine] for p, mine in parts.items()}
            self.rig.append_parts(policy, stored)
            for partition, mine in parts.items():
                newest = max(e.at for e in mine)
                known = self.highest.get((policy, partition), newest)
                self.highest[(policy, partition)] = max(known, newest)
            self.waiting[policy] = events
        self.taken += events

    def settle(self) -> None:
        """Halts are decided by turns; only then do the models know what to do."""
        answers = ("apply", "side", "drop")
        self.rig.settle()
        while self.is_halted:
            decided = self.decisions["halted"]
            answer = answers[len(decided) % 3]
            for place in self.rig.control.resume("halted", answer)[0]:
                decided[place] = answer
            self.rig.engine.decide_what_was_asked()
            self.rig.settle()
        for (policy, _), model in self.models.items():
            for event in self.waiting.get(policy, ()):
                model.take(event)
        self.waiting = {}

    @property
    def is_halted(self) -> bool:
        return any(view.halt is not None for view in self.rig.engine._views.values())

    def apply_aside(self, policy: str) -> None:
        self.rig.control.apply_late(policy, None)
        self.rig.engine.decide_what_was_asked()
        for kind in RUN[policy]:
            model = self.models[(policy, kind)]
            kept = [e for e in model.aside if self.is_dropped(policy, e)]
            model.aside = [e for e in model.aside if e not in kept]
            model.apply_aside()
            model.aside = kept

    def is_dropped(self, policy: str, event: Event) -> bool:
        return self.decisions[policy].get((event.partition, event.offset)) == "drop"

    def more(self, events: list[Event]) -> None:
        """Of the stream whose late events are set aside alone."""
        self.append(placed(events, self.taken), ("sided",))
        self.settle()

    def lose(self) -> None:
        self.rig.lose_store()
        self.rig.start()

    def wanted(self, policy: str, kind: str) -> Counter[Row]:
        watermark = min(self.highest[(policy, partition)] for partition in (0, 1)) - DELAY
        rows = self.models[(policy, kind)].rows(watermark)
        return Counter({r: n for r, n in rows.items() if r[-1] or policy not in CLOSING})

    def rows(self, view: str) -> Counter[Row]:
        return counted(self.rig.rows(view))

    def check(self) -> None:
        for (policy, kind), model in self.models.items():
            view = f"{policy}_{kind}"
            wanted = self.wanted(policy, kind)
            assert self.rows(view) == wanted, view
            assert self.replayed(view) == without_final(wanted), view
            totals = self.rig.store.catalog()[view].totals
            assert (totals.applied, totals.sided + totals.dropped) == model.counts, view
            assert totals.is_conserved

    def replayed(self, view: str) -> Counter[Row]:
        found: Counter[Row] = Counter()
        for change in self.rig.store.changes(view, 0, 10_000):
            before, after = (counted(t.to_pylist()) for t in (change.before, change.after))
            found.subtract(without_final(before))
            found.update(without_final(after))
            assert all(n >= 0 for n in found.values()), "a row was taken back that nobody had seen"
        return +found


def counted(rows: list[dict[str, Any]]) -> Counter[Row]:
    def plain(value: Any) -> Any:
        return int((value - EPOCH).total_seconds()) if hasattr(value, "tzinfo") else value

    return Counter(tuple(plain(row[name]) for name in NAMES) for row in rows)


def without_final(rows: Counter[Row]) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for row, n in rows.items():
        found[row[:-1]] += n
    return found


@pytest.fixture(scope="module")
def run(make_shared_rig: Callable[..., Any]) -> Run:
    """All policies; what was set aside is applied in between, and some is left at the end."""
    emit = dict.fromkeys(CLOSING, "EMIT ON WINDOW CLOSE")
    text = "".join(
        definitions(policy, kinds, emit.get(policy, "")) for policy, kinds in RUN.items()
    )
    rig = make_shared_rig(text)
    made = Run(rig)
    made.append(EVENTS[:FIRST_EVENTS])
    made.settle()
    for policy in ("sided", "halted"):
        made.apply_aside(policy)
    made.append(EVENTS[FIRST_EVENTS:60])
    rig.engine.step()
    made.lose()
    made.settle()
    return made


def test_every_view_is_that_of_the_model(run: Run) -> None:
    run.check()
    assert all(run.models[("sided", kind)].aside for kind in KINDS)
    assert {*run.decisions["halted"].values()} == {"apply", "side", "drop"}


def test_what_is_set_aside_is_listed(run: Run) -> None:
    for (policy, kind), model in run.models.items():
        if policy in CLOSING:
            continue
        sql = (
            f"SELECT _partition AS p, _offset AS o FROM {policy}_late"
            f" WHERE view = '{policy}_{kind}' AND _applied_in_tick IS NULL"
        )
        rows = [row for batch in run.rig.store.query(sql).batches for row in batch.to_pylist()]
        aside = [e for e in model.aside if not run.is_dropped(policy, e)]
        assert Counter((r["p"], r["o"]) for r in rows) == Counter(
            (e.partition, e.offset) for e in aside
        ), (policy, kind)


def test_a_window_is_published_once_when_it_is_final(run: Run) -> None:
    for policy, kind in [key for key in run.models if key[0] in CLOSING]:
        view = f"{policy}_{kind}"
        assert run.rows(view), view
        retracted = 0
        for change in run.rig.store.changes(view, 0, 10_000):
            shown = [*change.before.to_pylist(), *change.after.to_pylist()]
            assert all(row["final"] for row in shown), view
            retracted += change.before.num_rows
        # A session that is over takes in an event that is not late, under every policy.
        assert retracted == 0 or kind == "session" or policy == "revised", view


def test_only_revisions_take_back_what_was_final(run: Run) -> None:
    user, start = next(row[:2] for row in run.wanted("revised", "parcel") if row[1] < row[2])
    tick = run.rig.store.last_tick()
    late = Event(user, start, "on", 1)
    run.append(placed([late], run.taken), ("sided", *CLOSING))
    run.settle()
    run.check()
    for policy, kind in [key for key in run.models if key[0] in CLOSING]:
        changes = run.rig.store.changes(f"{policy}_{kind}", tick, 10)
        retracted = sum(change.before.num_rows for change in changes)
        assert (retracted > 0) == (policy == "revised"), (policy, kind)


def test_a_rebuild_honours_what_operators_decided(run: Run) -> None:
    for policy, kind in (("sided", "session"), ("sided", "parcel"), ("halted", "session")):
        run.rig.control.rebuild(f"{policy}_{kind}")
    run.rig.engine.rebuild_what_was_asked()
    run.settle()
    run.check()


@pytest.fixture(scope="module")
def few_tasks(spark: SparkSession) -> Iterator[None]:
    """Proofs of a few events need few tasks, and are faster than the code that Spark would make
    for them."""
    few = {"spark.sql.shuffle.partitions": "1", "spark.sql.codegen.wholeStage": "false"}
    before = {name: spark.conf.get(name) for name in few}
    for settings in (few, before):
        for name, value in settings.items():
            spark.conf.set(name, value)
        if settings is few:
            yield


@pytest.fixture
def proven(few_tasks: None, spark: SparkSession, tmp_path: Path) -> Callable[..., Compared]:
    def prove(run: Run, view: str) -> Compared:
        file = tmp_path / "rows.parquet"
        snapshot = run.rig.store.snapshot(view, file, {})
        return reconcile(spark, subject(run.rig.settings, run.rig.project, snapshot, file), 5)

    return prove


def test_the_log_gives_the_same_rows(run: Run, proven: Callable[..., Compared]) -> None:
    """Those whose events are set aside are proven once more after a rebuild, below."""
    for view in ("sided_daily", "halted_session", "dropped_sliding"):
        found = proven(run, view)
        assert found.is_equal, (view, found.differences)
        assert found.rows > 1


def test_why_lists_the_events_of_a_row(
    run: Run, few_tasks: None, spark: SparkSession, tmp_path: Path
) -> None:
    def why(view: str, row: Row) -> Explained:
        names = {"k": row[0], "s": (EPOCH + dt.timedelta(seconds=row[1])).isoformat()}
        snapshot = run.rig.store.snapshot(view, tmp_path / "row", names, with_ticks=True)
        what = subject(run.rig.settings, run.rig.project, snapshot, tmp_path / "row")
        return explain(spark, what, 1_000)

    for policy, kind in (("sided", "parcel"), ("sided", "sliding")):
        rows = run.wanted(policy, kind)
        alone = Counter(row[:2] for row in rows.elements())
        row = max((r for r in rows if alone[r[:2]] == 1), key=lambda r: (r[6], r[3]))
        found = why(f"{policy}_{kind}", row)
        taken = [e for e in found.events if e["fate"] in ("applied", "late")]
        assert len(taken) == row[3], (kind, row, found)
        assert sum(e["event"]["weight"] for e in taken) == row[4]
        assert len(found.revisions) == row[6] > 0
        assert {e["event"]["user_id"] for e in found.events} == {row[0]}
        assert all(event["tick"] is not None for event in found.events)


TAMPERED = {
    "session": (
        "UPDATE {0} SET window_start = window_start + INTERVAL 1 SECOND, _rows = _rows + 1"
        " WHERE {mine}",
        "DELETE FROM {1} WHERE k0 = 'b' AND {mine}",
    ),
    "parcel": (
        "DELETE FROM {0} WHERE k0 <> 'c' AND {mine}",
        "UPDATE {1} SET p0 = 9 WHERE {mine}",
    ),
    "sliding": ("UPDATE {0} SET p0 = 7, s1 = 1 WHERE {mine}",),
}


def test_what_was_tampered_with_is_found_and_a_rebuild_ends_it(
    run: Run, proven: Callable[..., Compared]
) -> None:
    """The last test. More events come after the rebuild, for which the state must be right."""
    for kind, changes in TAMPERED.items():
        view = f"sided_{kind}"
        tamper(run.rig.store, view, *changes)
        assert not proven(run, view).is_equal, view
        run.rig.control.rebuild(view)
    run.rig.engine.rebuild_what_was_asked()
    run.settle()
    for kind in TAMPERED:
        assert run.rows(f"sided_{kind}") == run.wanted("sided", kind), kind
    run.more(EVENTS[60:])
    for kind in TAMPERED:
        assert run.rows(f"sided_{kind}") == run.wanted("sided", kind), kind
        assert proven(run, f"sided_{kind}").is_equal, kind
