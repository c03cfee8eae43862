"""Random groups, random crash points, random disk faults, against a model of what was acknowledged.

`Disk` stands between the log and the kernel. It dies, loses power or fails at a chosen call; after
a loss of power, what was not fsynced is there, gone, or there in part.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.log.contract import (
    NO_EVENT_TIME,
    Advance,
    DeadLetter,
    Group,
    ProducerRange,
    Receipt,
    heard_note,
    repeat_note,
)
from headrace.log.embedded import commits
from headrace.log.embedded import segment_reading as reading
from headrace.log.embedded.backend import open_reader, open_writer, verify
from headrace.log.embedded.retention_floor import write_retention_floor
from headrace.model.definitions import Retention, RetentionAction
from headrace.model.errors import LogError
from headrace.model.settings import GatewaySettings, LogSettings

SMALL = LogSettings(segment_bytes_max=4_096, journal_bytes_max=8_192)
SECTOR_BYTES = 512
CALLS = (
    "pwritev",
    "fdatasync",
    "fsync",
    "ftruncate",
    "truncate",
    "posix_fallocate",
    "rename",
    "replace",
    "unlink",
    "mkdir",
)


class Dead(BaseException):
    """The process has ended: no call reaches the kernel any more."""


class AtOnce:
    """Runs checkpoints in the caller's thread, so that one seed is one order of calls."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, function: Callable[..., None], *arguments: Any) -> Future[None]:
        future: Future[None] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self) -> None:
        pass


class Disk:
    def __init__(self, root: Path, source: random.Random) -> None:
        self.root, self.source = root, source
        self.fault: str = ""
        self.countdown = 0
        self.real = {name: getattr(os, name) for name in CALLS} | {"open": os.open}
        self.synced: dict[int, bytes] = {}
        self.names: dict[str, set[str]] = {}

    def arm(self, fault: str, countdown: int) -> None:
        self.fault, self.countdown = fault, countdown

    @contextmanager
    def installed(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self._wrapped(name))
            patch.setattr(os, "open", self._open)
            patch.setattr(commits, "ThreadPoolExecutor", AtOnce)
            yield

    def _wrapped(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self.fault:
                self.countdown -= 1
                if self.countdown <= 0:
                    self._fail(name, arguments)
            if name not in ("fsync", "fdatasync"):
                return self.real[name](*arguments, **options)
            # What the real one adds no test can see, and most of the time would go there.
            return self._remember(arguments[0])

        return call

    def _fail(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "pwritev" and self.countdown == 0:
            descriptor, views, position = arguments
            data = b"".join(bytes(view) for view in views)
            os.pwrite(descriptor, data[: self.source.randrange(len(data) + 1)], position)
        if self.fault == "error":
            if self.source.random() < 0.7:
                self.fault = ""  # the disk has room again
            raise OSError(errno.ENOSPC, "no space left on device (injected)")
        raise Dead

    def _open(self, path: Any, flags: int, *mode: Any, **options: Any) -> int:
        if self.fault in ("kill", "power") and self.countdown <= 0:
            raise Dead
        is_new = bool(flags & os.O_CREAT) and not Path(path).exists()
        descriptor: int = self.real["open"](path, flags, *mode, **options)
        if is_new:
            self.synced.pop(os.fstat(descriptor).st_ino, None)
        return descriptor

    def _remember(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            self.names[str(path)] = {file.name for file in path.iterdir()}
        else:
            self.synced[path.stat().st_ino] = path.read_bytes()

    def lose_power(self) -> None:
        reading._shared.clear()  # readers end as well
        for folder, _, files in os.walk(self.root):
            for name in files:
                file = Path(folder) / name
                if name in ("lock", "layout.json"):
                    continue
                if name not in self.names.get(folder, set()) and self.source.random() < 0.5:
                    file.unlink()
                    continue
                current = file.read_bytes()
                synced = self.synced.get(file.stat().st_ino, b"")
                if current != synced:
                    file.write_bytes(self._mixed(name, current, synced))

    def _mixed(self, name: str, current: bytes, synced: bytes) -> bytes:
        if name == "ends" or self.source.random() < 0.3:
            return self.source.choice((current, synced))
        length = self.source.choice((len(current), len(synced)))
        pieces = []
        for at in range(0, length, SECTOR_BYTES):
            piece = self.source.choice((current, synced))[at : at + SECTOR_BYTES]
            pieces.append(piece.ljust(min(SECTOR_BYTES, length - at), b"\0"))
        return b"".join(pieces)


PLACES = (("transactions", 0), ("transactions", 1), ("refunds", 0))


def raised_by(group: int) -> int:
    """How far a group's advances go: beyond its events, not as far as the next group's."""
    return group * 1_000_000 + 999_000


def maxima_read(reader: Any, stream: str, partition: int) -> list[int]:
    """The maximum before each event, and at the end."""
    found: list[int] = []
    for piece in reader.read(stream, partition, 0, reader.ends(stream)[partition]):
        raised, maximum = dict(piece.maxima), piece.maximum_before
        for row, time in enumerate(piece.batch.column("created_at").cast("int64").to_pylist()):
            found.append(max(maximum, raised.get(row, maximum)))
            maximum = max(found[-1], time)
    return [*found, reader.maxima(stream)[partition]]


def positions_read(reader: Any, stream: str, partition: int) -> list[int]:
    pieces = reader.read_history(
        stream, partition, reader.oldest(stream)[partition], reader.ends(stream)[partition]
    )
    return [int(position) for piece in pieces for position in piece.positions]


class Model:
    """What was acknowledged, and the one group whose answer never came."""

    def __init__(self, shop: Any) -> None:
        self.shop = shop
        self.streams = [shop.stream(partitions=2), shop.stream("refunds", partitions=1)]
        self.stored: list[list[tuple[int, int]]] = []
        self.open_group: list[tuple[int, int]] | None = None
        self.resolved: set[int] = set()

    def group(self, parts: list[tuple[int, int]]) -> Group:
        number = len(self.stored)
        places = [(self.streams[0], 0), (self.streams[0], 1), (self.streams[1], 0)]
        batches = tuple(self.shop.to(*places[at], number * 1_000, rows) for at, rows in parts)
        advances = tuple(
            Advance(places[at][0].name, places[at][1], raised_by(number), "idle")
            for at, _ in parts
            if number % 2
        )
        rows = sum(rows for _, rows in parts)
        line = ProducerRange("transactions", "p", 0, number * 1_000, max(rows, 1))
        receipt = Receipt(b"%d" % number, b"", b"", number, (line,))
        receipts = (receipt, *self.notes(number))
        letter = DeadLetter("refunds", number, "", b"raw", 0)
        return Group(batches, receipts, (letter,), advances)

    def notes(self, number: int) -> list[Receipt]:
        """Numbers of other producers on `refunds`: out of order, again, of several epochs, or only
        a sign of life. What group `number` holds follows from the number alone."""
        source = random.Random(number)
        made = []
        for key in range(source.randrange(3)):
            at = number * 10 + key
            if source.random() < 0.2:
                made.append(heard_note(at, "refunds", source.choice("qr")))
                continue
            item = ProducerRange(
                "refunds",
                source.choice("qr"),
                source.choice((0, 0, 1, 3)),
                source.randrange(40),
                source.randrange(1, 7),
                source.choice((NO_EVENT_TIME, at * 7 % 50)),
            )
            is_note = source.random() < 0.5
            whole = Receipt(b"%d/%d" % (number, key), b"", b"", at, (item,))
            made.append(repeat_note(at, item) if is_note else whole)
        return made

    def check(self, directory: Path, writer: Any) -> None:
        number = len(self.stored)
        if self.open_group is not None and writer.receipt(b"%d" % number) is not None:
            self.stored.append(self.open_group)
        self.open_group = None
        reader = open_reader(directory, self.streams)
        assert writer.receipt(b"%d" % len(self.stored)) is None
        expected: dict[int, list[int]] = {0: [], 1: [], 2: []}
        maxima: dict[int, list[int]] = {at: [NO_EVENT_TIME] for at in expected}
        present = 0
        for group_number, parts in enumerate(self.stored):
            assert writer.receipt(b"%d" % group_number) is not None
            present += max(sum(rows for _, rows in parts), 1)
            for at in {at for at, rows in parts if at < 2 and (rows or group_number % 2)}:
                begun = [m[-1] for m in (maxima[0], maxima[1]) if m != [NO_EVENT_TIME]]
                if maxima[at] == [NO_EVENT_TIME] and begun:
                    maxima[at] = [min(begun)]
            for at, rows in parts:
                ids = range(group_number * 1_000, group_number * 1_000 + rows)
                expected[at] += ids
                for number in ids:
                    maxima[at].append(max(maxima[at][-1], number * 1_000))
            for at, _ in parts:
                if group_number % 2:
                    maxima[at][-1] = max(maxima[at][-1], raised_by(group_number))
        assert self.shop.ids(reader, "transactions", 0) == expected[0]
        assert self.shop.ids(reader, "transactions", 1) == expected[1]
        assert self.shop.ids(reader, "refunds", 0) == expected[2]
        for at, place in enumerate(PLACES):  # an event's id tells its group
            assert positions_read(reader, *place) == [number // 1_000 for number in expected[at]]
        assert reader.position() == len(self.stored) - 1
        found = [maxima_read(reader, *place) for place in PLACES]
        assert found == [maxima[at] for at in sorted(maxima)]
        letters = [x.number for x in reader.dead_letters(None, -1, 10**6)]
        assert letters == [n for n in range(len(self.stored)) if n not in self.resolved]
        numbers = writer.present(ProducerRange("transactions", "p", 0, 0, 10**9))
        assert sum(end - first for first, end in numbers) == present
        self.check_lines(writer)

    def check_lines(self, writer: Any) -> None:
        naive = self.shop.naive_lines()
        for number in range(len(self.stored)):
            for note in self.notes(number):
                naive.add(note.ranges[0], note.received_at_microseconds)
        assert writer.producers("refunds", "", 10) == naive.reports()
        assert writer.completeness("refunds") == naive.total()


PARTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=3)
LIFE = st.tuples(
    st.lists(PARTS, max_size=12), st.sampled_from(["kill", "power"]), st.integers(1, 120)
)


@settings(max_examples=20, deadline=None)
@given(lives=st.lists(LIFE, min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_a_crash_at_any_call_keeps_exactly_what_was_acknowledged(
    lives: list[tuple[list[Any], str, int]], seed: int, shop: Any
) -> None:
    with temporary_log() as directory:
        disk, model = Disk(directory, random.Random(seed)), Model(shop)
        with disk.installed():
            for groups, fault, countdown in lives:
                with opened(directory, model) as writer:
                    model.check(directory, writer)
                    disk.arm(fault, countdown)
                    try:
                        for parts in groups:
                            model.open_group = parts
                            writer.append(model.group(parts))
                            model.stored.append(parts)
                            model.open_group = None
                    except Dead:
                        pass
                    disk.fault = ""
                if fault == "power":
                    disk.lose_power()
                # Opening may be cut short as well, any number of times.
                disk.arm(fault, disk.source.randrange(1, 40))
                try:
                    open_writer(directory, model.streams, SMALL, GatewaySettings()).close()
                except Dead:
                    disk.fault = ""
                    if fault == "power":
                        disk.lose_power()
                disk.fault = ""
            with opened(directory, model) as writer:
                model.check(directory, writer)
            assert verify(directory).findings == ()


@settings(max_examples=20, deadline=None)
@given(
    faults=st.lists(st.tuples(PARTS, st.integers(0, 30)), min_size=1, max_size=25),
    seed=st.integers(0, 2**32),
)
def test_a_failing_disk_never_leaves_half_a_group(
    faults: list[tuple[list[Any], int]], seed: int, shop: Any
) -> None:
    with temporary_log() as directory:
        disk, model = Disk(directory, random.Random(seed)), Model(shop)
        with disk.installed(), ExitStack() as stack:
            writer = stack.enter_context(opened(directory, model))
            reader = open_reader(directory, model.streams)
            for parts, countdown in faults:
                if countdown:
                    disk.arm("error", countdown)
                ends = reader.ends("transactions") + reader.ends("refunds")
                try:
                    writer.append(model.group(parts))
                    model.stored.append(parts)
                except LogError:
                    model.open_group = parts
                    assert reader.ends("transactions") + reader.ends("refunds") == ends
                disk.fault = ""
                if model.open_group is not None:
                    try:
                        writer.resolve_dead_letters([])
                        assert writer.receipt(b"%d" % len(model.stored)) is None
                        model.open_group = None
                    except LogError:
                        writer.close()
                        writer = stack.enter_context(opened(directory, model))
                        model.check(directory, writer)
            model.check(directory, writer)
            writer.close()
            with opened(directory, model) as writer:
                model.check(directory, writer)


@pytest.mark.parametrize("fault", ["kill", "power"])
def test_a_crash_while_events_are_archived_loses_and_doubles_none(
    shop: Any, seed: int, fault: str
) -> None:
    """At each call that retention makes, between the archive, the new start and the removal too."""
    archived = Retention(age_microseconds=1, action=RetentionAction.ARCHIVE)
    stream = shop.stream(partitions=1, retention=archived)
    calls, is_done = 0, False
    while not is_done:
        calls += 1
        with temporary_log() as directory:
            disk = Disk(directory, random.Random(seed + calls))
            with disk.installed():
                with closing(open_writer(directory, [stream], SMALL, GatewaySettings())) as writer:
                    for number in range(4):
                        writer.append(Group((shop.to(stream, 0, number * 1_000, 20),)))
                    write_retention_floor(directory, {"transactions": (60,)})
                    disk.arm(fault, calls)
                    try:
                        writer.retain(10**12)
                        is_done = True
                    except Dead:
                        pass
                    disk.fault = ""
                if fault == "power":
                    disk.lose_power()
                for number in (4, 5):
                    with closing(
                        open_writer(directory, [stream], SMALL, GatewaySettings())
                    ) as writer:
                        writer.append(Group((shop.to(stream, 0, number * 1_000, 20),)))
                        reader = open_reader(directory, [stream])
                        assert reader.oldest("transactions") == (0,)
                        found = reader.read_history("transactions", 0, 0, (number + 1) * 20)
                        ids = [i for piece in found for i in piece.batch.column("id").to_pylist()]
                        groups = range(number + 1)
                        assert ids == [g * 1_000 + row for g in groups for row in range(20)]
                        positions = positions_read(reader, "transactions", 0)
                        assert positions == [number // 1_000 for number in ids]
                        writer.retain(10**12)
                assert verify(directory).findings == ()
    assert calls > 10


@pytest.mark.parametrize("fault", ["kill", "power"])
def test_a_crash_while_a_changelog_is_compacted_shows_all_of_it_or_what_is_needed(
    shop: Any, seed: int, fault: str
) -> None:
    """At each call that a second compaction makes: also between the new file's name, the new start
    and the removals. Nothing between the two is ever seen, nor a mixture."""
    stream = shop.stream(partitions=1, retention=Retention(action=RetentionAction.COMPACT))
    first, second = np.arange(0, 40, 2), np.arange(0, 75, 14)
    calls, is_done, seen = 0, False, set()
    while not is_done:
        calls += 1
        with temporary_log() as directory:
            disk = Disk(directory, random.Random(seed + calls))
            reader = open_reader(directory, [stream])
            with disk.installed():
                with closing(open_writer(directory, [stream], SMALL, GatewaySettings())) as writer:
                    for number in range(4):
                        writer.append(Group((shop.to(stream, 0, number * 20, 20),)))
                        if number == 2:
                            reader.set_retention_floor({"transactions": (60,)})
                            reader.set_needed("transactions", 0, 40, first)
                            assert writer.retain(0)["transactions"]
                    reader.set_retention_floor({"transactions": (80,)})
                    disk.arm(fault, calls)
                    try:
                        reader.set_needed("transactions", 0, 75, second)
                        writer.retain(0)
                        is_done = True
                    except Dead:
                        pass
                    disk.fault = ""
                if fault == "power":
                    disk.lose_power()
                states = {
                    "before": [*first.tolist(), *range(40, 80)],
                    "after": [*second.tolist(), *range(75, 80)],
                }
                for number in (4, 5):
                    with closing(
                        open_writer(directory, [stream], SMALL, GatewaySettings())
                    ) as writer:
                        writer.append(Group((shop.to(stream, 0, number * 20, 20),)))
                        reader = open_reader(directory, [stream])
                        assert reader.oldest("transactions") == (0,)
                        end = (number + 1) * 20
                        pieces = list(reader.read_history("transactions", 0, 0, end))
                        ids = [i for p in pieces for i in p.batch.column("id").to_pylist()]
                        assert [o for p in pieces for o in p.offsets] == ids
                        assert reader.rows_of("transactions", 0, 0, end) == len(ids)
                        known = [name for name, expected in states.items() if ids[:-20] == expected]
                        assert known, "a mixture"
                        seen.add(known[0])
                        states = {known[0]: ids} | (
                            {"after": states["after"] + ids[-20:]} if "after" in states else {}
                        )
                        writer.retain(0)
                        names = [f.name for f in (directory / "archive").rglob("*.parquet")]
                        assert len(names) == 1, "what it covers is gone, what was begun too"
                assert verify(directory).findings == ()
    assert calls > 10
    assert seen == {"before", "after"}


@contextmanager
def opened(directory: Path, model: Model) -> Iterator[Any]:
    with closing(open_writer(directory, model.streams, SMALL, GatewaySettings())) as writer:
        yield writer


@contextmanager
def temporary_log() -> Iterator[Path]:
    parent = Path(tempfile.mkdtemp())
    try:
        yield parent / "log"
    finally:
        shutil.rmtree(parent)
