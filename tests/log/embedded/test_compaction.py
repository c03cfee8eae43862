"""Changelogs: what their table needs stays, all else goes, in one instant, and nobody notices."""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.log.contract import NO_EVENT_TIME, Advance, Group, PartitionBatch
from headrace.log.embedded import compacted as compacted_files
from headrace.log.embedded import compaction
from headrace.log.embedded.archive import archive_directory
from headrace.log.embedded.backend import open_reader, open_writer, verify
from headrace.log.embedded.needed import needed_upto, read_needed
from headrace.model.definitions import Column, Retention, RetentionAction
from headrace.model.errors import LogCorruptError, LogError, LogOffsetError
from headrace.model.settings import GatewaySettings, LogSettings
from headrace.model.types import parse_type

SMALL = LogSettings(segment_bytes_max=4_096, journal_bytes_max=16_384)
COMPACT = Retention(action=RetentionAction.COMPACT)
DELETED = "delete"


@pytest.fixture(autouse=True, scope="module")
def no_waiting_for_the_disk() -> Iterator[None]:
    """No power fails here (test_crashes.py), and most of the time would go there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(os, "fdatasync", lambda _: None)
        yield


@dataclass
class Model:
    """A table with its changelog: `id` is the key, `amount` the value, `user_id` the operation."""

    shop: Any
    directory: Path
    stream: Any = None
    changes: list[tuple[int, str | None, int, int]] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=lambda: [NO_EVENT_TIME])
    upto: int = 0
    needed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stream = self.shop.stream(partitions=1, retention=COMPACT)
        self.reader = open_reader(self.directory, [self.stream])
        self.open()

    def open(self) -> None:
        self.writer = open_writer(self.directory, [self.stream], SMALL, GatewaySettings())

    def close(self) -> None:
        self.writer.close()

    def append(self, changes: list[tuple[int, str | None, int]], advance: int = 0) -> None:
        end = len(self.changes)
        rows = [(key, op, end + n, time) for n, (key, op, time) in enumerate(changes)]
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array([key for key, *_ in rows]),
                pa.array([op for _, op, *_ in rows], pa.string()),
                pa.array([Decimal(value) for _, _, value, _ in rows], pa.decimal128(18, 2)),
                pa.array([time for *_, time in rows], pa.timestamp("us", "UTC")),
                pa.array([1_000] * len(rows), pa.timestamp("us", "UTC")),
            ],
            schema=self.shop.batch(self.stream, 0, 0).schema,
        )
        advances = (Advance("transactions", 0, advance, "idle"),) if advance else ()
        done = self.writer.append(
            Group((PartitionBatch("transactions", 0, batch),), advances=advances)
        )
        self.changes += rows
        self.positions += [done.position] * len(rows)
        for *_, time in rows:
            self.before.append(max(self.before[-1], time))
        self.before[-1] = max(self.before[-1], advance)

    def needed_at(self, upto: int, with_deletes: bool) -> list[int]:
        """A delete that once was not needed never is again."""
        newest = {key: (op, offset) for key, op, offset, _ in self.changes[:upto]}
        left = {offset for offset, _ in self.read()} if with_deletes else set()
        return sorted(o for op, o in newest.values() if op != DELETED or o in left)

    def say(self, upto: int, *, with_deletes: bool = True) -> None:
        needed = np.array(self.needed_at(upto, with_deletes), np.int64)
        self.reader.set_needed("transactions", 0, upto, needed)

    def compact(self, upto: int, *, with_deletes: bool = True) -> int:
        """Say it, let the floor be at the end, and compact."""
        self.say(upto, with_deletes=with_deletes)
        return self.retain(len(self.changes))

    def retain(self, floor: int) -> int:
        self.reader.set_retention_floor({"transactions": (floor,)})
        return int(self.writer.retain(0)["transactions"])

    def table(self, changes: Any) -> dict[int, int]:
        found: dict[int, int] = {}
        for key, op, value, _ in changes:
            found.pop(key, None)
            if op != DELETED:
                found[key] = value
        return found

    def read(self, start: int = 0, end: int | None = None) -> list[tuple[int, Any]]:
        """The history: (offset, change), with everything about each checked."""
        end = len(self.changes) if end is None else end
        return self.taken(self.reader.read_history("transactions", 0, start, end), start, end)

    def taken(self, pieces: Any, start: int, end: int) -> list[tuple[int, Any]]:
        found: list[tuple[int, Any]] = []
        for piece in pieces:
            times = piece.batch.column("created_at").cast("int64").to_numpy()
            for row, (offset, position, before) in enumerate(
                zip(piece.offsets, piece.positions, piece.maxima_before(times), strict=True)
            ):
                change = (
                    piece.batch.column("id")[row].as_py(),
                    piece.batch.column("user_id")[row].as_py(),
                    int(piece.batch.column("amount")[row].as_py()),
                    int(times[row]),
                )
                assert change == self.changes[offset]
                assert position == self.positions[offset]
                assert before == self.before[offset]
                found.append((int(offset), change))
        offsets = [offset for offset, _ in found]
        assert offsets == sorted(set(offsets))
        assert all(start <= offset < end for offset in offsets)
        return found

    def check(self, source: random.Random) -> None:
        """Everything that can be asked, against what the whole history says."""
        end = len(self.changes)
        found = self.read()
        offsets = [offset for offset, _ in found]
        upto, needed = self.reader.compacted("transactions")[0]
        assert offsets[:needed] == [o for o in offsets if o < upto]
        assert offsets[needed:] == list(range(upto, end))
        assert self.table(change for _, change in found) == self.table(self.changes)
        assert self.reader.oldest("transactions") == (0,)
        for _ in range(6):
            start, stop = sorted((source.randint(0, end), source.randint(0, end)))
            within = [o for o in offsets if start <= o < stop]
            assert [o for o, _ in self.read(start, stop)] == within
            assert self.reader.rows_of("transactions", 0, start, stop) == len(within)
            rows = source.randint(0, len(within) + 2)
            cut = self.reader.cut("transactions", 0, start, stop, rows)
            assert cut.rows == min(rows, len(within))
            assert [o for o in within if o < cut.end] == within[:rows]
            if rows >= len(within):
                assert cut.end == stop
            position = source.randint(-1, self.reader.position() + 1)
            (cut_at,) = self.reader.cut_at("transactions", position)
            earlier = [o for o in offsets if self.positions[o] <= position]
            assert [o for o in offsets if o < cut_at] == earlier
            following = next((o for o in offsets if o >= start), end)
            assert self.reader.maximum("transactions", 0, start) == self.before[following]


def group_of(source: random.Random, keys: int) -> list[tuple[int, str | None, int]]:
    return [
        (
            source.randrange(keys),
            DELETED if source.random() < 0.3 else None,
            source.randrange(2_000),
        )
        for _ in range(source.choice((1, 5, 60)))
    ]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 40), groups=st.sampled_from((7, 65_536)))
def test_any_compactions_leave_the_table_that_all_changes_make(
    tmp_path_factory: Any, shop: Any, seed: int, steps: int, groups: int
) -> None:
    source = random.Random(seed)
    model = Model(shop, tmp_path_factory.mktemp("log") / "log")
    with pytest.MonkeyPatch.context() as patch, closing(model):
        patch.setattr(compacted_files, "_ROWS_PER_GROUP", groups)
        for _ in range(steps):
            kind = source.choice(("append", "append", "say", "retain", "reopen", "check"))
            end = len(model.changes)
            if kind == "append":
                advance = source.choice((0, source.randrange(3_000)))
                model.append(group_of(source, 12), advance)
            elif kind == "say":
                model.say(source.randint(0, end), with_deletes=source.random() < 0.5)
            elif kind == "retain":
                said = read_needed(model.directory, "transactions", 0)
                before = model.reader.compacted("transactions")[0]
                floor = source.choice((end, source.randint(0, end)))
                pieces = model.reader.read_history("transactions", 0, 0, end)
                first = list(itertools.islice(pieces, source.randint(0, 1)))
                model.retain(floor)
                after = model.reader.compacted("transactions")[0]
                assert after in (before, (said.upto, len(said.offsets)))
                assert after == before or before[0] < said.upto <= floor
                if after != before:
                    assert [o for o, _ in model.read(0, said.upto)] == said.offsets.tolist()
                if floor == end and said.upto > before[0]:
                    assert after != before
                if first:  # it goes on with what it began with, or says that it cannot
                    try:
                        whole = model.taken([*first, *pieces], 0, end)
                    except LogOffsetError:
                        continue
                    assert model.table(c for _, c in whole) == model.table(model.changes)
            elif kind == "reopen":
                model.writer.close()
                model.open()
            else:
                model.check(source)
        model.compact(len(model.changes), with_deletes=False)
        model.check(source)
        assert verify(model.directory).findings == ()


def filled(shop: Any, tmp_path: Path, groups: int = 10) -> Model:
    """Keys 0 to 19, each changed over and over, in a log with several segments."""
    model = Model(shop, tmp_path / "log")
    for group in range(groups):
        model.append([(key, None, group * 100 + key) for key in range(20)])
    return model


def test_what_one_reader_began_it_ends_whatever_is_compacted(shop: Any, tmp_path: Path) -> None:
    with closing(filled(shop, tmp_path)) as model:
        model.compact(150)
        pieces = model.reader.read_history("transactions", 0, 0, 150)
        first = next(pieces)
        model.append([(key, DELETED, 5_000) for key in range(20)])
        assert model.compact(220, with_deletes=False)
        assert model.read(0, 220) == []
        assert len(model.taken([first, *pieces], 0, 150)) == 20
        assert model.reader.rows_of("transactions", 0, 0, 220) == 0
        assert model.reader.maximum("transactions", 0, 3) == 5_000
        cut = model.reader.cut("transactions", 0, 0, 220, 10)
        assert (cut.start, cut.end, cut.rows) == (0, 220, 0)


def test_readers_in_other_threads_see_whole_tables(shop: Any, tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    with closing(filled(shop, tmp_path, 1)) as model:
        is_done, checked = threading.Event(), [0, 0]

        def look(number: int) -> None:
            reader = open_reader(model.directory, [model.stream])
            while not is_done.is_set() or not checked[number]:
                (end,) = reader.ends("transactions")
                try:
                    pieces = list(reader.read_history("transactions", 0, 0, end))
                except LogOffsetError:
                    continue  # a segment went: it begins anew
                (upto, _) = reader.compacted("transactions")[0]
                if upto <= end:
                    found = model.taken(pieces, 0, end)
                    expected = model.table(model.changes[:end])
                    assert model.table(change for _, change in found) == expected
                    checked[number] += 1

        failures: list[BaseException] = []

        def watched(number: int) -> None:
            try:
                look(number)
            except BaseException as error:
                failures.append(error)
                checked[number] = 1

        threads = [threading.Thread(target=watched, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(40):
                model.append(group_of(source, 12))
                model.compact(len(model.changes), with_deletes=False)
        finally:
            is_done.set()
            for thread in threads:
                thread.join()
        assert not failures, failures
        assert min(checked) > 0


@pytest.mark.parametrize("moved", ["floor", "said"])
def test_what_is_forbidden_meanwhile_does_not_appear(
    shop: Any, tmp_path: Path, monkeypatch: Any, moved: str
) -> None:
    """A rebuild that begins while a file is written reads all that was there."""
    real = compaction.write_compacted
    with closing(filled(shop, tmp_path)) as model:

        def write(*arguments: Any) -> None:
            real(*arguments)
            if moved == "floor":
                model.reader.set_retention_floor({"transactions": (199,)})
            else:
                model.reader.set_needed("transactions", 0, 0, np.empty(0, np.int64))

        monkeypatch.setattr(compaction, "write_compacted", write)
        assert model.compact(200) == 0
        assert len(model.read()) == 200
        monkeypatch.undo()
        assert model.retain(200) == 0 if moved == "said" else model.retain(200) > 0
        assert len(model.read()) == (200 if moved == "said" else 20)


def test_closing_does_not_wait_for_a_compaction(
    shop: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    real = compaction.write_compacted
    with closing(filled(shop, tmp_path)) as model:
        begun = threading.Event()

        def write(file: Path, stream: Any, pieces: Any, needed: Any) -> None:
            def held_up() -> Any:
                begun.set()
                compactor._stopping.wait()
                yield from pieces

            real(file, stream, held_up(), needed)

        compactor = model.writer._keeper.compactor
        monkeypatch.setattr(compaction, "write_compacted", write)
        thread = threading.Thread(target=model.compact, args=(200,))
        thread.start()
        begun.wait()
        model.writer.close()
        thread.join()
        model.open()
        assert len(model.read()) == 200


def test_nothing_goes_that_nobody_spoke_of_whatever_its_age_and_size(
    embedded: Any, shop: Any
) -> None:
    compact = RetentionAction.COMPACT
    retention = Retention(age_microseconds=1, bytes_max=1_000_000, action=compact)
    stream = shop.stream(partitions=2, retention=retention)
    writer, reader = embedded.writer([stream], log=SMALL), embedded.reader([stream])
    for number in range(10):
        writer.append(Group((shop.to(stream, number % 2, number * 50, 50),)))
    reader.set_retention_floor({"transactions": (250, 250)})
    assert writer.retain(10**12) == {"transactions": 0}
    reader.set_needed("transactions", 1, 100, np.array([7, 99]))
    reader.set_retention_floor({"transactions": (250, 99)})
    assert writer.retain(10**12) == {"transactions": 0}, "some view has not read what is before"
    reader.set_retention_floor({})
    assert writer.retain(10**12) == {"transactions": 0}, "no view reads it"
    reader.set_retention_floor({"transactions": (250, 250)})
    assert writer.retain(10**12)["transactions"] > 0
    assert reader.compacted("transactions") == ((0, 0), (100, 2))
    assert [reader.rows_of("transactions", p, 0, 250) for p in (0, 1)] == [250, 152]
    assert shop.rows(reader, "transactions")[0] == 250


def test_what_is_needed_and_lacks_is_an_error_and_holds_up_nobody_else(
    embedded: Any, shop: Any
) -> None:
    stream = shop.stream(partitions=2, retention=COMPACT)
    writer, reader = embedded.writer([stream], log=SMALL), embedded.reader([stream])
    for number in range(10):
        writer.append(Group((shop.to(stream, number % 2, number * 50, 50),)))
    reader.set_retention_floor({"transactions": (250, 250)})
    for partition in (0, 1):
        reader.set_needed("transactions", partition, 100, np.array([7, 99]))
    writer.retain(0)
    reader.set_needed("transactions", 0, 200, np.array([7, 8, 150]))
    reader.set_needed("transactions", 1, 200, np.array([7, 150]))
    with pytest.raises(LogError, match=r"3 changes of transactions before offset 200 .* only 2"):
        writer.retain(0)
    assert reader.compacted("transactions") == ((100, 2), (200, 2))
    for wrong in ([5, 5], [6, 5], [-1], [200]):
        with pytest.raises(LogOffsetError, match="not ascending"):
            reader.set_needed("transactions", 0, 200, np.array(wrong))


def test_a_damaged_segment_is_not_compacted(shop: Any, tmp_path: Path) -> None:
    with closing(filled(shop, tmp_path)) as model:
        model.say(200)
        segment = model.directory / "streams/transactions/0" / f"{0:020d}.segment"
        data = bytearray(segment.read_bytes())
        data[-300] ^= 1
        segment.write_bytes(data)
        with pytest.raises(LogError, match="is damaged at offset"):
            model.retain(200)
        assert segment.exists()


def test_damage_is_found_and_named(shop: Any, tmp_path: Path) -> None:
    with closing(filled(shop, tmp_path)) as model:
        said = model.directory / "needed/transactions/0.parquet"
        model.compact(200)
        model.append([(1, None, 7)] * 100)
        model.say(210)
        assert needed_upto(model.directory, "transactions", 0) == 210
        said.write_bytes(said.read_bytes()[:40])
        with pytest.raises(LogError, match=f"{said} is damaged"):
            model.retain(300)
        table = pa.table({"offset": pa.array([1])})
        pq.write_table(table.replace_schema_metadata({b"headrace.format": b"2"}), said)
        with pytest.raises(LogError, match="has format 2, this version reads up to 1"):
            model.retain(300)
        (file,) = archive_directory(model.directory, "transactions", 0).iterdir()
        assert verify(model.directory).findings == ()
        assert verify(model.directory).events == 120
        data = bytearray(file.read_bytes())
        data[60] ^= 1
        file.write_bytes(data)
        (finding,) = verify(model.directory).findings
        assert finding.file == file
        os.truncate(file, 100)
        (finding,) = verify(model.directory).findings
        assert finding.file == file
        with pytest.raises(LogCorruptError, match=str(file)):
            model.read()


def test_a_column_that_came_later_is_null_in_what_was_compacted_before(
    embedded: Any, shop: Any
) -> None:
    stream = shop.stream(partitions=1, retention=COMPACT)
    writer = embedded.writer([stream], log=SMALL)
    writer.append(Group((shop.to(stream, 0, 0, 50),)))
    embedded.reader([stream]).set_retention_floor({"transactions": (50,)})
    embedded.reader([stream]).set_needed("transactions", 0, 50, np.array([3, 9]))
    writer.retain(0)
    writer.close()
    wider = shop.stream(
        partitions=1, retention=COMPACT, extra=(Column("note", parse_type("STRING")),)
    )
    writer, reader = embedded.writer([wider], log=SMALL), embedded.reader([wider])
    writer.append(Group((shop.to(wider, 0, 50, 20),)))
    for _ in range(2):
        pieces = reader.read_history("transactions", 0, 0, 70, ["note", "id"])
        found = [row for piece in pieces for row in piece.batch.to_pylist()]
        assert found[:2] == [{"note": None, "id": 3}, {"note": None, "id": 9}]
        reader.set_needed("transactions", 0, 70, np.array([3, 9, 60]))
        reader.set_retention_floor({"transactions": (70,)})
        writer.retain(0)
    assert len(found) == 3


def test_what_was_archived_before_is_compacted_with_the_rest(embedded: Any, shop: Any) -> None:
    archived = Retention(age_microseconds=1, action=RetentionAction.ARCHIVE)
    stream = shop.stream(partitions=1, retention=archived)
    writer, reader = embedded.writer([stream], log=SMALL), embedded.reader([stream])
    for number in range(10):
        writer.append(Group((shop.to(stream, 0, number * 50, 50),)))
    reader.set_retention_floor({"transactions": (450,)})
    writer.retain(10**12)
    folder = archive_directory(embedded.directory, "transactions", 0)
    assert len(list(folder.iterdir())) > 3
    writer.close()
    stream = shop.stream(partitions=1, retention=COMPACT)
    writer, reader = embedded.writer([stream], log=SMALL), embedded.reader([stream])
    assert reader.rows_of("transactions", 0, 10, 460) == 450
    reader.set_retention_floor({"transactions": (500,)})
    reader.set_needed("transactions", 0, 490, np.arange(0, 490, 10))
    writer.retain(0)
    assert [file.name for file in folder.iterdir()] == [f"{0:020d}-{500:020d}.parquet"]
    pieces = reader.read_history("transactions", 0, 0, 500, ["id"])
    ids = [i for piece in pieces for i in piece.batch.column("id").to_pylist()]
    assert ids == [*range(0, 490, 10), *range(490, 500)]
