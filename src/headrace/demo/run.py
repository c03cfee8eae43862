"""A whole demo: project, processes, senders, screen, and the proof at the end."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from headrace.demo.background_project import BackgroundProject
from headrace.demo.check import Expected, expected_rows, first_difference, view_rows
from headrace.demo.events import make_pools
from headrace.demo.plain_http import PlainHttp
from headrace.demo.screen import WINDOWS_IN_LINE, Snapshot, plain_line, render
from headrace.demo.senders import Plan, Senders, record_files
from headrace.demo.shop import VIEWS, write_project
from headrace.model.errors import ClientError, EngineError

__all__ = ["Demo", "Outcome"]

LOOKS_PER_SECOND = 4
PLAIN_SECONDS = 1.0
THROUGHPUT_SECONDS = 3.0
CATCH_UP_SECONDS_MAX = 600


@dataclass(frozen=True)
class Outcome:
    """`difference` is None when every window was exact; `checked` is None when nothing was."""

    sent: int
    retried: int
    quarantined: int
    seconds: float
    checked: Expected | None = None
    difference: str | None = None

    @property
    def events_per_second(self) -> float:
        return self.sent / self.seconds if self.seconds else 0.0


@dataclass
class Demo:
    """`directory` None means a temporary project, which is removed unless a difference is found;
    then `kept` says where it is. Progress goes to `out`."""

    events: int | None
    rate: float | None
    senders: int
    directory: Path | None = None
    plain: bool = False
    faults: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)
    kept: Path | None = None

    def run(self) -> Outcome:
        """Runs until all events are sent, or until Ctrl-C when there is no number of them.

        Raises EngineError when the project does not start or a sender gives up.
        """
        with self._project() as directory:
            outcome = self._run_in(directory)
            if outcome.difference is not None:
                self.kept = directory
            return outcome

    @contextlib.contextmanager
    def _project(self) -> Iterator[Path]:
        temporary = self.directory is None
        directory = self.directory or Path(tempfile.mkdtemp(prefix="headrace-demo-"))
        if not (directory / "headrace.toml").exists():
            write_project(directory, "shop")
        try:
            yield directory
        finally:
            if temporary and self.kept is None:
                shutil.rmtree(directory, ignore_errors=True)

    def _run_in(self, directory: Path) -> Outcome:
        project = BackgroundProject(directory)
        try:
            pools = make_pools()
            url = project.wait_ready(self._waiting)
            records = None
            if self.events is not None:
                records = directory / ".headrace" / "sent"
                shutil.rmtree(records, ignore_errors=True)
                records.mkdir(parents=True)
            plan = Plan(
                url=url,
                token=None,
                senders=self.senders,
                events=self.events,
                rate=self.rate,
                records=records,
                faults=self.faults,
                seed=time.time_ns(),
            )
            senders = Senders(plan, pools)
            senders.start()
            try:
                with PlainHttp(url, None) as reading:
                    return self._watch(plan, senders, reading)
            finally:
                senders.stop()
        finally:
            self._say("ending gateway and engine")
            project.stop()

    def _waiting(self, seconds: float) -> None:
        if self._is_live:
            text = f"\rstarting gateway and engine … {seconds:.0f} s"
            print(text, end="", file=self.out, flush=True)
        elif seconds < 0.01:
            self._say("starting gateway and engine")

    @property
    def _is_live(self) -> bool:
        return not self.plain and self.out.isatty()

    def _say(self, text: str) -> None:
        print(text, file=self.out, flush=True)

    def _watch(self, plan: Plan, senders: Senders, reading: PlainHttp) -> Outcome:
        began = time.monotonic()
        look = _Look(plan, senders, reading, began)
        with self._shown() as show, contextlib.suppress(KeyboardInterrupt):
            while senders.running:
                show(look.take())
                time.sleep(1 / LOOKS_PER_SECOND)
            show(look.take())
        seconds = time.monotonic() - began
        senders.stop()
        complaint = senders.complaint()
        if complaint is not None:
            raise EngineError(f"a sender gave up: {complaint}")
        tally = senders.tally()
        outcome = Outcome(tally.sent, tally.retried, tally.quarantined, seconds)
        if plan.events is None or tally.sent < plan.events:
            return outcome
        return self._proved(plan, outcome, reading)

    @contextlib.contextmanager
    def _shown(self) -> Iterator[Any]:
        if self._is_live:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self.out)
            with Live(console=console, refresh_per_second=LOOKS_PER_SECOND, screen=False) as live:
                yield lambda look: live.update(render(look))
            return
        shown_at = [0.0]

        def show(look: Snapshot) -> None:
            if time.monotonic() - shown_at[0] >= PLAIN_SECONDS:
                shown_at[0] = time.monotonic()
                self._say(plain_line(look))

        yield show

    def _proved(self, plan: Plan, outcome: Outcome, reading: PlainHttp) -> Outcome:
        """Wait until no view has an event pending, then compare every row of every view."""
        deadline = time.monotonic() + CATCH_UP_SECONDS_MAX
        for view in VIEWS:
            while reading.page(view, "window_start", limit=1)["freshness"]["pending_events"]:
                if time.monotonic() > deadline:
                    raise EngineError(f"{view} did not catch up in {CATCH_UP_SECONDS_MAX} s")
                time.sleep(0.05)
        self._say("checking every window against a batch recomputation of what was sent")
        expected = expected_rows(record_files(plan))
        difference = None
        if expected.events != outcome.sent:
            difference = f"{expected.events} events were recorded, but {outcome.sent} acknowledged"
        for view in VIEWS:
            if difference is None:
                found = view_rows(reading.rows(view), by_user=view == "income_by_user")
                difference = first_difference(view, expected.views[view], found)
        return Outcome(
            outcome.sent,
            outcome.retried,
            outcome.quarantined,
            outcome.seconds,
            expected,
            difference,
        )


class _Look:
    """Takes snapshots; remembers a few seconds of counts for the throughput."""

    def __init__(self, plan: Plan, senders: Senders, reading: PlainHttp, began: float) -> None:
        self._plan, self._senders, self._reading, self._began = plan, senders, reading, began
        self._seen: deque[tuple[float, int]] = deque(maxlen=1_000)

    def take(self) -> Snapshot:
        now, tally = time.monotonic(), self._senders.tally()
        self._seen.append((now, tally.sent))
        while now - self._seen[0][0] > THROUGHPUT_SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        if len(self._seen) == 1:
            since, before = self._began, 0
        per_second = (tally.sent - before) / max(0.001, now - since)
        page, note = self._page()
        freshness = page.get("freshness", {})
        return Snapshot(
            seconds=now - self._began,
            sent=tally.sent,
            per_second=per_second,
            retried=tally.retried,
            quarantined=tally.quarantined,
            total=self._plan.events,
            tick=freshness.get("tick"),
            age_milliseconds=_age_milliseconds(freshness.get("committed_at")),
            pending=freshness.get("pending_events"),
            complete_up_to=freshness.get("complete_up_to"),
            windows=page.get("rows", ()),
            note=note,
        )

    def _page(self) -> tuple[dict[str, Any], str]:
        try:
            return self._reading.page("income", "-window_start", limit=WINDOWS_IN_LINE), ""
        except ClientError as error:  # the engine may be restarting: the senders go on
            return {}, error.message


def _age_milliseconds(committed_at: str | None) -> float | None:
    if committed_at is None:
        return None
    then = datetime.fromisoformat(committed_at)
    return max(0.0, (datetime.now(UTC) - then).total_seconds() * 1_000)
