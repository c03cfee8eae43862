"""Headrace's own processes, started as a user starts them, and what they cost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from bench.shop import CHECKOUT

__all__ = [
    "MemorySample",
    "MemoryWatch",
    "Running",
    "StartFailed",
    "cpu_seconds",
    "started",
    "wait_until",
]

START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 60.0
POLL_SECONDS = 0.02
SAMPLE_SECONDS = 1.0
MEBIBYTE = 1024 * 1024


class StartFailed(Exception):  # noqa: N818
    """A process ended or said nothing in time; what it printed last follows."""


@dataclass(frozen=True)
class Running:
    """A process tree that was started; `port` is the gateway's."""

    process: subprocess.Popen[bytes]
    port: int
    directory: Path
    output: Path

    def tree(self) -> list[psutil.Process]:
        """The process and everything below it."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def tail(self) -> str:
        return _tail(self.output)


def wait_until(
    condition: Callable[[], bool], seconds: float, what: str, gap: float = POLL_SECONDS
) -> None:
    """Raises StartFailed after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise StartFailed(f"waited {seconds:.0f} seconds for {what}")
        time.sleep(gap)


@contextlib.contextmanager
def started(
    directory: Path, checkout: Path = CHECKOUT, *, gateway_only: bool = False
) -> Iterator[Running]:
    """`headrace up` in this project, or its gateway alone, once it listens; with the sources of
    this checkout and the packages of this process. Ended in order at the end; a process that does
    not end in time is killed."""
    arguments = ["headrace.gateway", str(directory)]
    if not gateway_only:
        arguments = ["headrace", "up", "--project", str(directory)]
    known = directory / ".headrace" / "run" / "gateway.json"
    known.unlink(missing_ok=True)
    output = directory / "output.log"
    with output.open("ab") as handle:
        process = _start(arguments, checkout, handle)
    try:
        wait_until(
            lambda: known.exists() or process.poll() is not None, START_SECONDS_MAX, "the gateway"
        )
        if process.poll() is not None:
            raise StartFailed(f"ended with code {process.returncode}:\n{_tail(output)}")
        port = int(json.loads(known.read_text())["port"])
        yield Running(process, port, directory, output)
    finally:
        _stop(process)


def _start(arguments: Sequence[str], checkout: Path, output: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        process_group=0,
        env={**os.environ, "PYTHONPATH": str(checkout / "src")},
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS_MAX)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(output: Path) -> str:
    return "\n".join(output.read_text(errors="replace").splitlines()[-20:])


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """User and system time of these processes; one that has ended counts nothing."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


@dataclass(frozen=True)
class MemorySample:
    """Proportional set sizes in bytes: pages that processes share count once among them.
    `mapped` is the part of `total` that is pages of files, which the kernel can take back; `java`
    is the JVM's part of it."""

    at: float
    total: int
    mapped: int
    java: int


class MemoryWatch(threading.Thread):
    """Samples all processes of a tree once a second: the supervisor, the gateway, the engine, its
    JVM and Spark's Python workers."""

    def __init__(self, running: Running) -> None:
        super().__init__(name="memory", daemon=True)
        self._running = running
        self._ended = threading.Event()
        self.samples: list[MemorySample] = []

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self.samples.append(self._sample())

    def stop(self) -> None:
        self._ended.set()
        self.join()

    @property
    def mebibytes_max(self) -> float:
        return max(sample.total for sample in self.samples) / MEBIBYTE

    @property
    def details(self) -> dict[str, float]:
        """Of the sample with the highest total."""
        most = max(self.samples, key=lambda sample: sample.total)
        return {
            "java_mib": most.java / MEBIBYTE,
            "python_mib": (most.total - most.java) / MEBIBYTE,
            "mapped_files_mib": most.mapped / MEBIBYTE,
        }

    def mebibytes_per_minute(self) -> float:
        """The slope of the least-squares line through the second half of the samples, without
        mapped file pages."""
        later = self.samples[len(self.samples) // 2 :]
        if len(later) < 2:
            return 0.0
        middle = sum(s.at for s in later) / len(later)
        mean = sum(s.total - s.mapped for s in later) / len(later)
        above = sum((s.at - middle) * (s.total - s.mapped - mean) for s in later)
        below = sum((s.at - middle) ** 2 for s in later)
        return above / below * 60 / MEBIBYTE

    def _sample(self) -> MemorySample:
        total = mapped = java = 0
        for process in self._running.tree():
            with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                sizes = _proportional_sizes(process.pid)
                total += sizes["Pss"]
                mapped += sizes.get("Pss_File", 0)
                java += sizes["Pss"] if process.name() == "java" else 0
        return MemorySample(time.monotonic(), total, mapped, java)


def _proportional_sizes(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    parts = (line.split() for line in lines)
    return {name.rstrip(":"): int(size) * 1024 for name, size, *_ in parts}
