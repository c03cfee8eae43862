"""kill -9 at random moments: nothing acknowledged is lost, nothing is doubled, no group is half."""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import log_cases

from headrace.log.contract import ProducerRange
from headrace.log.embedded.backend import open_reader, open_writer, verify
from headrace.model.settings import GatewaySettings, LogSettings

KILLS = 24
# Every group leaves a gap in the numbers, of which a log keeps so many (producer_intervals_max).
GROUPS_MAX = 1_000 // KILLS
LOOKS_MAX = 500
ANSWER_SECONDS_MAX = 120
SETTINGS = LogSettings(segment_bytes_max=48 * 1024, journal_bytes_max=96 * 1024)

# For each line on its input, forks a writer (so that Python starts once). The writer appends
# GROUPS_MAX groups and waits to be killed: group n has 1 + n % 5 events in each of three partitions
# of two streams, a receipt and a dead letter, and is announced when stored.
WRITERS = """
import os, signal, sys, traceback
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from log_cases import make_batch, shop_stream
from headrace.log.contract import DeadLetter, Group, PartitionBatch, ProducerRange, Receipt
from headrace.log.embedded.backend import open_writer
from headrace.model.settings import GatewaySettings, LogSettings

def say(text):
    os.write(1, text.encode() + b"\\n")

def write():
    first, other = shop_stream(partitions=2), shop_stream("refunds", partitions=1)
    writer = open_writer(Path(sys.argv[1]), [first, other],
        LogSettings(segment_bytes_max=48 * 1024, journal_bytes_max=96 * 1024), GatewaySettings())
    start = 0
    while writer.receipt(b"%d" % start) is not None:
        start += 1
    for number in range(start, start + int(sys.argv[3])):
        count = 1 + number % 5
        batches = tuple(
            PartitionBatch(stream.name, partition, make_batch(stream, number * 10, count))
            for stream, partition in ((first, 0), (first, 1), (other, 0))
        )
        numbered = ProducerRange("transactions", "p", 0, number * 10, count)
        receipt = Receipt(b"%d" % number, b"", b"stored", number, (numbered,))
        letter = DeadLetter("refunds", number, "", b"", 0)
        writer.append(Group(batches, (receipt,), (letter,)))
        say(f"{number}")
    signal.pause()

make_batch(shop_stream(), 0, 1)  # Arrow imports pandas on first use: once for all writers
for line in sys.stdin:
    child = os.fork()
    if not child:
        say(f"pid {os.getpid()}")
        try:
            write()
        except BaseException:
            say("failed " + repr(traceback.format_exc()))
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    say("dead")
"""


class Writers:
    """The process that forks writers, and what they say."""

    def __init__(self, directory: Path) -> None:
        folder = str(Path(log_cases.__file__).parent)
        arguments = [sys.executable, "-c", WRITERS, str(directory), folder, str(GROUPS_MAX)]
        self.process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        self.said: list[str] = []
        self.rest = b""

    def start(self) -> None:
        assert self.process.stdin is not None
        self.said = []
        self.process.stdin.write(b"\n")
        self.listen_until(lambda said: bool(said))

    def kill(self) -> None:
        os.kill(int(self.said[0].removeprefix("pid ")), signal.SIGKILL)
        self.listen_until(lambda said: said[-1] == "dead")

    def listen(self, seconds: float) -> None:
        assert self.process.stdout is not None
        if self.selector.select(seconds):
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, "the process that starts writers ended"
            *lines, self.rest = (self.rest + data).split(b"\n")
            self.said += [line.decode() for line in lines]
            for line in self.said:
                assert not line.startswith("failed"), line.replace("\\n", "\n")

    def listen_until(self, condition: Callable[[list[str]], bool]) -> None:
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while not condition(self.said):
            assert time.monotonic() < deadline, f"the writers said only {self.said}"
            self.listen(0.05)

    def close(self) -> None:
        """Ends the writer that may be running too: it is of the same session."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        self.selector.close()


@contextlib.contextmanager
def writers_of(directory: Path) -> Iterator[Writers]:
    writers = Writers(directory)
    try:
        yield writers
    finally:
        writers.close()


def run_until_killed(
    writers: Writers, directory: Path, streams: list[Any], moment: random.Random
) -> tuple[int, list[int]]:
    """The highest group announced before the kill, and all ends seen meanwhile. A third of the
    kills come right after the start, while the log is being opened and repaired; the others a
    while after a group was announced. The while is measured in looks at the log, which are faster
    where the writer is."""
    reader, seen = open_reader(directory, streams), [0]
    writers.start()
    if moment.random() < 0.67:
        groups = moment.randint(1, GROUPS_MAX)
        writers.listen_until(lambda said: len(said) > groups)
    for _ in range(moment.randrange(LOOKS_MAX)):
        writers.listen(0)
        zero, one = reader.ends("transactions")
        assert zero == one  # a group becomes visible in all partitions at once
        seen.append(zero)
    writers.kill()
    return max((int(line) for line in writers.said[1:-1]), default=-1), seen


def test_kill_at_random_moments(
    tmp_path: Path, shop: Any, closing: Callable[..., Any], seed: int
) -> None:
    directory, moment = tmp_path / "log", random.Random(seed)
    streams = [shop.stream(partitions=2), shop.stream("refunds", partitions=1)]
    highest, last_end = -1, 0
    with writers_of(directory) as writers:
        for _ in range(KILLS):
            newest, seen = run_until_killed(writers, directory, streams, moment)
            highest = max(highest, newest)
            assert seen == sorted(seen)
            writer = closing(open_writer(directory, streams, SETTINGS, GatewaySettings()))
            reader = open_reader(directory, streams)
            stored = [n for n in range(highest + 2) if writer.receipt(b"%d" % n) is not None]
            assert stored in (list(range(highest + 1)), list(range(highest + 2)))
            highest = len(stored) - 1
            expected = [n * 10 + i for n in stored for i in range(1 + n % 5)]
            for stream, partition in (("transactions", 0), ("transactions", 1), ("refunds", 0)):
                assert shop.ids(reader, stream, partition) == expected
            assert len(reader.dead_letters("refunds", -1, 10**6)) == len(stored)
            present = writer.present(ProducerRange("transactions", "p", 0, 0, 10**9))
            assert sum(end - first for first, end in present) == len(expected)
            assert reader.ends("transactions")[0] >= max(last_end, *seen)
            last_end = reader.ends("transactions")[0]
            writer.close()
    assert verify(directory).findings == ()
    assert last_end > 100
