"""What only the embedded backend promises: files, bounds, locks between processes, a full disk."""

from __future__ import annotations

import itertools
import random
import struct
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import log_cases
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.log.contract import NO_EVENT_TIME, Group, ProducerRange, Receipt
from headrace.log.embedded import checkpoints
from headrace.log.embedded.backend import open_reader, open_writer, verify
from headrace.log.embedded.ends import EMPTY_SLOT, EndsReader, EndsWriter
from headrace.log.sequences.producers import Producers
from headrace.model.errors import LogError, LogLockedError
from headrace.model.settings import GatewaySettings, LogSettings

LOCKER = """
import sys
from pathlib import Path
from headrace.log.embedded.backend import open_writer
from headrace.model.settings import GatewaySettings, LogSettings
writer = open_writer(Path(sys.argv[1]), [], LogSettings(), GatewaySettings())
print("open", flush=True)
sys.stdin.read()
"""


def test_the_lock_names_its_holder_and_ends_with_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        with pytest.raises(LogLockedError, match=f"process {process.pid}"):
            open_writer(tmp_path / "log", [], LogSettings(), GatewaySettings())
        process.kill()
    open_writer(tmp_path / "log", [], LogSettings(), GatewaySettings()).close()


def test_a_directory_that_cannot_be_used_is_a_log_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LogError, match="cannot be used"):
        open_writer(tmp_path / "file", [], LogSettings(), GatewaySettings())


def test_receipts_and_numbers_outlive_many_journals(
    embedded: Any, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "FILES_MAX", 3)
    stream = shop.stream(partitions=1)
    small = LogSettings(journal_bytes_max=16_384, segment_bytes_max=20_000)
    writer = embedded.writer([stream], log=small)
    for n in range(120):
        line = ProducerRange("transactions", f"p{n % 3}", 0, n * 2, 1)
        writer.append(
            Group((shop.to(stream, 0, n * 20, 20),), (Receipt(b"%d" % n, b"", b"", n, (line,)),))
        )
        if n % 25 == 24:
            writer.close()
            writer = embedded.writer([stream], log=small)
    writer.close()
    writer = embedded.writer([stream], log=small)
    assert all(writer.receipt(b"%d" % n) for n in range(120))
    for p in range(3):
        wanted = ProducerRange("transactions", f"p{p}", 0, 0, 1_000)
        assert list(writer.present(wanted)) == [(n * 2, n * 2 + 1) for n in range(p, 120, 3)]
    writer.close()
    files = list((embedded.directory / "checkpoints").iterdir())
    assert 1 <= len(files) <= 4
    assert len(list((embedded.directory / "journal").iterdir())) <= 3
    assert shop.ids(embedded.reader([stream]), "transactions", 0) == list(range(2_400))
    assert verify(embedded.directory).findings == ()


def test_a_group_larger_than_the_journal(embedded: Any, shop: Any) -> None:
    stream = shop.stream(partitions=1)
    small = LogSettings(journal_bytes_max=8_192, segment_bytes_max=8_192)
    writer, reader = embedded.writer([stream], log=small), embedded.reader([stream])
    for n in range(4):
        writer.append(Group((shop.to(stream, 0, n * 2_000, 2_000),)))
    writer.close()
    embedded.writer([stream], log=small)
    assert shop.ids(reader, "transactions", 0) == list(range(8_000))


def test_a_file_size_limit_fails_the_append_and_nothing_else(tmp_path: Path) -> None:
    """A process of its own: the limit cannot be lifted again everywhere."""
    script = f"""
import resource, sys
from pathlib import Path
sys.path.insert(0, {str(Path(log_cases.__file__).parent)!r})
from log_cases import read_ids, shop_stream, to_partition
from headrace.log.contract import Group, Receipt
from headrace.log.embedded.backend import open_reader, open_writer, verify
from headrace.model.errors import LogError
from headrace.model.settings import GatewaySettings, LogSettings
directory, stream = Path(sys.argv[1]), shop_stream(partitions=2)
small = LogSettings(journal_bytes_max=65_536)
writer = open_writer(directory, [stream], small, GatewaySettings())
reader = open_reader(directory, [stream])
writer.append(Group((to_partition(stream, 0, 0, 100),)))
resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, resource.RLIM_INFINITY))
stored, failed = 100, 0
while failed < 5:
    group = Group((to_partition(stream, 1, stored, 100), to_partition(stream, 0, stored, 100)),
                  (Receipt(b"%d" % stored, b"", b"", 0),))
    try:
        writer.append(group)
        stored += 100
    except LogError:
        failed += 1
        assert reader.ends("transactions") == (stored, stored - 100)
        assert writer.receipt(b"%d" % stored) is None
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.append(Group((to_partition(stream, 0, stored, 100),)))
stored += 100
for _ in range(2):
    assert read_ids(reader, "transactions", 0) == list(range(stored))
    assert read_ids(reader, "transactions", 1) == list(range(100, stored - 100))
    writer.close()
    writer = open_writer(directory, [stream], small, GatewaySettings())
assert verify(directory).findings == ()
print("stored", stored)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) > 300


def test_appends_and_reads_from_many_threads(embedded: Any, shop: Any) -> None:
    stream = shop.stream(partitions=4)
    writer, reader = embedded.writer([stream]), embedded.reader([stream])
    failures: list[BaseException] = []

    def append(partition: int) -> None:
        try:
            for n in range(60):
                writer.append(Group((shop.to(stream, partition, n * 5, 5),)))
                end = reader.ends("transactions")[partition]
                assert end == n * 5 + 5
                assert shop.ids(reader, "transactions", partition) == list(range(end))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=append, args=(p,)) for p in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_batches_outlive_the_reader_and_the_segment(embedded: Any, shop: Any) -> None:
    stream = shop.stream(partitions=1)
    writer, reader = embedded.writer([stream]), embedded.reader([stream])
    writer.append(Group((shop.to(stream, 0, 0, 5_000),)))
    (piece,) = reader.read("transactions", 0, 0, 5_000)
    reader.close()
    for file in (embedded.directory / "streams").rglob("*.segment"):
        file.unlink()
    assert piece.batch.column("id").to_pylist() == list(range(5_000))


def test_a_log_made_anew_under_the_same_name_is_another(tmp_path: Path, shop: Any) -> None:
    stream = shop.stream(partitions=1)
    for round_number in range(2):
        with closing(
            open_writer(tmp_path / "log", [stream], LogSettings(), GatewaySettings())
        ) as writer:
            writer.append(Group((shop.to(stream, 0, round_number * 100, 3),)))
        reader = open_reader(tmp_path / "log", [stream])
        assert shop.ids(reader, "transactions", 0) == [round_number * 100 + i for i in range(3)]
        (tmp_path / "log").rename(tmp_path / f"old-{round_number}")


def test_ends_move_to_a_larger_file(tmp_path: Path) -> None:
    with closing(EndsReader(tmp_path)) as reader:
        with closing(EndsWriter(tmp_path, 1, 10)) as writer:
            writer.publish({3: (1, 2, 3)})
            assert reader.slots()[3] == (1, 2, 3)
        with closing(EndsWriter(tmp_path, 2, 5_000)) as writer:
            writer.publish({4_999: (7, 8, 9)})
            assert reader.slots()[4_999] == (7, 8, 9)
            assert reader.slots()[3] == (1, 2, 3)
            assert reader.layout_number == 2


def test_threads_share_a_reader_while_the_ends_move(tmp_path: Path) -> None:
    """They never see an end that is not there yet, nor one go back."""
    EndsWriter(tmp_path, 1, 1).close()
    reader, stopping = EndsReader(tmp_path), threading.Event()
    looks = [0, 0, 0]

    def follow(number: int) -> None:
        last = 0
        while not stopping.is_set():
            slots, version = reader.slots(), reader.version
            assert slots
            assert slots[0][1] >= last
            assert version > 0
            last = slots[0][1]
            looks[number] += 1

    def all_have_looked(before: list[int]) -> bool:
        deadline = time.monotonic() + 60
        while not all(now > then for now, then in zip(looks, before, strict=True)):
            assert time.monotonic() < deadline
            assert not any(follower.done() for follower in followers), "one has failed"
            time.sleep(0.001)
        return True

    with ThreadPoolExecutor(3) as pool:
        followers = [pool.submit(follow, number) for number in range(3)]
        try:
            for number in range(1, 8):
                before = list(looks)
                with closing(EndsWriter(tmp_path, number, 2_048 << number)) as writer:
                    for end in range(10 * number, 10 * number + 10):
                        writer.publish({0: (0, end, 0)})
                if not all_have_looked(before):
                    break
        finally:
            stopping.set()
    for follower in followers:
        follower.result()
    assert reader.slots()[0] == (0, 79, 0)


def test_an_ends_file_without_maxima_is_taken_over(embedded: Any, shop: Any) -> None:
    stream = shop.stream(partitions=1)
    writer = embedded.writer([stream])
    writer.append(Group((shop.to(stream, 0, 0, 3),)))
    writer.close()
    file = embedded.directory / "ends"
    head = bytearray(file.read_bytes()[:64])
    head[:8] = b"HDRENDS1"
    version, used, capacity = struct.unpack_from("<qqq", head, 16)
    slots = struct.pack("<qq", 0, 0) * 8 + struct.pack("<qq", 0, 3)
    assert used == 9
    copy = slots.ljust(capacity * 16, b"\0")
    copy += struct.pack("<q", zlib.crc32(slots, zlib.crc32(version.to_bytes(8, "little"))))
    file.write_bytes(bytes(head) + copy * 2)
    directory = embedded.directory.rename(embedded.directory.with_name("moved"))
    reader = open_reader(directory, [stream])
    assert (reader.ends("transactions"), reader.maxima("transactions")) == ((3,), (NO_EVENT_TIME,))
    open_writer(directory, [stream], LogSettings(), GatewaySettings()).close()
    assert (reader.ends("transactions"), reader.maxima("transactions")) == ((3,), (2_000,))


def test_a_damaged_ends_file_is_said_and_repaired(embedded: Any, shop: Any) -> None:
    stream = shop.stream(partitions=1)
    writer = embedded.writer([stream])
    writer.append(Group((shop.to(stream, 0, 0, 3),)))
    writer.close()
    file = embedded.directory / "ends"
    data = bytearray(file.read_bytes())
    data[64:] = b"\x55" * (len(data) - 64)
    file.write_bytes(data)
    directory = embedded.directory.rename(embedded.directory.with_name("moved"))
    with pytest.raises(LogError, match="damaged"):
        open_reader(directory, [stream]).ends("transactions")
    open_writer(directory, [stream], LogSettings(), GatewaySettings()).close()
    assert open_reader(directory, [stream]).ends("transactions") == (3,)


PUBLISHER = """
import select, sys
from pathlib import Path
from headrace.log.embedded.ends import EndsWriter
writer, n = EndsWriter(Path(sys.argv[1]), 1, 64), 0
while not select.select([sys.stdin], [], [], 0)[0]:
    for n in range(n + 1, n + 1_000):
        writer.publish(dict.fromkeys(range(64), (n, n, n)))
print(n)
"""
DIFFERENT_SLOTS_SEEN = 200


def test_published_slots_are_never_mixed(tmp_path: Path) -> None:
    """The writer publishes equal numbers in all slots; a reader beside it sees only equal ones."""
    command = [sys.executable, "-c", PUBLISHER, str(tmp_path)]
    seen, last = {EMPTY_SLOT}, 0
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        closing(EndsReader(tmp_path)) as reader,
    ):
        while len(seen) < DIFFERENT_SLOTS_SEEN:
            assert process.poll() is None
            slots = set(reader.slots()) or {EMPTY_SLOT}
            assert len(slots) == 1
            seen |= slots
            assert min(slots)[0] >= last
            last = min(slots)[0]
        newest = int(process.communicate(b"", timeout=60)[0])
        assert reader.slots()[63] == (newest,) * 3
    assert process.returncode == 0


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=40),
    st.integers(0, 60),
    st.integers(1, 30),
)
def test_interval_sets_are_sets(added: list[tuple[int, int]], first: int, count: int) -> None:
    producers, oracle = Producers(10, 1_000), set[int]()
    for low, size in added:
        producers.add([ProducerRange("s", "p", 0, low, size)], 0)
        oracle |= set(range(low, low + size))
    found = producers.present(ProducerRange("s", "p", 0, first, count))
    assert {n for low, end in found for n in range(low, end)} == oracle & set(
        range(first, first + count)
    )
    assert found == sorted(found)
    assert all(one[1] < two[0] for one, two in itertools.pairwise(found))


def test_a_random_order_of_numbers_closes_every_gap(seed: int) -> None:
    source, producers = random.Random(seed), Producers(10, 1_000)
    numbers = list(range(0, 500, 5))
    source.shuffle(numbers)
    for first in numbers:
        producers.add([ProducerRange("s", "p", 0, first, 5)], 0)
    assert producers.present(ProducerRange("s", "p", 0, 0, 1_000)) == [(0, 500)]
