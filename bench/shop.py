"""The project that is measured: the shop's stream with five views, and what they must hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "CHECKOUT",
    "STREAM",
    "TOTALS",
    "VIEWS",
    "Aggregate",
    "BenchView",
    "definitions",
    "write_project",
]

CHECKOUT = Path(__file__).parent.parent  # where processes of the benchmarks are started
STREAM = "transactions"
TOTALS = "totals"  # counts every event: how far the views have come can be read from it


@dataclass(frozen=True)
class Aggregate:
    """`function` is one of count, sum, avg, min, max; `count` counts events, the others take the
    amount."""

    name: str
    function: str


@dataclass(frozen=True)
class BenchView:
    """One view, said once; the definition, the oracle and the hand-written Spark queries follow
    from it. `seconds` 0 means no window; `slide` is `seconds` for tumbling windows."""

    name: str
    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    seconds: int = 0
    slide: int = 0
    where: str | None = None

    @property
    def key_names(self) -> tuple[str, ...]:
        return ("window_start", "window_end", *self.keys) if self.seconds else self.keys


_INCOME = (
    Aggregate("income", "sum"),
    Aggregate("payments", "count"),
    Aggregate("average", "avg"),
)
VIEWS = (
    BenchView("income", (), _INCOME, seconds=3, slide=3, where="status = 'paid'"),
    BenchView("income_by_user", ("user_id",), _INCOME, seconds=3, slide=3, where="status = 'paid'"),
    BenchView(
        "events_by_status", ("status",), (Aggregate("events", "count"),), seconds=60, slide=60
    ),
    BenchView(TOTALS, ("currency",), (Aggregate("total", "sum"), Aggregate("events", "count"))),
    BenchView(
        "spending",
        ("user_id", "currency"),
        (Aggregate("spent", "sum"), Aggregate("payments", "count"), Aggregate("largest", "max")),
        seconds=10,
        slide=5,
        where="status <> 'failed'",
    ),
)

_CREATE_STREAM = f"""\
CREATE STREAM {STREAM} (
  id STRING NOT NULL,
  user_id STRING NOT NULL,
  amount DECIMAL(18, 2) NOT NULL,
  currency STRING NOT NULL,
  status STRING NOT NULL,
  created_at TIMESTAMP NOT NULL
)
WATERMARK created_at DELAY OF INTERVAL 5 SECONDS
LATE REVISE
PARTITION BY (user_id) INTO 4 PARTITIONS;
"""
_DEDUPLICATE = "DEDUPLICATE BY (user_id, id) WITHIN INTERVAL 1 HOUR\n"


def definitions(deduplicates: bool = False) -> str:
    """The stream and the five views, as a user writes them."""
    stream = _CREATE_STREAM
    if deduplicates:
        stream = stream.replace("PARTITION BY", f"{_DEDUPLICATE}PARTITION BY")
    return "\n".join([stream, *(_create_view(view) for view in VIEWS)])


def _create_view(view: BenchView) -> str:
    outputs = ["window.start AS window_start", "window.end AS window_end"] if view.seconds else []
    outputs += view.keys
    for aggregate in view.aggregates:
        argument = "*" if aggregate.function == "count" else "amount"
        outputs.append(f"{aggregate.function}({argument}) AS {aggregate.name}")
    groups = list(view.keys)
    if view.seconds:
        slide = f", '{view.slide} seconds'" if view.slide != view.seconds else ""
        groups.insert(0, f"window(created_at, '{view.seconds} seconds'{slide})")
    where = f"WHERE {view.where}\n" if view.where else ""
    return (
        f"CREATE MATERIALIZED VIEW {view.name} AS\n"
        f"SELECT {', '.join(outputs)}\nFROM {STREAM}\n{where}GROUP BY {', '.join(groups)};\n"
    )


def write_project(directory: Path, port: int = 0, deduplicates: bool = False) -> None:
    """A folder that `headrace up` can start. Port 0 takes a free one."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "headrace.toml").write_text(f'name = "bench"\n\n[gateway]\nport = {port}\n')
    (directory / "shop.sql").write_text(definitions(deduplicates))
