"""The load generator as the benchmarks see it: what to send, and what came of it.

The generator is a process of its own (bench/generator.py): its bodies are encoded before the clock
starts, and it says how much CPU it took, because it shares the machine with what is measured.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from bench.events import Events
from bench.shop import CHECKOUT

__all__ = ["Acknowledged", "Load", "LoadFailed", "LoadResult", "LoadSpec"]


@dataclass(frozen=True)
class LoadSpec:
    """`requests_per_second` 0 is the closed loop: each connection sends as soon as it has its
    answer. Otherwise requests fall due at that rate whatever the answers do (open loop), and
    latencies count from the moment a request was due. Sent are the workload's events from number
    `first` up to number `events` at most."""

    port: int
    workload: Events
    events: int
    size: int
    connections: int
    seconds: float
    warm_up_seconds: float = 0.0
    requests_per_second: float = 0.0
    first: int = 0
    host: str = "127.0.0.1"


@dataclass(frozen=True)
class Acknowledged:
    """One request of an open loop; times are of the machine's monotonic clock. `begun` is how many
    events had been sent to its stream, answered or not, when this acknowledgement came."""

    due: float
    at: float
    begun: int
    stream: str


@dataclass(frozen=True)
class LoadResult:
    """`events` are all that were acknowledged, `measured_events` those within
    `measured_seconds`, after the warm-up."""

    events: int
    began: float
    ended: float
    measured_events: int
    measured_seconds: float
    latency_milliseconds: dict[str, float]
    cpu_seconds: float
    exhausted: bool
    acknowledged: list[Acknowledged] = field(default_factory=list, repr=False)

    @property
    def rate(self) -> float:
        return self.measured_events / self.measured_seconds

    @property
    def core(self) -> float:
        """The generator's own share of one core."""
        return self.cpu_seconds / (self.ended - self.began)


class LoadFailed(Exception):  # noqa: N818
    """A request was refused, or the generator could not go on; its own words follow."""


class Load:
    """A generator process, ready to go once entered; ended when left."""

    def __init__(self, spec: LoadSpec) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.generator", pickle.dumps(spec).hex()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=CHECKOUT,
        )

    def __enter__(self) -> Self:
        """Returns when all bodies are encoded and all connections are open."""
        if self._line().strip() != "ready":
            self._fail()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def result(self) -> LoadResult:
        """Waits for the end. Raises LoadFailed."""
        line = self._line()
        if not line:
            self._fail()
        raw: dict[str, Any] = json.loads(line)
        raw["acknowledged"] = [Acknowledged(*each) for each in raw["acknowledged"]]
        return LoadResult(**raw)

    def run(self) -> LoadResult:
        self.go()
        return self.result()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def _fail(self) -> None:
        _, said = self._process.communicate()
        raise LoadFailed(said.strip().splitlines()[-1] if said.strip() else "it said nothing")
