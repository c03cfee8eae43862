"""Numbers that events carry (NUMBERED BY … PER …): which came, which did not, in what order.

A line is one run of a writer's numbers. What is counted follows from the batches of a partition in
the order of the log, and from nothing else, so a log that is opened after a crash counts the same
from its journal. All work is on whole arrays: the rows of a batch, and the lines they touch.

A number that was there already is a duplicate, unless its event is newer (by the stream's own event
time column) than every event of the line before it, and the number is below the highest: then the
writer started over, and a new line begins with it. What is older than that belongs to the line
before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.log.contract import LINES_MAX, NO_EVENT_TIME, RECEIVED_AT, Completeness
from headrace.log.sequences.intervals import (
    INTERVAL,
    Intervals,
    Numbers,
    merged,
    of_lines,
    placed,
    replaced,
    runs,
)
from headrace.log.sequences.line_types import KEY, LINE, Lines, Truths, extended, writer_names
from headrace.log.sequences.ranges import Ranges
from headrace.model.definitions import Stream

__all__ = ["NUMBER_MAX", "EventSequences"]

NUMBER_MAX = 2**62  # numbers from 0 up to this one are counted, others are not
INTERVALS_TOTAL_MAX = 1_000_000  # of a stream
RESETS_MAX = 8  # of one line in one batch; what comes again after that is a duplicate


@dataclass(frozen=True)
class _Rows:
    """In the order of the log. `times` are None where the stream has no event time."""

    keys: Numbers
    lines: Numbers
    numbers: Numbers
    times: Numbers | None
    received: int

    def where(self, chosen: Truths) -> _Rows:
        times = None if self.times is None else self.times[chosen]
        keys, lines, numbers = self.keys[chosen], self.lines[chosen], self.numbers[chosen]
        return _Rows(keys, lines, numbers, times, self.received)


@dataclass(frozen=True)
class _Judged:
    """`order` sorts rows by line and number; the rest is in that order. `known` are the intervals
    of the lines touched, of which those below the highest stand at `places`."""

    order: Numbers
    is_new: Truths
    is_above: Truths
    touched: Numbers
    known: Intervals
    places: Numbers


class EventSequences:
    """The lines of one stream. One thread at a time."""

    def __init__(self, stream: Stream, keys_max: int, intervals_max: int) -> None:
        assert stream.numbering is not None
        self._number = _own(stream, stream.numbering.number)
        self._columns = [_own(stream, name) for name in stream.numbering.columns]
        self._time = None if stream.event_time is None else _own(stream, stream.event_time)
        self.definition = "\0".join(["1", self._number, self._time or "", *self._columns])
        self._keys_max = keys_max
        self._intervals_max = intervals_max
        self.lost = Completeness()  # counts of what was forgotten
        self.clear()

    def clear(self) -> None:
        self.names: list[str] = []
        self.ids: dict[str, int] = {}
        self.keys = np.empty(0, dtype=KEY)
        self.lines = np.empty(0, dtype=LINE)
        self.lower: Intervals = np.empty(0, dtype=INTERVAL)  # all but each line's highest one
        self.accepted: dict[int, Ranges] = {}  # by line: missing, and missed no more
        self.changed_keys: Truths = np.empty(0, dtype=np.bool_)
        self.changed_lines: Truths = np.empty(0, dtype=np.bool_)
        self.is_renumbered = True

    # ------------------------------------------------------------------------------ taking in

    def add(self, batch: pa.RecordBatch) -> None:
        """The rows of one partition that one group appended."""
        received = int(pc.max(batch.column(RECEIVED_AT)).value)
        keys = self._key_ids(batch)
        touched = np.unique(keys)
        self.keys["heard"][touched] = np.maximum(self.keys["heard"][touched], received)
        self.keys["retired"][touched] = False
        self.changed_keys[touched] = True
        numbers = batch.column(self._number).cast(pa.int64()).to_numpy()
        times = None
        if self._time is not None:
            times = batch.column(self._time).cast(pa.int64()).to_numpy()
        rows = _Rows(keys, keys, numbers, times, received)
        rows = rows.where((numbers >= 0) & (numbers < NUMBER_MAX))
        for resets_left in range(RESETS_MAX, -1, -1):
            if not len(rows.numbers):
                break
            rows = self._with_lines(rows)
            if self._take_next(rows):
                break
            judged = self._judge(rows)
            starts = self._first_resets(rows, judged) if resets_left else None
            if starts is None:
                self._take(rows, judged)
                break
            rows = self._start_over(rows, starts)
        self._evict()

    def heard(self, name: str, received: int) -> None:
        """A sign of life of a writer that is known; others are none of this stream's."""
        key = self.ids.get(name)
        if key is not None:
            self.keys["heard"][key] = max(int(self.keys["heard"][key]), received)
            self.keys["retired"][key] = False
            self.changed_keys[key] = True

    def retire(self, name: str) -> None:
        """Until it is heard from again."""
        self.keys["retired"][self.ids[name]] = True
        self.changed_keys[self.ids[name]] = True

    def _key_ids(self, batch: pa.RecordBatch) -> Numbers:
        encoded = writer_names(batch, self._columns).dictionary_encode()
        names = encoded.dictionary.to_pylist()
        ids = list(map(self.ids.get, names))
        if None in ids:
            self.add_names([name for name in names if name not in self.ids])
            ids = list(map(self.ids.get, names))
        found: Numbers = np.array(ids, dtype=np.int64)[encoded.indices.to_numpy()]
        return found

    def add_names(self, names: Sequence[str]) -> None:
        self.ids.update(
            zip(names, range(len(self.names), len(self.names) + len(names)), strict=True)
        )
        self.names += names
        keys = np.zeros(len(names), dtype=KEY)
        keys["line"] = -1
        self.keys = extended(self.keys, keys)
        self.changed_keys = extended(self.changed_keys, np.ones(len(names), dtype=np.bool_))

    def _with_lines(self, rows: _Rows) -> _Rows:
        """Each row's line: the writer's newest, or an earlier one for events older than it."""
        lines = self.keys["line"][rows.keys].astype(np.int64)
        if (lines < 0).any():
            self._add_lines(np.unique(rows.keys[lines < 0]), rows.received)
            lines = self.keys["line"][rows.keys].astype(np.int64)
        while rows.times is not None:
            previous = self.lines["previous"][lines]
            is_older = (previous >= 0) & (rows.times < self.lines["started"][lines])
            if not is_older.any():
                break
            lines = np.where(is_older, previous, lines)
        return _Rows(rows.keys, lines, rows.numbers, rows.times, rows.received)

    def _add_lines(self, keys: Numbers, received: int, started: Numbers | None = None) -> None:
        """The next line of each of these writers."""
        fresh = np.zeros(len(keys), dtype=LINE)
        previous = self.keys["line"][keys]
        fresh["key"], fresh["previous"] = keys, previous
        if started is not None:
            fresh["epoch"], fresh["started"] = self.lines["epoch"][previous] + 1, started
        fresh["newest"], fresh["first_received"] = NO_EVENT_TIME, received
        self.keys["line"][keys] = np.arange(len(self.lines), len(self.lines) + len(keys))
        self.lines = extended(self.lines, fresh)
        self.changed_lines = extended(self.changed_lines, np.ones(len(keys), dtype=np.bool_))

    def _take_next(self, rows: _Rows) -> bool:
        """Take the rows in if they are what comes most: on each line the next numbers, in order.
        Any line may begin anywhere. Nothing has happened where this is not so."""
        order = np.argsort(rows.lines, kind="stable")
        lines, numbers = rows.lines[order], rows.numbers[order]
        starts_line = np.append(True, lines[1:] != lines[:-1])
        if not (starts_line[1:] | (numbers[1:] == numbers[:-1] + 1)).all():
            return False
        starts = np.flatnonzero(starts_line)
        touched = lines[starts]
        state = self.lines[touched]
        is_empty = state["top_end"] == state["top_first"]
        if not (is_empty | (numbers[starts] == state["top_end"])).all():
            return False
        ends = np.append(starts[1:], len(lines))
        for name in ("lowest", "top_first"):
            state[name] = np.where(is_empty, numbers[starts], state[name])
        state["top_end"] = numbers[ends - 1] + 1
        state["present"] += ends - starts
        state["last_received"] = np.maximum(state["last_received"], rows.received)
        if rows.times is not None:
            newest = np.maximum.reduceat(rows.times[order], starts)
            state["newest"] = np.maximum(state["newest"], newest)
        self.lines[touched] = state
        self.changed_lines[touched] = True
        return True

    def _judge(self, rows: _Rows) -> _Judged:
        order = np.lexsort((rows.numbers, rows.lines))
        lines, numbers = rows.lines[order], rows.numbers[order]
        is_first = np.ones(len(order), dtype=np.bool_)
        is_first[1:] = (lines[1:] != lines[:-1]) | (numbers[1:] != numbers[:-1])
        touched = np.unique(lines)
        places = of_lines(self.lower, touched)
        known = self.known(touched, self.lower[places])
        is_new = is_first & ~placed(known, lines, numbers)
        # In the order of lines and then of the log, a row's place by number against the highest
        # place so far; places of a later line are all higher than those of an earlier one.
        by_number = np.empty(len(order), dtype=np.int64)
        by_number[order] = np.arange(len(order))
        in_line = np.argsort(rows.lines, kind="stable")
        highest = np.empty(len(order), dtype=np.int64)
        highest[in_line] = np.maximum.accumulate(by_number[in_line])
        is_above = (highest == by_number)[order] & (numbers >= self.lines["top_end"][lines] - 1)
        return _Judged(order, is_new, is_above, touched, known, places)

    def known(self, touched: Numbers, lower: Intervals) -> Intervals:
        """All intervals of these lines, given those below the highest."""
        lines = self.lines[touched]
        has_numbers = lines["top_end"] > lines["top_first"]
        tops = np.empty(int(has_numbers.sum()), dtype=INTERVAL)
        tops["line"] = touched[has_numbers]
        for name, of_line in (
            ("first", "top_first"),
            ("end", "top_end"),
            ("noticed", "top_noticed"),
        ):
            tops[name] = lines[of_line][has_numbers]
        return np.insert(lower, np.searchsorted(lower["line"], tops["line"], side="right"), tops)

    def _first_resets(self, rows: _Rows, judged: _Judged) -> Numbers | None:
        """Where lines start over for the first time, as places in the log; None for nowhere."""
        if rows.times is None:
            return None
        may_be = np.empty(len(judged.order), dtype=np.bool_)
        may_be[judged.order] = ~judged.is_new & ~judged.is_above
        may_be &= rows.lines == self.keys["line"][rows.keys]  # an earlier line has started over
        if not may_be.any():
            return None
        resets = np.flatnonzero(may_be & self._is_newest(rows, rows.times))
        if not len(resets):
            return None
        _, first = np.unique(rows.lines[resets], return_index=True)
        return resets[first]

    def _is_newest(self, rows: _Rows, times: Numbers) -> Truths:
        """Which rows are newer than all of their line before them."""
        order = np.lexsort((times, rows.lines))
        changes = np.zeros(len(order), dtype=np.int64)
        lines, sorted_times = rows.lines[order], times[order]
        changes[1:] = (lines[1:] != lines[:-1]) | (sorted_times[1:] != sorted_times[:-1])
        ranks = np.empty(len(order), dtype=np.int64)
        ranks[order] = np.cumsum(changes)
        in_line = np.argsort(rows.lines, kind="stable")
        before = np.full(len(order), -1, dtype=np.int64)
        before[in_line[1:]] = np.maximum.accumulate(ranks[in_line])[:-1]
        newest: Truths = (ranks > before) & (times > self.lines["newest"][rows.lines])
        return newest

    def _start_over(self, rows: _Rows, starts: Numbers) -> _Rows:
        """Take in what comes before the resets, and give the rest, for which lines are new."""
        cut = np.full(len(self.lines), len(rows.lines), dtype=np.int64)
        cut[rows.lines[starts]] = starts
        is_before = np.arange(len(rows.lines)) < cut[rows.lines]
        before = rows.where(is_before)
        if len(before.numbers):
            self._take(before, self._judge(before))
        assert rows.times is not None
        self._add_lines(rows.keys[starts], rows.received, rows.times[starts])
        return rows.where(~is_before)

    def _take(self, rows: _Rows, judged: _Judged) -> None:
        lines, numbers = rows.lines[judged.order], rows.numbers[judged.order]
        touched = judged.touched
        place = np.searchsorted(touched, lines)
        size = len(touched)
        state = self.lines[touched]
        state["present"] += np.bincount(place[judged.is_new], minlength=size)
        state["duplicates"] += np.bincount(place[~judged.is_new], minlength=size)
        is_late = judged.is_new & ~judged.is_above
        state["late_fills"] += np.bincount(place[is_late], minlength=size)
        state["last_received"] = np.maximum(state["last_received"], rows.received)
        if rows.times is not None:
            starts = np.flatnonzero(np.append(True, lines[1:] != lines[:-1]))
            newest = np.maximum.reduceat(rows.times[judged.order], starts)
            state["newest"] = np.maximum(state["newest"], newest)
        fresh = runs(lines[judged.is_new], numbers[judged.is_new], rows.received)
        whole = merged(judged.known, fresh, rows.received)
        whole, dropped = self._bounded(whole, touched)
        state["present"] -= dropped
        self._miss_again(touched, state, fresh, whole)
        self._put(touched, state, whole, judged.places)

    def _miss_again(
        self, touched: Numbers, state: Lines, fresh: Intervals, whole: Intervals
    ) -> None:
        """What came is accepted no more, nor what is below where a line now begins. Someone decided
        on each of these lines, so there are few."""
        for line in self.accepted.keys() & set(touched.tolist() if self.accepted else ()):
            accepted = self.accepted[line]
            for run in fresh[fresh["line"] == line]:
                accepted.remove(int(run["first"]), int(run["end"]))
            accepted.remove(0, int(whole["first"][np.searchsorted(whole["line"], line)]))
            state["accepted"][np.searchsorted(touched, line)] = accepted.count

    def _bounded(self, whole: Intervals, touched: Numbers) -> tuple[Intervals, Numbers]:
        """At most so many intervals of each line, the highest; how many numbers went."""
        ends = np.searchsorted(whole["line"], touched, side="right")
        from_top = np.repeat(ends, np.diff(ends, prepend=0)) - np.arange(len(whole))
        is_kept = from_top <= self._intervals_max
        if is_kept.all():
            return whole, np.zeros(len(touched), dtype=np.int64)
        gone = whole[~is_kept]
        counts = np.zeros(len(touched), dtype=np.int64)
        np.add.at(counts, np.searchsorted(touched, gone["line"]), gone["end"] - gone["first"])
        return whole[is_kept], counts

    def _put(self, touched: Numbers, state: Lines, whole: Intervals, places: Numbers) -> None:
        """Every line that is touched has at least one interval."""
        tops = np.searchsorted(whole["line"], touched, side="right") - 1
        lowest = np.searchsorted(whole["line"], touched, side="left")
        state["lowest"] = whole["first"][lowest]
        state["top_first"], state["top_end"] = whole["first"][tops], whole["end"][tops]
        state["top_noticed"] = whole["noticed"][tops]
        self.lines[touched] = state
        self.changed_lines[touched] = True
        self.lower = replaced(self.lower, places, np.delete(whole, tops))

    # ------------------------------------------------------------------------------ forgetting

    def _evict(self) -> None:
        """Beyond the bounds the lines that are many resets old are forgotten, then an eighth of the
        writers, those least recently heard from."""
        is_beyond = len(self.lines) > 2 * self._keys_max or len(self.names) > self._keys_max
        if not is_beyond and len(self.lower) <= INTERVALS_TOTAL_MAX:
            return
        newest = self.lines["epoch"][self.keys["line"][self.lines["key"]]]
        self._keep(newest - self.lines["epoch"] < LINES_MAX, self.keys["line"] >= -1)
        too_many = len(self.lines) > 2 * self._keys_max or len(self.names) > self._keys_max
        if too_many or len(self.lower) > INTERVALS_TOTAL_MAX:
            count = max(len(self.names) // 8, 1)
            oldest = np.argsort(self.keys["heard"], kind="stable")[:count]
            is_kept = np.ones(len(self.names), dtype=np.bool_)
            is_kept[oldest] = False
            self._keep(is_kept[self.lines["key"]], is_kept)

    def _keep(self, lines: Truths, keys: Truths) -> None:
        """Number what is kept anew. A writer has lost its first lines, or all."""
        gone = self.lines[~lines]
        self.lost = Completeness(
            late_fills=self.lost.late_fills + int(gone["late_fills"].sum()),
            duplicates=self.lost.duplicates + int(gone["duplicates"].sum()),
            resets=self.lost.resets + int(self.resets()[~keys].sum()),
        )
        new_line = np.append(np.cumsum(lines) - 1, -1)
        new_line[:-1][~lines] = -1
        new_key = np.cumsum(keys) - 1
        kept = lines[self.lower["line"]]
        self.lower = self.lower[kept]
        self.lower["line"] = new_line[self.lower["line"]]
        self.lines, self.keys = self.lines[lines], self.keys[keys]
        self.lines["previous"] = new_line[self.lines["previous"]]
        self.lines["key"] = new_key[self.lines["key"]]
        self.keys["line"] = new_line[self.keys["line"]]
        accepted = ((int(new_line[line]), ranges) for line, ranges in self.accepted.items())
        self.accepted = {line: ranges for line, ranges in accepted if line >= 0}
        self.names = [self.names[place] for place in np.flatnonzero(keys)]
        self.ids = {name: place for place, name in enumerate(self.names)}
        self.changed_lines = np.ones(len(self.lines), dtype=np.bool_)
        self.changed_keys = np.ones(len(self.keys), dtype=np.bool_)
        self.is_renumbered = True

    def resets(self) -> Numbers:
        """Of each writer: the epoch of its newest line."""
        resets: Numbers = np.zeros(len(self.keys), dtype=np.int64)
        has_line = self.keys["line"] >= 0
        resets[has_line] = self.lines["epoch"][self.keys["line"][has_line]]
        return resets


def _own(stream: Stream, name: str) -> str:
    column = stream.column(name)
    assert column is not None, "the compiler saw to it"
    return column.name
