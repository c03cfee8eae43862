"""Waiting for a condition: what every test does in place of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["WAIT_SECONDS_MAX", "wait_until"]

WAIT_SECONDS_MAX = 180.0
LOOK_SECONDS = 0.005


def wait_until(
    condition: Callable[[], object],
    what: str = "",
    *,
    seconds: float = WAIT_SECONDS_MAX,
    look_seconds: float = LOOK_SECONDS,
) -> None:
    """The deadline is one that only a fault reaches: a machine half as fast with a busy neighbour
    does not. `look_seconds` for conditions that cost the machine something to look at."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain for {what or condition}"
        time.sleep(look_seconds)
