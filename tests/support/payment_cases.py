"""Payments by card, a view that sums them up by key and window, and what one look at them gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st
from store_cases import SECOND, bound_view

from headrace.model.plan import BoundView, SessionWindow, Window


@dataclass(frozen=True)
class Event:
    """`beyond` are set aside; below 0 they are applied after having been set aside."""

    key: str | None
    second: int
    amount: int | None
    card: str | None
    late: int = 0
    beyond: int = 0

    @property
    def time(self) -> int:
        return self.second * SECOND


def events_of(
    seconds: st.SearchStrategy[int], late: st.SearchStrategy[int], beyond: st.SearchStrategy[int]
) -> st.SearchStrategy[Event]:
    return st.builds(
        Event,
        key=st.sampled_from(["a", "b", None]),
        second=seconds,
        amount=st.none() | st.integers(-9, 9),
        card=st.sampled_from(["x", "y", "z", None]),
        late=late,
        beyond=beyond,
    )


def summed_view(
    window: Window | SessionWindow | None,
    *,
    is_keyed: bool = True,
    having: str | None = None,
    total: str = "BIGINT",
) -> BoundView:
    """Its rows are the key, the bounds of the window and a `summary`."""
    keys = {"key": "STRING"} if is_keyed else {}
    bounds = ("window_start", "window_end") if window else ()
    columns = [(name, "STRING", f'"{name}"') for name in keys]
    columns += [(name, "BIGINT", f'epoch_us("{name}")') for name in bounds]
    columns += [(name, "BIGINT", f'"{name}"') for name in ("_rows", "n", "least", "cards")]
    columns.append(("total", total, '"total"'))
    return bound_view(
        "random",
        keys=keys,
        window=window,
        partials=(
            ("total", "sum", total, 'sum("total")'),
            ("n", "count", "BIGINT", 'sum("n")'),
            ("least", "min", "BIGINT", 'min("least")'),
        ),
        distincts={"cards": "STRING"},
        finals=columns,
        having=having,
        is_global=window is None and not is_keyed,
    )


def summary(events: Sequence[Event]) -> tuple[int, int, int | None, int, int | None]:
    amounts = [event.amount for event in events if event.amount is not None]
    cards = {event.card for event in events if event.card is not None}
    total = sum(amounts) if amounts else None
    return len(events), len(amounts), min(amounts, default=None), len(cards), total
