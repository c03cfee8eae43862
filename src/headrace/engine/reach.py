"""Whether the log still reaches back to where a view begins."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["missing_text"]


def missing_text(stream: str, starts: Sequence[int], oldest: Sequence[int]) -> str:
    """What the log lacks of a view that begins at `starts`, in words; "" where it has all."""
    lost = [
        f"partition {partition} begins at offset {first}, and the view at {start}"
        for partition, (start, first) in enumerate(zip(starts, oldest, strict=True))
        if first > start
    ]
    if not lost:
        return ""
    return f"the log of stream {stream} no longer reaches the view's start: {'; '.join(lost)}"
