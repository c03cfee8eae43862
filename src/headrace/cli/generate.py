"""`headrace generate`: the shop's events into a running project."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import exits
from headrace.cli.calls import Address, resolve
from headrace.cli.options import AsJson, ProjectFolder, ServerToken, ServerUrl
from headrace.cli.output import print_json
from headrace.model.errors import EngineError, UnreachableError

if TYPE_CHECKING:
    from headrace.demo.senders import Senders

__all__ = ["command"]

WAIT_SECONDS_MAX = 60.0  # for a gateway that is away when it starts
WAIT_STEP_SECONDS = 0.25


def command(
    events: Annotated[int, typer.Option(min=1, max=1_000_000_000, help="How many.")] = 100_000,
    rate: Annotated[
        float | None,
        typer.Option(min=1, help="Events per second in all. Default: as fast as they are taken."),
    ] = None,
    senders: Annotated[int, typer.Option(min=1, max=64, help="Parallel processes.")] = 10,
    faults: Annotated[bool, typer.Option("--faults", help="Send some broken records too.")] = False,
    project: ProjectFolder = None,
    url: ServerUrl = None,
    token: ServerToken = None,
    as_json: AsJson = False,
) -> None:
    """Send the shop's events to a project. It must run and have the stream `transactions`."""
    from headrace.demo.events import make_pools
    from headrace.demo.senders import Plan, Senders
    from headrace.demo.shop import STREAM

    address = resolve(project, url, token)
    _await_gateway(address)
    plan = Plan(
        address.url, address.token, senders, events, rate, None, faults, seed=time.time_ns()
    )
    fleet = Senders(plan, make_pools())
    began = time.monotonic()
    interrupted = False
    fleet.start()
    try:
        _show_progress(fleet, events, not as_json)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        fleet.stop()
    seconds = time.monotonic() - began
    complaint = fleet.complaint()
    if complaint is not None:
        raise EngineError(f"a sender gave up: {complaint}")
    tally = fleet.tally()
    if as_json:
        print_json(
            {
                "stream": STREAM,
                "events": tally.sent,
                "retried": tally.retried,
                "quarantined": tally.quarantined,
                "seconds": round(seconds, 3),
                "events_per_second": round(tally.sent / seconds),
            }
        )
    else:
        print(f"{tally.sent:,} events durable in {seconds:.1f} s ({tally.sent / seconds:,.0f}/s)")
    if interrupted:
        raise typer.Exit(exits.INTERRUPTED)


def _await_gateway(address: Address) -> None:
    """Wait for a gateway as the senders do later on, and say so. Fails at once where there is no
    right to see its streams."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    is_said = False
    while True:
        try:
            address.get("/v1/streams")
            return
        except UnreachableError:
            if time.monotonic() > deadline:
                raise
        if not is_said:
            print(f"waiting for the gateway at {address.url}", file=sys.stderr)
            is_said = True
        time.sleep(WAIT_STEP_SECONDS)


def _show_progress(fleet: Senders, events: int, visible: bool) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} events"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not visible) as progress:
        task = progress.add_task("events", total=events)
        while fleet.running:
            progress.update(task, completed=fleet.tally().sent)
            time.sleep(0.1)
        progress.update(task, completed=fleet.tally().sent)
