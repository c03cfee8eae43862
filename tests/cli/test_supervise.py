"""The supervisor with small real processes in place of gateway and engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import WAIT_SECONDS_MAX, wait_until

from headrace.compile import load_project
from headrace.log.embedded.backend import open_writer
from headrace.model.settings import load_settings

pytestmark = pytest.mark.contract

SUPERVISOR = """
import os, sys
from headrace.cli import supervise
from headrace.cli.logs import LogFormat

supervise.PAUSE_SECONDS_MIN = 0.02
supervise.PAUSE_SECONDS_MAX = 0.1
supervise.READY_PROBE_SECONDS = 0.02
supervise.LAST_LINES_SECONDS_MAX = 60.0
supervise.STOP_SECONDS_MAX = float(sys.argv[3])
folder = sys.argv[1]
commands = {
    name: (sys.executable, f"{folder}/{name}.py", folder) for name in ("gateway", "engine")
}
ready = lambda: os.path.exists(f"{folder}/ready")
supervisor = supervise.Supervisor(
    commands, dict(os.environ), LogFormat(sys.argv[2]), ready, lambda: print("ready", flush=True)
)
sys.exit(supervisor.run())
"""

# Writes its name and what happens to it into the folder's journal. Told to end, it goes on until
# the engine, if that lives, has gone round a few times more: would it be told too, it would say so.
CHILD = """
import os, pathlib, signal, sys, threading, time
folder = pathlib.Path(sys.argv[1])
name = pathlib.Path(__file__).stem

def note(what):
    with open(folder / "journal", "a") as journal:
        journal.write(f"{name} {what} {os.getpid()}\\n")

def rounds():
    file = folder / "engine.rounds"
    return file.stat().st_size if file.exists() else 0

def on_term(*_):
    note("told")
    if name == "gateway" and rounds():
        until, deadline = rounds() + 5, time.monotonic() + 10
        while rounds() < until and time.monotonic() < deadline:
            time.sleep(0.005)
    note("ended")
    os._exit(0)

signal.signal(signal.SIGTERM, on_term)
"""
LIFELINE = """
from headrace.cli.child import LIFELINE, _end_with
threading.Thread(target=_end_with, args=(int(os.environ[LIFELINE]),), daemon=True).start()
"""
STAY = """
note("started")
while True:
    time.sleep(0.01)
    with open(folder / f"{name}.rounds", "a") as file:
        file.write(".")
"""


class Run:
    def __init__(
        self,
        folder: Path,
        gateway: str,
        engine: str,
        log_format: str = "people",
        stop_seconds_max: float = WAIT_SECONDS_MAX,
    ) -> None:
        self.folder = folder
        (folder / "gateway.py").write_text(CHILD + textwrap.dedent(gateway))
        (folder / "engine.py").write_text(CHILD + textwrap.dedent(engine))
        (folder / "run.py").write_text(SUPERVISOR)
        self.process = subprocess.Popen(
            [
                *(sys.executable, str(folder / "run.py")),
                *(str(folder), log_format, str(stop_seconds_max)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def close(self) -> None:
        """Only what a failed test has left."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=WAIT_SECONDS_MAX)

    def journal(self) -> list[list[str]]:
        file = self.folder / "journal"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def pids(self, name: str) -> list[int]:
        return [int(pid) for who, what, pid in self.journal() if (who, what) == (name, "started")]

    def said(self) -> str:
        said, _ = self.process.communicate(timeout=WAIT_SECONDS_MAX)
        return said


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_stops_the_first_before_the_second(tmp_path: Path, closing: Callable[..., Run]) -> None:
    run = closing(Run(tmp_path, STAY, STAY))
    wait_until(lambda: run.pids("gateway") and run.pids("engine"), "both started")
    run.process.send_signal(signal.SIGTERM)
    run.said()
    assert run.process.returncode == 0
    told = [f"{who} {what}" for who, what, _ in run.journal() if what != "started"]
    assert told == ["gateway told", "gateway ended", "engine told", "engine ended"]


def test_starts_again_what_was_killed_and_leaves_the_other_alone(
    tmp_path: Path, closing: Callable[..., Run]
) -> None:
    (tmp_path / "ready").touch()
    run = closing(Run(tmp_path, STAY, STAY))
    wait_until(lambda: run.pids("gateway") and run.pids("engine"), "both started")
    for times in (1, 2, 3):
        os.kill(run.pids("engine")[-1], signal.SIGKILL)
        wait_until(lambda: len(run.pids("engine")) > times, "the engine is back")  # noqa: B023
    assert len(run.pids("gateway")) == 1
    run.process.send_signal(signal.SIGINT)
    said = run.said()
    assert run.process.returncode == 0
    assert "the engine ended by signal 9; starting it again in 0.02 s" in said
    assert "ready" in said


def test_gives_up_on_what_never_comes_up(tmp_path: Path, closing: Callable[..., Run]) -> None:
    run = closing(Run(tmp_path, STAY, "note('started'); print('no Java here'); sys.exit(4)"))
    said = run.said()
    assert run.process.returncode == 4
    assert len(run.pids("engine")) == 5
    assert "engine  │ no Java here" in said
    assert "the engine ended with code 4, 5 times; giving up" in said
    assert not _alive(run.pids("gateway")[0])


def test_a_users_mistake_is_not_tried_again(tmp_path: Path, closing: Callable[..., Run]) -> None:
    run = closing(Run(tmp_path, "note('started'); sys.exit(2)", STAY))
    run.said()
    assert run.process.returncode == 2
    assert len(run.pids("gateway")) == 1


def test_what_a_process_says_at_its_end_is_shown_before_the_end(
    tmp_path: Path, closing: Callable[..., Run]
) -> None:
    words = "note('started'); print('no such column\\n' * 2_000 + 'last word'); sys.exit(2)"
    lines = closing(Run(tmp_path, words, STAY)).said().splitlines()
    reported = lines.index("up      │ the gateway ended with code 2: see its message above")
    assert lines.index("gateway │ last word") < reported


def test_changed_columns_are_a_mistake_that_is_not_tried_again(tmp_path: Path) -> None:
    project = tmp_path / "shop"
    project.mkdir()
    (project / "headrace.toml").write_text("[gateway]\nport = 0\n")
    (project / "streams.sql").write_text("CREATE STREAM notes (text STRING NOT NULL);")
    settings = load_settings(project, {})
    open_writer(
        settings.log_directory, load_project(project).streams, settings.log, settings.gateway
    ).close()
    (project / "streams.sql").write_text("CREATE STREAM notes (text BIGINT NOT NULL);")
    ended = subprocess.run(
        [sys.executable, "-m", "headrace.cli.child", "gateway", str(project)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        start_new_session=True,
    )
    assert ended.returncode == 2, ended.stderr
    assert "stream notes changed while the log holds its events" in ended.stderr


def test_one_that_will_not_end_is_killed(tmp_path: Path, closing: Callable[..., Run]) -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" + STAY
    run = closing(Run(tmp_path, deaf, STAY, stop_seconds_max=3))
    wait_until(lambda: run.pids("gateway") and run.pids("engine"), "both started")
    run.process.send_signal(signal.SIGTERM)
    assert "the gateway did not end in time and is killed" in run.said()
    assert run.journal()[-1][:2] == ["engine", "ended"]


def test_nothing_outlives_a_supervisor_that_is_killed(
    tmp_path: Path, closing: Callable[..., Run]
) -> None:
    grandchild = """
import subprocess
inner = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
(folder / "grandchild").write_text(str(inner.pid))
"""
    run = closing(Run(tmp_path, LIFELINE + grandchild + STAY, LIFELINE + STAY))
    wait_until(lambda: run.pids("gateway") and run.pids("engine"), "both started")
    everyone = [*run.pids("gateway"), *run.pids("engine")]
    everyone.append(int((tmp_path / "grandchild").read_text()))
    assert all(map(_alive, everyone))
    run.process.kill()
    wait_until(lambda: not any(map(_alive, everyone)), "all have gone")
    assert run.process.stdout is not None
    run.process.stdout.close()
    run.process.wait()


def test_json_lines_hold_every_line_and_no_secret(
    tmp_path: Path, closing: Callable[..., Run]
) -> None:
    import json

    run = closing(
        Run(tmp_path, "print('Authorization: Bearer abc.def'); sys.exit(2)", STAY, "json")
    )
    lines = [json.loads(line) for line in run.said().splitlines()]
    messages = {line["message"]: line for line in lines}
    assert messages["Authorization: Bearer [redacted]"]["process"] == "gateway"
    assert any(line["process"] == "up" and line["level"] == "error" for line in lines)
