"""A project running in the background for as long as this process lives."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from headrace.model.errors import EngineError

__all__ = ["BackgroundProject"]

READY_SECONDS_MAX = 120
STOP_SECONDS_MAX = 60
SHOWN_LINES = 20
LIFELINE = "HEADRACE_LIFELINE"


class BackgroundProject:
    """`headrace up` on a free port, its log in the project's `.headrace/up.log`. It ends with this
    process, however that ends, because it holds the other end of a pipe."""

    def __init__(self, directory: Path) -> None:
        log_file = directory / ".headrace" / "up.log"
        log_file.parent.mkdir(parents=True, exist_ok=True)
        self.log_file = log_file
        reader, self._lifeline = os.pipe()
        with log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "headrace", "up", str(directory)),
                    *("--port", "0", "--log-format", "json"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, LIFELINE: str(reader)},
                pass_fds=(reader,),
                process_group=0,
            )
        os.close(reader)

    def wait_ready(self, while_waiting: Callable[[float], None]) -> str:
        """The gateway's address once gateway and engine answer. Raises EngineError otherwise."""
        assert self._process.stdout is not None
        began = time.monotonic()
        while (waited := time.monotonic() - began) < READY_SECONDS_MAX:
            while_waiting(waited)
            if select.select([self._process.stdout], [], [], 0.1)[0]:
                line = self._process.stdout.readline()
                if not line:
                    self._process.wait()
                    raise self._failed(f"it ended with code {self._process.returncode}")
                return str(json.loads(line)["url"])
        raise self._failed(f"it was not ready within {READY_SECONDS_MAX} s")

    def _failed(self, why: str) -> EngineError:
        lines = self.log_file.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
        return EngineError(f"the project did not start: {why}", hint="\n    ".join(lines))

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> int:
        """Ends it in order; its exit code."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._lifeline)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return self._process.returncode
