"""The probe of freshness: the only reader, on a fixed schedule, whatever the system does."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from bench.calls import Caller
from bench.load import Acknowledged
from bench.oracle import Difference
from bench.processes import wait_until

__all__ = ["Probe", "seen_after", "visible_after"]

READS_PER_SECOND = 50
SEEN_SECONDS_MAX = 300.0


class Probe(threading.Thread):
    """Asks for the paths by turns, from its entering to its leaving. A read falls due fifty times
    a second; those that fall due while an answer is waited for are left out, never made up for.
    `seen` has what `progress` took from the answers, where it was more than before, and when the
    answer had arrived. Raises Difference, on leaving, when an answer showed less than an earlier
    one."""

    def __init__(self, port: int, paths: Sequence[str], progress: Callable[[Any], int]) -> None:
        super().__init__(name="probe", daemon=True)
        self._port = port
        self._paths = paths
        self._progress = progress
        self._ended = threading.Event()
        self._fault: Exception | None = None
        self.seen: list[tuple[int, float]] = []
        self.reads = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self.join()
        if self._fault is not None and error is None:
            raise self._fault

    def run(self) -> None:
        try:
            self._read()
        except Exception as error:
            self._fault = error

    def _read(self) -> None:
        began, due = time.monotonic(), 0
        with Caller(self._port) as caller:
            while not self._ended.wait(began + due / READS_PER_SECOND - time.monotonic()):
                path = self._paths[self.reads % len(self._paths)]
                status, said = caller.get(path)
                if status != 200:
                    raise RuntimeError(f"GET {path} answered {status}: {said}")
                now = time.monotonic()
                shown, last = self._progress(said), self.seen[-1][0] if self.seen else -1
                if shown > last:
                    self.seen.append((shown, now))
                elif shown < last:
                    raise Difference(f"{path}: an answer showed {shown}, one before {last}")
                self.reads += 1
                due = max(due, int((now - began) * READS_PER_SECOND)) + 1

    def wait_for(self, shown: int) -> None:
        """Raises StartFailed when no answer shows as much in time."""

        def has_been_seen() -> bool:
            return self._fault is not None or bool(self.seen and self.seen[-1][0] >= shown)

        wait_until(has_been_seen, SEEN_SECONDS_MAX, f"an answer that shows {shown}")


def visible_after(
    acknowledged: Sequence[Acknowledged], before: int, seen: Sequence[tuple[int, float]]
) -> list[float]:
    """Seconds from each acknowledgement to the first answer that counts everything sent by then;
    0 when an answer had shown it already."""
    return seen_after(acknowledged, [before + each.begun for each in acknowledged], seen)


def seen_after(
    acknowledged: Sequence[Acknowledged],
    wanted: Sequence[int],
    seen: Sequence[tuple[int, float]],
) -> list[float]:
    """Seconds from each acknowledgement to the first answer that shows what is wanted for it, or
    more; 0 when one had shown it already."""
    shown = [each for each, _ in seen]
    times = [at for _, at in seen]
    waits = []
    for each, least in zip(acknowledged, wanted, strict=True):
        position = bisect_left(shown, least)
        if position == len(shown):
            raise ValueError(f"{least} was never seen in the views, at most {shown[-1:]}")
        waits.append(max(0.0, times[position] - each.at))
    return waits
