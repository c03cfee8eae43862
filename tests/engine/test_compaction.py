"""The changelog of a table keeps what the table needs, and the table can be built from it again."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from change_cases import Change, folded, moment, random_changes
from engine_fixtures import Rig

from headrace.engine import compaction
from headrace.engine.rebuilds import RebuildAsked
from headrace.log.embedded.needed import needed_upto
from headrace.model.errors import StoreError
from headrace.model.settings import EngineSettings, LogSettings
from headrace.store.contract import Store

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
LOG = LogSettings(segment_bytes_max=16_384, journal_bytes_max=1 << 20)
SMALL = EngineSettings(tick_rows_max=10)
SEQUENCED = """
CREATE TABLE customers (id STRING, name STRING, version INT, PRIMARY KEY (id))
SEQUENCE BY version TOMBSTONES FOR INTERVAL 10 SECONDS INTO 2 PARTITIONS;
"""
PLAIN = "CREATE TABLE customers (id STRING, name STRING, PRIMARY KEY (id));"
Rigs = Callable[..., Rig]


@pytest.fixture(autouse=True)
def few_bytes_are_enough(monkeypatch: Any) -> None:
    monkeypatch.setattr(compaction, "COMPACTION_BYTES_MIN", 1)


def upserts(keys: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"_op": None, "id": f"k{key}", "name": f"n{key}", **more} for key in keys]


def deletes(keys: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"_op": "delete", "id": f"k{key}", **more} for key in keys]


def look(rig: Rig) -> None:
    """What the loop does each second, until nothing is asked any more."""
    assert rig.engine is not None
    compactions = rig.engine._compactions
    for _ in range(100):
        rig.engine._advance_retention_floor()
        compactions.look(rig.engine._all())
        if compactions._asked is None:
            return
        compactions._asked.answer.exception()
    raise AssertionError("it is asked again and again")


def compact(rig: Rig) -> int:
    look(rig)
    return rig.writer.retain(0)["customers"]


def begin_anew(rig: Rig) -> None:
    """As if the store had been lost: all there is is the log."""
    rig.stop()
    for file in rig.settings.store_file.parent.iterdir():
        if file.name.startswith(rig.settings.store_file.name):
            file.unlink()
    rig.start()
    rig.settle()


def rows(rig: Rig) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in rig.rows("customers"))


def held(rig: Rig) -> int:
    ends = rig.reader.ends("customers")
    return sum(rig.reader.rows_of("customers", p, 0, end) for p, end in enumerate(ends))


def append(rig: Rig, changes: Sequence[Change]) -> list[Change]:
    """A group commit for each position; gives the changes with their places in the log."""
    placed = []
    for position in dict.fromkeys(change.position for change in changes):
        parts: dict[int, list[dict[str, Any]]] = {}
        ends = rig.reader.ends("customers")
        for change in (c for c in changes if c.position == position):
            key = change.id or "d"
            partition = ord(key) % 2
            rows = parts.setdefault(partition, [])
            placed.append(
                replace(change, id=key, partition=partition, offset=ends[partition] + len(rows))
            )
            row = {"id": key, "name": change.name, "version": change.sequence}
            if change.deletes:
                row |= {"_op": "delete", "name": None}
            rows.append({**row, "_received_at": moment(change.received * 1_000_000)})
        rig.append_parts("customers", parts)
    return placed


def test_a_table_is_built_anew_from_what_compactions_left(make_rig: Rigs, seed: int) -> None:
    """With sequences out of order and deletes that count only for a time, in ticks of any size.
    Then it goes on as if it had seen all changes."""
    source = random.Random(seed)
    rig = make_rig(SEQUENCED, engine=SMALL, log=LOG)
    rig.start()
    changes = random_changes(source, 240)
    sent: list[Change] = []
    while len(sent) < 160:
        sent += append(rig, changes[len(sent) : len(sent) + source.randrange(10, 40)])
        if source.random() < 0.5:
            rig.settle()
        else:
            rig.engine.step()
        compact(rig)
    rig.settle()
    compact(rig)
    compact(rig)
    assert held(rig) < len(sent)
    begin_anew(rig)
    for more in (changes[len(sent) : 200], changes[max(len(sent), 200) :]):
        assert {row[:2] for row in rows(rig)} == folded(sent).rows
        sent += append(rig, more)
        rig.settle()
    assert {row[:2] for row in rows(rig)} == folded(sent).rows


def test_the_log_of_a_table_stays_as_large_as_the_table(make_rig: Rigs, monkeypatch: Any) -> None:
    """Each key changes 30 times; little is asked and copied for it."""
    asked: list[int] = []
    real = compaction.Compactions._tell

    def tell(self: Any, question: Any) -> None:
        asked.append(question.upto)
        real(self, question)

    monkeypatch.setattr(compaction.Compactions, "_tell", tell)
    rig = make_rig(PLAIN, log=LOG)
    rig.start()
    most = 0
    for round_ in range(30):
        rig.append("customers", upserts(range(200), name=f"round {round_}"))
        rig.settle()
        compact(rig)
        compact(rig)  # the segment that was closed
        most = max(most, held(rig))
    assert most <= 2 * 200 + 200, "twice what is needed, and what has just come"
    assert 10 <= len(asked) <= 30
    assert len(rows(rig)) == 200
    folder = rig.settings.log_directory
    copy = next((folder / "archive").rglob("*.parquet")).stat().st_size
    segments = sum(file.stat().st_size for file in (folder / "streams").rglob("*.segment"))
    assert copy + segments < 60_000, "30 copies have some 300,000"


def test_a_partition_that_became_empty_is_passed_over(make_rig: Rigs) -> None:
    """Its log has nothing but offsets that are to be reached."""
    rig = make_rig(SEQUENCED, engine=SMALL, log=LOG)
    rig.start()
    rig.append("customers", upserts(range(50), version=1, _received_at=EPOCH))
    rig.append("customers", deletes(range(50), version=2, _received_at=EPOCH))
    rig.settle()
    for second in range(100):  # until the deletes of the other partition have been let go
        later = EPOCH + dt.timedelta(seconds=60 + second)
        rig.append("customers", upserts([1], version=second, _received_at=later), partition=1)
        rig.settle()
        if not any(map(len, rig.store.needed_offsets("customers", 0, 100))):
            break
    compact(rig)
    compact(rig)
    before = rows(rig)
    ends = rig.reader.ends("customers")
    assert [rig.reader.rows_of("customers", p, 0, end) for p, end in enumerate(ends)] == [0, 1]
    rig.engine._begin_rebuild("customers", RebuildAsked())
    rig.settle()
    assert rig.control.rebuilt("customers").state == "done"
    begin_anew(rig)
    assert rig.engine._views["customers"].next_offsets == ends
    assert rows(rig) == before
    rig.append("customers", upserts(range(3), version=1))
    rig.settle()
    assert {row[0]: row[2] for row in rows(rig)} == {"k0": 1, "k1": second, "k2": 1}


def test_while_a_copy_is_built_nothing_goes(make_rig: Rigs) -> None:
    rig = make_rig(PLAIN, engine=SMALL, log=LOG)
    rig.start()
    for round_ in range(4):
        rig.append("customers", upserts(range(50), name=f"round {round_}"))
    rig.settle()
    look(rig)
    assert needed_upto(rig.settings.log_directory, "customers", 0) == 200
    rig.engine._begin_rebuild("customers", RebuildAsked())
    assert rig.writer.retain(0) == {"customers": 0}, "the floor forbids it at once"
    rig.engine.step()
    look(rig)
    assert needed_upto(rig.settings.log_directory, "customers", 0) == 0, "taken back"
    assert rig.writer.retain(0) == {"customers": 0}
    assert held(rig) == 200
    rig.settle()
    assert rig.control.rebuilt("customers").state == "done"
    compact(rig)
    assert held(rig) == 50
    assert len(rows(rig)) == 50


def test_what_another_definition_needed_counts_no_more(make_rig: Rigs) -> None:
    rig = make_rig(PLAIN, log=LOG)
    rig.start()
    for round_ in range(4):
        rig.append("customers", upserts(range(50), name=f"round {round_}"))
    rig.settle()
    look(rig)
    rig.stop()
    rig.redefine(PLAIN.replace(";", " WITH HISTORY;"))
    rig.start()
    assert rig.engine._views["customers"].status.state == "changed"
    assert needed_upto(rig.settings.log_directory, "customers", 0) == 0
    look(rig)
    assert compact(rig) == 0
    assert held(rig) == 200
    rig.engine._begin_rebuild("customers", RebuildAsked())
    rig.settle()
    compact(rig)
    assert held(rig) == 200, "all are versions of its history"


def test_what_the_store_cannot_say_keeps_everything(make_rig: Rigs, monkeypatch: Any) -> None:
    rig = make_rig(PLAIN, log=LOG)
    rig.start()
    for round_ in range(4):
        rig.append("customers", upserts(range(50), name=f"round {round_}"))
    rig.settle()

    def broken(*_: Any) -> Any:
        raise StoreError("it cannot be said")

    def broken_later(*_: Any) -> Any:
        yield np.arange(3)
        raise StoreError("it cannot be read")

    for answer in (broken, broken_later):
        monkeypatch.setattr(type(rig.store), "needed_offsets", answer)
        assert compact(rig) == 0
        assert compact(rig) == 0
        rig.append("customers", upserts(range(50), name="again"))
        rig.settle()
    assert held(rig) == 300
    monkeypatch.undo()
    monkeypatch.setattr(compaction, "COMPACTION_BYTES_MIN", 1)
    rig.append("customers", upserts(range(50), name="again"))
    rig.settle()
    compact(rig)
    assert held(rig) == 50


def test_an_engine_that_ends_lets_go_of_what_it_reads(make_rig: Rigs, monkeypatch: Any) -> None:
    rig = make_rig(PLAIN, log=LOG)
    rig.start()
    rig.append("customers", upserts(range(50)))
    rig.settle()
    given: list[Any] = []

    def endless(self: Store, *_: Any) -> Any:
        given.append(arrays := counted())
        return arrays

    def counted() -> Any:
        for number in range(10**9):
            yield np.array([number])

    monkeypatch.setattr(type(rig.store), "needed_offsets", endless)
    rig.engine._compactions.look(rig.engine._all())
    assert given
    rig.stop()
    with pytest.raises(StopIteration):
        next(given[0])
