"""What a tick takes of a stream from which a table follows that has a SEQUENCE BY.

Changes of one key may be in several partitions then, and apply in the one order of the log:
position, partition, offset. So a tick takes what is next in this order, however little it takes,
and no change is passed by one that comes before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.log.contract import NO_POSITION, LogReader, Range

__all__ = ["ordered_ranges"]


def ordered_ranges(
    log: LogReader, stream: str, starts: Sequence[int], limits: Sequence[int], rows_max: int
) -> tuple[Range, ...]:
    """At most so many events. None where the limits leave out an event before all others."""

    def upto(position: int) -> tuple[int, ...]:
        cut = log.cut_at(stream, position)
        return tuple(max(start, end) for start, end in zip(starts, cut, strict=True))

    def rows(ends: Sequence[int], limit: Sequence[int] = ()) -> int:
        """Up to these ends, of those from `limit` on."""
        begins = [max(pair) for pair in zip(starts, limit or starts, strict=True)]
        pairs = enumerate(zip(begins, ends, strict=True))
        return sum(log.rows_of(stream, p, begin, end) for p, (begin, end) in pairs if end > begin)

    def fits(ends: Sequence[int]) -> bool:
        return rows(ends) <= rows_max and not rows(ends, limits)

    highest = log.position()
    ends = upto(highest)
    if not fits(ends):
        # Of the positions from `low` on, which fits or is before all, up to `high`, which does not.
        low, high, ends = NO_POSITION - 1, highest, tuple(starts)
        while high - low > 1:
            middle = (low + high) // 2
            cut = upto(middle)
            if fits(cut):
                low, ends = middle, cut
            else:
                high = middle
        ends = _further(log, stream, ends, upto(high), limits, rows_max - rows(ends))
    pairs = enumerate(zip(starts, ends, strict=True))
    found = [log.cut(stream, p, start, end) for p, (start, end) in pairs if end > start]
    return tuple(r for r in found if r.rows)


def _further(
    log: LogReader,
    stream: str,
    ends: Sequence[int],
    following: Sequence[int],
    limits: Sequence[int],
    room: int,
) -> tuple[int, ...]:
    """Into the position that is not taken as a whole, partition by partition."""
    reached = list(ends)
    for partition, (end, whole) in enumerate(zip(ends, following, strict=True)):
        last = min(whole, limits[partition])
        if last > end and room > 0:
            piece = log.cut(stream, partition, end, last, room)
            reached[partition], room = piece.end, room - piece.rows
        if log.rows_of(stream, partition, reached[partition], max(whole, reached[partition])):
            break
    return tuple(reached)
