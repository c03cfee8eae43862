"""One way of taking time for all that are compared: the clock, and the CPU of everything below."""

from __future__ import annotations

import json
import time

import psutil

from bench.processes import cpu_seconds

__all__ = ["Clock"]


class Clock:
    """Starts when made. CPU counts this process, the JVM and Python workers below it."""

    def __init__(self) -> None:
        self._root = psutil.Process()
        self._cpu_before = self._cpu()
        self._began = time.monotonic()

    def stop(self) -> None:
        """Say the result as one line of JSON, which the benchmark reads."""
        seconds = time.monotonic() - self._began
        said = {"seconds": seconds, "cpu_seconds": self._cpu() - self._cpu_before}
        print(json.dumps(said), flush=True)

    def _cpu(self) -> float:
        return cpu_seconds([self._root, *self._root.children(recursive=True)])
