"""The whole promise at once, through the gateway's code, the log, Spark and the store.

Producers with wrong clocks, numbers that are missing or sent twice, duplicates, disorder, stamps
from the far future, heartbeats and idle partitions feed every kind of window under every late
policy, over random ticks and crashes. Rows, revisions, what is final, what was set aside or
dropped, the changes and the sums of the ledger equal a model of the definitions, before and after
everything is computed again with ticks of another size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from event_model import SECOND, Event, Outcome, Place, Policy
from every_window import POLICIES, START, VIEWS, View, definitions, shown
from gateway_feed import ExpectedLog, Feed, Sent, moment
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matching_rows import assert_same_rows

from headrace.model.settings import EngineSettings
from headrace.store.contract import StoredDecision

pytestmark = pytest.mark.usefixtures("both_ways")

HALF = SECOND // 2
DECISIONS = ("apply", "side", "drop")
SEEDS = st.integers(0, 2**32 - 1).filter(bool)  # else every run would begin, and end, with 0


class Lost(BaseException):
    """The process dies here."""


@dataclass
class Truth:
    """One stream with all views on it: driven, and known."""

    rig: Any
    word: str
    random: Random
    now: int = START
    requests: list[Sent] = field(default_factory=list)
    next_number: Counter[str] = field(default_factory=Counter)
    decisions: dict[Place, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rig = self.rig
        self.feed = Feed(rig.project, "readings", rig.writer, rig.reader)
        self.log = ExpectedLog(self.feed.stream)

    # ------------------------------------------------------------------------------- what happens

    def act(self) -> None:
        self.now += self.random.choice([0, 0, 1, 1, 2, 4]) * HALF
        actions = {
            self.send: 10,
            self.send_again: 2,
            self.beat: 1,
            self.wait: 1,
            self.step: 3,
            self.settle: 1,
            self.crash: 1,
        }
        (action,) = self.random.choices(list(actions), list(actions.values()))
        action()

    def send(self) -> None:
        self._deliver([self._made() for _ in range(self.random.choice([1, 1, 2]))])

    def _made(self) -> Sent:
        """The clock of `q` is half a minute slow, that of `r` a second fast, `s` is in 1970, and
        `t` is far ahead."""
        random = self.random
        producer = random.choice("ppqrst")
        offset = {"p": 0, "q": -30 * SECOND, "r": SECOND, "s": -START, "t": 40 * SECOND}[producer]
        clock = self.now + offset
        says_when = random.random() < 0.9 or producer == "s"
        sent_at = clock - random.choice([0, 1]) * HALF if says_when else None
        in_header = random.random() < 0.5
        records = []
        for _ in range(random.randint(1, 6)):
            lag = random.choice([0, 0, 0, 1, 1, 2, 3, 4, 5, 8, 12, 20, 40]) * HALF
            stamp = None if in_header else sent_at
            records.append(self._record(random.choice(["a", "b", "c", None]), clock, lag, stamp))
        return self._request(producer, records, sent_at if in_header else None)

    def _record(self, key: Any, clock: int, lag: int, sent_at: int | None) -> dict[str, Any]:
        random = self.random
        return {
            "key": key,
            "at": moment(max(clock or self.now, lag) - lag),
            "sent_at": None if sent_at is None else moment(sent_at),
            "status": random.choice(["open", "close", "on", "on", None]),
            "number": random.choice([0, 1, 2, 3, 4, 5, 6, 7]),
            "amount": random.choice([None, Decimal(random.randrange(-9_999, 9_999)) / 100]),
            "value": random.choice([None, random.uniform(0, 1e6), random.uniform(0, 1)]),
        }

    def _request(self, producer: str, records: list[Any], sent_at: int | None) -> Sent:
        first = self.next_number[producer] + self.random.choice([0, 0, 0, 0, 1, 3])
        self.next_number[producer] = first + len(records)
        return Sent(producer, first, tuple(records), sent_at)

    def send_again(self) -> None:
        """The whole of a request, or beginning earlier: what is missing there may be filled."""
        if not self.requests:
            return
        sent = self.random.choice(self.requests)
        if self.random.random() < 0.5 and sent.first > 2:
            sent = replace(sent, first=sent.first - 2, records=(*sent.records[:1], *sent.records))
        same_key = [r for r in self.requests if _retry_key(r) == _retry_key(sent)]
        if all(one.records == sent.records for one in same_key):  # others are refused
            self._deliver([sent])

    def _deliver(self, sent: Sequence[Sent]) -> None:
        self.feed.send(sent, self.now)
        self.requests += sent
        self.log.take(sent, self.now)
        self._decide_some()

    def beat(self) -> None:
        up_to = self.now - self.random.randrange(10) * HALF
        self.feed.beat(up_to, self.now)
        self.log.complete(up_to)

    def wait(self) -> None:
        self.now += self.random.choice([4, 12]) * SECOND
        for partition, maximum in self.feed.look_for_idle(self.now).items():
            self.log.advance(partition, maximum)

    def step(self) -> None:
        self.rig.engine.step()

    def crash(self) -> None:
        """Between two ticks, or in one: before its transaction, in it, or right after."""
        store, where = self.rig.store, self.random.choice(["between", "before", "within", "after"])
        commit = store.commit

        def die(*given: Any) -> Any:
            if where == "within":
                store._commits._ledger.add_tick = die_at_once
            if where != "before":
                commit(*given)
            raise Lost

        def die_at_once(*given: Any) -> Any:
            raise Lost

        if where != "between":
            store.commit = die
        with suppress(Lost):
            self.rig.engine.step()
        self.rig.lose_store()
        self.rig.start()

    def replay(self) -> None:
        """All of it, in a new store, or view by view beside the others; ticks of another size."""
        rows = self.random.choice([7, 40, 1_000])
        is_new = self.random.random() < 0.5
        self.rig.lose_store()
        self.rig.settings = replace(self.rig.settings, engine=_ticks_of(rows))
        if is_new:
            for file in self.rig.settings.store_file.parent.glob("*.duckdb*"):
                file.unlink()
        self.rig.start()
        if is_new:
            for place, decision in self.decisions.items():
                self._record_decision(place, decision)
        else:
            chosen = [view for view in VIEWS if self.random.random() < 0.7]
            for view in chosen:
                self.rig.control.rebuild(view)
            self.rig.engine.rebuild_what_was_asked()
        self.settle()

    # -------------------------------------------------------------------------------- of HALT

    def settle(self) -> None:
        """To the end of the log: a stream that halts is decided event by event."""
        self.rig.settle()
        while self.halted() is not None:
            assert self.halted() in self.undecided()
            decision = self.random.choice(DECISIONS)
            places, recorded = self.rig.control.resume("readings", decision)
            self.decisions |= dict.fromkeys(places, decision)
            self.rig.engine.decide_what_was_asked()
            assert recorded.done()
            self.rig.settle()
        assert self.offsets() == self.log.ends

    def halted(self) -> Place | None:
        halts = {view.halt for view in self.rig.engine._views.values()}
        assert len(halts) == 1, "they stop together"
        halt = halts.pop()
        if halt is None:
            return None
        assert self.offsets()[halt.partition] == halt.offset
        return halt.partition, halt.offset

    def undecided(self) -> set[Place]:
        """Of each partition the first late event that nobody has decided."""
        found: dict[int, int] = {}
        for view in VIEWS.values():
            for partition, offset in self.outcome(view, self.log.ends).late_places:
                if (partition, offset) not in self.decisions:
                    found[partition] = min(offset, found.get(partition, offset))
        return set(found.items())

    def _decide_some(self) -> None:
        """Most late events are decided before the engine sees them; what that makes of later ones
        is another matter, so the first of each partition is decided first."""
        if self.word != "halt":
            return
        while self.random.random() < 0.8 and (places := self.undecided()):
            for place in places:
                self.decisions[place] = self.random.choice(DECISIONS)
                self._record_decision(place, self.decisions[place])

    def _record_decision(self, place: Place, decision: str) -> None:
        self.rig.store.decide(StoredDecision("readings", *place, decision))

    # --------------------------------------------------------------------------- what must be true

    def offsets(self) -> tuple[int, ...]:
        found = {view.next_offsets for view in self.rig.engine._views.values()}
        assert len(found) == 1
        offsets: tuple[int, ...] = found.pop()
        return offsets

    def outcome(self, view: View, offsets: Sequence[int]) -> Outcome:
        policy = Policy(self.word, 4 * SECOND, self.decisions)
        return view.find([e for e in self._read(offsets) if not _is_filtered(view, e)], policy)

    def _read(self, offsets: Sequence[int]) -> list[Event]:
        return [e for e in self.log.events if e.place[1] < offsets[e.place[0]]]

    def check(self) -> None:
        offsets = self.offsets()
        for name, view in VIEWS.items():
            self._check_view(name, view, offsets)
        read = len(self._read(offsets))
        totals = self.rig.store.streams()["readings"].totals
        assert (totals.advanced, totals.accepted, totals.dead) == (sum(offsets), read, 0)
        assert totals.is_conserved

    def check_gateway(self) -> None:
        wanted, counts = self.log.counts, self.feed.counts
        assert counts.appended == wanted["appended"] == sum(self.log.ends)
        assert (counts.received, counts.retried, counts.dead) == (
            wanted["received"], wanted["retried"], wanted["dead"]
        )  # fmt: skip
        found = self.rig.writer.completeness("readings")
        assert (found.producers, found.missing, found.late_fills, found.duplicates) == (
            len(self.log.numbers), self.log.missing, wanted["late_fills"], wanted["retried"]
        )  # fmt: skip

    def _check_view(self, name: str, view: View, offsets: Sequence[int]) -> None:
        outcome, watermark = self.outcome(view, offsets), self.log.watermark(offsets)
        rows = [shown(row, watermark) for row in outcome.rows]
        found = self.rig.rows(name)
        is_windowed = name != "total"
        expected = [
            {n: value for n, value in row.items() if not found or n in found[0]}
            for row in rows
            if row["final"] or not view.emits_on_close
        ]
        assert not found or ("final" in found[0]) == is_windowed
        assert_same_rows(found, expected, name)
        assert_same_rows(self._replayed(name), _without_final(expected), f"changes of {name}")
        self._check_totals(name, view, outcome, offsets)

    def _check_totals(
        self, name: str, view: View, outcome: Outcome, offsets: Sequence[int]
    ) -> None:
        events = self._read(offsets)
        duplicate = sum(offset < offsets[partition] for partition, offset in self.log.duplicates)
        aside = {place: self._fate(place) for place in outcome.left_out}
        wanted = {
            "read": len(events),
            "applied": outcome.applied,
            "filtered": sum(_is_filtered(view, event) for event in events),
            "late": outcome.late,
            "sided": list(aside.values()).count("side"),
            "dropped": list(aside.values()).count("drop"),
            "dead": 0,
            "duplicate": duplicate,
        }
        totals = self.rig.store.catalog()[name].totals
        assert {word: getattr(totals, word) for word in wanted} == wanted, (name, totals, wanted)
        assert totals == self.rig.engine._views[name].totals
        fates = {word: self._missed(outcome, word) for word in ("side", "drop")}
        found = (self._sided(name), self._dropped(name))
        dropped: Counter[Any] = Counter()
        for (_, span), count in fates["drop"].items():
            dropped[span] += count
        assert found == (fates["side"], dropped), (name, found, fates)

    def _missed(self, outcome: Outcome, fate: str) -> Counter[Any]:
        found: Counter[Any] = Counter()
        for (place, span), count in outcome.aside.items():
            if self._fate(place) == fate:
                found[place, span] += count
        return found

    def _dropped(self, view: str) -> Counter[Any]:
        found: Counter[Any] = Counter()
        for d in self.rig.store.late("readings", 10_000).dropped:
            span = (d.window_start_microseconds, d.window_end_microseconds)
            if d.view == view:
                found[span] += d.events
        return found

    def _fate(self, place: Place) -> str:
        """What becomes of a late event that is not applied."""
        return {"within": "side", "halt": self.decisions.get(place, "")}.get(self.word, self.word)

    def _sided(self, view: str) -> Counter[Any]:
        if self.word == "revise":
            return Counter()  # such a stream has no table of late events
        sql = (
            "SELECT _partition, _offset, epoch_us(window_start) AS s, epoch_us(window_end) AS e"
            f" FROM readings_late WHERE view = '{view}'"
        )
        rows = [row for batch in self.rig.store.query(sql).batches for row in batch.to_pylist()]
        return Counter(((r["_partition"], r["_offset"]), (r["s"], r["e"])) for r in rows)

    def _replayed(self, view: str) -> list[dict[str, Any]]:
        """What someone holds who took every change in its order, and found no row missing."""
        held: Counter[tuple[tuple[str, Any], ...]] = Counter()
        for change in self.rig.store.changes(view, 0, 100_000):
            gone = Counter(tuple(r.items()) for r in _without_final(change.before.to_pylist()))
            assert gone <= held, (view, change.tick)
            held -= gone
            held.update(tuple(r.items()) for r in _without_final(change.after.to_pylist()))
        return [dict(row) for row in held.elements()]


def _retry_key(sent: Sent) -> tuple[str, int, int]:
    return sent.producer, sent.first, len(sent.records)


def _is_filtered(view: View, event: Event) -> bool:
    return view.is_without_threes and event.columns["number"] == 3


def _without_final(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows become final without a change."""
    return [{name: value for name, value in row.items() if name != "final"} for row in rows]


def _ticks_of(rows: int) -> EngineSettings:
    return EngineSettings(cores=1, tick_rows_max=rows)


@pytest.mark.parametrize("word", POLICIES)
@settings(
    max_examples=1,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=SEEDS, actions=st.integers(14, 22))
def test_everything_is_true_at_once(
    make_rig: Callable[..., Any], word: str, seed: int, actions: int
) -> None:
    """The first actions of a seed do not depend on how many there are: fewer may fail alike."""
    random = Random(seed)
    rig = make_rig(definitions(word), _ticks_of(random.choice([5, 12, 40, 1_000])))
    truth = Truth(rig, word, random)
    rig.start()
    for _ in range(actions):
        truth.act()
    truth.rig.settle()
    truth.check()  # also of a stream that halts, right where it stands
    truth.settle()
    truth.check()
    truth.check_gateway()
    truth.replay()
    truth.check()
    rig.stop()
