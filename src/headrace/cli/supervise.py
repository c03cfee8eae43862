"""The supervisor: processes kept running, and ended in order.

1. All start at the same moment; the gateway does not wait for the engine.
2. A process that ends by itself is started again after a pause that doubles up to a maximum and
   falls back once the process has run for a while. A process that ends with the code for a user's
   mistake, or that keeps ending before the project was ever ready, ends the whole.
3. To stop: the first (the gateway stops accepting and finishes what it has), then the next (the
   engine finishes its tick), each within a stated time; whatever is left then is killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from headrace.cli import exits
from headrace.cli.child import LIFELINE, LOG_FORMAT
from headrace.cli.logs import LogFormat, redacted, wrapped

__all__ = ["Supervisor"]

PAUSE_SECONDS_MIN = 0.5
PAUSE_SECONDS_MAX = 30.0
SETTLED_SECONDS = 60.0  # after running this long, the pause starts from its minimum again
FAILURES_BEFORE_READY_MAX = 5
STOP_SECONDS_MAX = 30.0
LINE_BYTES_MAX = 64 * 1024
LINES_KEPT_MAX = 40
LAST_LINES_SECONDS_MAX = 1.0
READY_PROBE_SECONDS = 0.2
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass
class _Child:
    name: str
    command: tuple[str, ...]
    process: subprocess.Popen[bytes] | None = None
    pump: threading.Thread | None = None
    started: float = 0.0
    failures: int = 0
    start_again_at: float = 0.0
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_KEPT_MAX))


class Supervisor:
    """`commands` are started together and ended one after another, in the order given; each is
    given the pipe of `headrace.cli.child`. `is_ready` is asked a few times a second until it says
    yes, and then `on_ready` is called once. Must run in the main thread: it owns the signals."""

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        environment: dict[str, str],
        log_format: LogFormat,
        is_ready: Callable[[], bool],
        on_ready: Callable[[], None],
    ) -> None:
        self._log_format = log_format
        self._is_ready = is_ready
        self._on_ready = on_ready
        self._environment = {**environment, LOG_FORMAT: log_format.value}
        self._children = tuple(_Child(name, tuple(words)) for name, words in commands.items())
        self._lifeline_reader, self._lifeline_writer = os.pipe()
        self._stops = 0
        self._ready = False

    def run(self) -> int:
        """Until told to stop by a signal, or until there is no point in going on; the exit code."""
        wake_reader, wake_writer = socket.socketpair()
        wake_reader.setblocking(False)
        wake_writer.setblocking(False)
        before = {number: signal.getsignal(number) for number in (*_STOP_SIGNALS, signal.SIGCHLD)}
        wakeup_before = signal.set_wakeup_fd(wake_writer.fileno(), warn_on_full_buffer=False)
        for number in _STOP_SIGNALS:
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            for child in self._children:
                self._start(child)
            return self._watch(wake_reader)
        finally:
            self._end_all(wake_reader)
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            wake_reader.close()
            wake_writer.close()
            os.close(self._lifeline_reader)
            os.close(self._lifeline_writer)

    def _on_stop(self, *_: object) -> None:
        self._stops += 1

    def _watch(self, wake: socket.socket) -> int:
        while not self._stops:
            now = time.monotonic()
            for child in self._children:
                if child.process is not None and child.process.poll() is not None:
                    code = self._ended(child, now)
                    if code is not None:
                        return code
                elif child.process is None and now >= child.start_again_at:
                    self._start(child)
            if not self._ready and self._is_ready():
                self._ready = True
                self._on_ready()
            self._sleep(wake, READY_PROBE_SECONDS if not self._ready else self._pause(now))
        return exits.DONE

    def _pause(self, now: float) -> float:
        due = [c.start_again_at - now for c in self._children if c.process is None]
        return max(0.05, min([*due, 5.0]))

    def _ended(self, child: _Child, now: float) -> int | None:
        """Plans the next start; or the exit code of the whole when there shall be none."""
        assert child.process is not None
        code = child.process.returncode
        self._kill_group(child)
        if child.pump is not None:
            child.pump.join(LAST_LINES_SECONDS_MAX)  # what is said about its end comes after
        child.process = None
        child.failures = 1 if now - child.started > SETTLED_SECONDS else child.failures + 1
        said = f"ended by signal {-code}" if code < 0 else f"ended with code {code}"
        if code == exits.MISTAKE:
            self._report("error", f"the {child.name} {said}: see its message above")
            return exits.MISTAKE
        if not self._ready and child.failures >= FAILURES_BEFORE_READY_MAX:
            self._report("error", f"the {child.name} {said}, {child.failures} times; giving up")
            return exits.FAILED
        pause = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN * 2 ** (child.failures - 1))
        child.start_again_at = now + pause
        self._report("warning", f"the {child.name} {said}; starting it again in {pause:g} s")
        return None

    def _start(self, child: _Child) -> None:
        environment = {**self._environment, LIFELINE: str(self._lifeline_reader)}
        child.started = time.monotonic()
        child.process = subprocess.Popen(
            child.command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(self._lifeline_reader,),
            process_group=0,
        )
        assert child.process.stdout is not None
        child.pump = threading.Thread(
            target=self._pump, args=(child, child.process.stdout), name=child.name, daemon=True
        )
        child.pump.start()

    def _pump(self, child: _Child, lines: IO[bytes]) -> None:
        """Pass a child's output on, line by line; a longer line than the maximum is cut in two."""
        with lines:
            while raw := lines.readline(LINE_BYTES_MAX):
                line = redacted(raw.decode("utf-8", "replace").rstrip("\n"))
                child.last_lines.append(line)
                if self._log_format is LogFormat.PEOPLE:
                    line = f"{child.name:<7} │ {line}"
                elif not line.startswith("{"):
                    line = wrapped(child.name, "info", line)
                with contextlib.suppress(OSError, ValueError):  # our own stderr has gone
                    print(line, file=sys.stderr, flush=True)

    def _report(self, level: str, message: str) -> None:
        if self._log_format is LogFormat.JSON:
            print(wrapped("up", level, message), file=sys.stderr, flush=True)
        else:
            print(f"up      │ {message}", file=sys.stderr, flush=True)

    def _end_all(self, wake: socket.socket) -> None:
        """A second signal to stop cuts the waiting short."""
        for child in self._children:
            if child.process is None:
                continue
            with contextlib.suppress(ProcessLookupError):
                child.process.terminate()
            stops = self._stops
            deadline = time.monotonic() + STOP_SECONDS_MAX
            while child.process.poll() is None and time.monotonic() < deadline:
                if self._stops > max(stops, 1):
                    break
                self._sleep(wake, 0.1)
            if child.process.poll() is None:
                self._report("warning", f"the {child.name} did not end in time and is killed")
            self._kill_group(child)
            child.process.wait()

    def _kill_group(self, child: _Child) -> None:
        """Whatever the child has left behind in its group."""
        assert child.process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)

    def _sleep(self, wake: socket.socket, seconds: float) -> None:
        if select.select([wake], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                wake.recv(4096)
