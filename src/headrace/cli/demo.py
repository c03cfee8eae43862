"""`headrace demo`: the shop, live in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import exits
from headrace.cli.options import AsJson
from headrace.cli.output import print_json

__all__ = ["command"]

RATE_WITHOUT_END = 10_000


def command(
    events: Annotated[
        int | None,
        typer.Option(min=1, max=1_000_000_000, help="Send so many, check every window, and end."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Events per second in all. Default: as fast as they are taken with --events, "
            "10,000 without.",
        ),
    ] = None,
    senders: Annotated[int, typer.Option(min=1, max=64, help="Parallel processes.")] = 10,
    directory: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the project here. Default: a temporary folder."),
    ] = None,
    faults: Annotated[bool, typer.Option("--faults", help="Send some broken records too.")] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="A line a second instead of a live screen.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run the shop, live in the terminal. Starts everything, generates, shows the income.

    With --events it ends by checking every window of every view against a batch recomputation:
    "exact" and exit code 0, or the first difference and exit code 1. Otherwise Ctrl-C ends it.
    """
    from headrace.demo.run import Demo

    if rate is None and events is None:
        rate = RATE_WITHOUT_END
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    out = sys.stderr if as_json else sys.stdout
    demo = Demo(events, rate, senders, directory, plain=plain, faults=faults, out=out)
    outcome = demo.run()
    exact = outcome.checked is not None and outcome.difference is None
    if as_json:
        checked = outcome.checked
        print_json(
            {
                "exact": exact if checked is not None else None,
                "events": outcome.sent,
                "retried": outcome.retried,
                "quarantined": outcome.quarantined,
                "events_per_second": round(outcome.events_per_second),
                "rows": {n: len(r) for n, r in checked.views.items()} if checked else {},
                "difference": outcome.difference,
            }
        )
    else:
        print(
            f"{outcome.sent:,} events in {outcome.seconds:.1f} s "
            f"({outcome.events_per_second:,.0f} events/s), {outcome.retried:,} of them sent twice, "
            f"{outcome.quarantined:,} broken records quarantined"
        )
    if outcome.checked is not None and not as_json:
        if outcome.difference is None:
            rows = ", ".join(f"{len(r):,} of {n}" for n, r in outcome.checked.views.items())
            print(f"exact: {outcome.checked.paid:,} payments, every row equal: {rows}")
        else:
            print(f"difference: {outcome.difference}\nthe project is kept in {demo.kept}")
    if outcome.difference is not None:
        raise typer.Exit(exits.CHECK_FAILED)
    if events is not None and outcome.checked is None:
        raise typer.Exit(exits.INTERRUPTED)
