"""What a running demo shows: throughput, freshness, the newest windows, the income as a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Snapshot", "plain_line", "render", "sparkline"]

WINDOWS_SHOWN = 10
WINDOWS_IN_LINE = 60
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Snapshot:
    """One look at the demo. `windows` are rows of `income`, newest first; `age_milliseconds` is
    how long ago the newest tick was committed; None where there is no answer yet."""

    seconds: float
    sent: int
    per_second: float
    retried: int = 0
    quarantined: int = 0
    total: int | None = None
    tick: int | None = None
    age_milliseconds: float | None = None
    pending: int | None = None
    complete_up_to: str | None = None
    windows: Sequence[dict[str, Any]] = field(default_factory=tuple)
    note: str = ""


def sparkline(values: Sequence[float]) -> str:
    """One bar per value, the highest as the full one; nothing for no values."""
    highest = max(values, default=0)
    if highest <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[round(value / highest * (len(_BARS) - 1))] for value in values)


def plain_line(look: Snapshot) -> str:
    """The same in one line, for logs and pipes."""
    of_total = f"/{look.total:,}" if look.total else ""
    parts = [
        f"{look.seconds:6.1f} s",
        f"{look.sent:,}{of_total} events",
        f"{look.per_second:,.0f} events/s",
        f"tick {look.tick}" if look.tick is not None else "no tick yet",
    ]
    if look.pending is not None:
        parts.append(f"{look.pending:,} pending")
    if look.windows:
        newest = look.windows[0]
        parts.append(f"{_time(newest['window_start'])} income {newest['income']}")
    if look.note:
        parts.append(look.note)
    return " · ".join(parts)


def render(look: Snapshot) -> RenderableType:
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    figures = Table.grid(padding=(0, 3))
    for _ in range(4):
        figures.add_column()
    of_total = f" of {look.total:,}" if look.total else ""
    figures.add_row(
        Text.assemble(("events ", "dim"), (f"{look.sent:,}{of_total}", "bold")),
        Text.assemble(("throughput ", "dim"), (f"{look.per_second:,.0f}/s", "bold green")),
        Text.assemble(("retried ", "dim"), f"{look.retried:,}"),
        Text.assemble(("quarantined ", "dim"), f"{look.quarantined:,}"),
    )
    figures.add_row(
        Text.assemble(("tick ", "dim"), "—" if look.tick is None else f"{look.tick:,}"),
        Text.assemble(("committed ", "dim"), (_age(look.age_milliseconds), "bold green")),
        Text.assemble(("pending ", "dim"), "—" if look.pending is None else f"{look.pending:,}"),
        Text.assemble(("complete up to ", "dim"), _time(look.complete_up_to)),
    )
    windows = Table(expand=True, header_style="bold")
    for name, justify in (("window", "left"), ("income", "right"), ("payments", "right")):
        windows.add_column(name, justify="left" if justify == "left" else "right")
    windows.add_column("average", justify="right")
    for row in look.windows[:WINDOWS_SHOWN]:
        span = f"{_time(row['window_start'])} – {_time(row['window_end'])}"
        windows.add_row(span, str(row["income"]), f"{row['payments']:,}", str(row["average"]))
    oldest_first = [float(row["income"]) for row in look.windows[:WINDOWS_IN_LINE]][::-1]
    line = Text(sparkline(oldest_first), style="cyan")
    body = Group(figures, Text(), line, windows, Text(look.note, style="dim"))
    return Panel(body, title="the shop", subtitle=f"{look.seconds:.0f} s")


def _age(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "—"
    if milliseconds < 1_000:
        return f"{milliseconds:.0f} ms ago"
    return f"{milliseconds / 1_000:.1f} s ago"


def _time(value: Any) -> str:
    """The time of day of an RFC 3339 text."""
    return "—" if value is None else str(value)[11:19]
