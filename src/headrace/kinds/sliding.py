"""Views with OVER (… RANGE …): one row per event, with the inputs of its aggregates and what they
give over the row's frame.

    sliding_SHAPE    keys, window_start, …, PASSED, ASIDE (NULL: no row is without the event) and
                     the columns of the frames

A tick's events touch the rows of the same keys whose frame they are in: those at their time and up
to the range after it. To compute these anew takes the inputs of the events from a range before on,
and the whole rows from the tick's first event to a range after its last.

An event that is late for a row counts in its revision, and one that is set aside for it (ASIDE
after the row's time) is not in its frame. No window function over the frame can say that, since it
depends on both rows. Revisions are counted along the time instead; the values of rows that lack an
event of their frame, which are few, come from a join.

A row whose own event is set aside for it is hidden: readers do not see it, and it is kept for the
frames that take its event. It goes when no frame of a row that is yet to change reaches it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.kinds.calculator import Calculator, Statement, matched, quoted
from headrace.kinds.contract import BOUND, Delta, KindInput, Steps
from headrace.kinds.inputs import VIEWS, partials_schema
from headrace.kinds.state_table import (
    BIGINT,
    INT,
    KEPT,
    PASSES,
    REVISION,
    TIMESTAMP,
    WAS_ENDS,
    WINDOW_END,
    WINDOW_START,
    StateTable,
    is_turn,
    shape_of,
    text_of,
)
from headrace.kinds.state_table import PASSED as WAS_PASSED
from headrace.model.plan import (
    ASIDE,
    FRAME,
    PANE,
    PASSED,
    REJECTED_WINDOWS,
    ROWS,
    BoundColumn,
    BoundView,
    Sliding,
    SlidingColumn,
)
from headrace.model.tables import HIGH, LOW, ROW, VIEW, Fetch

__all__ = ["SlidingKind"]

_TIME = "_time"  # BIGINT: of the event
_KEY = "_key"  # BIGINT: stands for the keys of the frame
_FIRST, _LAST = "_first_time", "_last_time"  # BIGINT: of the key's events in this tick
_FRESH = "_fresh"  # BIGINT: ROW of an event of the tick, which is negative


class SlidingKind:
    feed_is_rows = False

    def __init__(self, view: BoundView, calculator: Calculator) -> None:
        assert isinstance(view.plan.window, Sliding)
        self._sliding = view.plan.window
        self._reach = self._sliding.range_microseconds
        self._view = view
        self.shape = shape_of("sliding", view)
        self.key = (*view.keys, BoundColumn(WINDOW_START, TIMESTAMP))
        self._state = StateTable(
            self.shape,
            view,
            self.key,
            (BoundColumn(PASSED, BIGINT), BoundColumn(ASIDE, BIGINT), *view.slidings),
            condition=f"coalesce({ASIDE} <= epoch_us({WINDOW_START}), true)",
        )
        self.public = self._state.public
        self._by = (VIEW, *self._sliding.keys)
        self._inputs = (ROWS, *(column.name for column in view.partials))
        self._before = (*self._by, WINDOW_START, PASSED, ASIDE, *self._inputs)
        self.tables = (self._state.definition(self._by),)
        self._prepare(calculator)

    def _prepare(self, calculator: Calculator) -> None:
        stage, after = partials_schema(self._view), self._state.fetched
        before = pa.schema([after.field(name) for name in (*self._before, ROW)])
        self._reaches = calculator.prepare({"stage": stage}, self._reach_sql)
        slots = {"stage": stage, "before": before, "after": after, "views": VIEWS}

        def prepared(sets_aside: bool, is_again: bool) -> Statement:
            return calculator.prepare(
                slots,
                lambda slot: self._merge_sql(slot, sets_aside=sets_aside, is_again=is_again),
            )

        # By whether some event that is near is set aside for some row, and whether some event of
        # the tick may be stored already. Mostly neither is so.
        self._merges = {
            (sets_aside, is_again): prepared(sets_aside, is_again)
            for sets_aside in (False, True)
            for is_again in (False, True)
        }

    def seed(self, view: int) -> Delta:
        return Delta((), None)

    def select_sql(self, view: int, names: Sequence[str]) -> str:
        return self._state.select_sql(view, names)

    def keyed_select_sql(self, view: int, names: Sequence[str], hidden: Sequence[str]) -> str:
        return self._state.select_sql(view, names, hidden)

    def merge(self, given: KindInput) -> Steps:
        """One round: of the tick's keys the inputs a range before its first event, and the rows
        from then on to a range after its last; rows that close, and hidden ones that go."""
        fetches: dict[str, Fetch] = {}
        if given.partials.num_rows:
            reaches = self._reaches.run(stage=given.partials)
            if reaches.num_rows:
                fetches = self._near_fetches(reaches)
        closing, hidden = self._state.closing(given.views), self._hidden_fetch(given)
        if closing is not None:
            fetches["closing"] = closing
        if hidden is not None:
            fetches["hidden"] = hidden
        answers: Sequence[pa.Table] = (yield list(fetches.values())) if fetches else []
        found = dict(zip(fetches, answers, strict=True))
        closed, gone = found.pop("closing", None), found.pop("hidden", None)
        told, known = None, found.get("after")  # the rows put have its keys, and lie in its time
        if known is not None:
            beyond = given.partials.column(REJECTED_WINDOWS)
            sets_aside = any(
                table.column(ASIDE).null_count < len(table) for table in found.values()
            )
            merge = self._merges[
                sets_aside or _any(pc.greater(beyond, 0)), _any(pc.less(beyond, 0))
            ]
            told = merge.run(stage=given.partials, views=given.views, **found)
        if gone is None:
            return self._state.delta(told, closed, known=known)
        is_aside = pc.greater(gone.column(ASIDE), gone.column(WINDOW_START).cast(pa.int64()))
        hidden = gone.column(ROW).filter(is_aside)
        return self._state.delta(told, closed, hidden=hidden, known=known)

    def _near_fetches(self, reaches: pa.Table) -> dict[str, Fetch]:
        first, last = reaches.column(_FIRST), reaches.column(_LAST)
        none = pa.nulls(reaches.num_rows, pa.int64())
        low = none if self._reach is None else pc.subtract(first, self._reach)
        high = none if self._reach is None else pc.add(last, self._reach)
        keys = [reaches.column(name) for name in self._by]
        names = [*self._by, LOW, HIGH]
        after = pa.Table.from_arrays([*keys, first, high], names=names)
        fetches = {"after": Fetch(self.shape, self._by, after, WINDOW_START)}
        if self._reach != 0:
            before = pa.Table.from_arrays([*keys, low, pc.subtract(first, 1)], names=names)
            fetches["before"] = Fetch(self.shape, self._by, before, WINDOW_START, self._before)
        return fetches

    def _hidden_fetch(self, given: KindInput) -> Fetch | None:
        """Of the views whose turn it is, what no reader sees and no frame reaches any more."""
        if self._reach is None:
            return None
        views, bounds = (given.everywhere.column(name).to_pylist() for name in (VIEW, BOUND))
        past = [
            (view, False, None, bound - self._reach - 1)
            for view, bound in zip(views, bounds, strict=True)
            if is_turn(given.tick, view)
        ]
        if not past:
            return None
        types = (pa.int32(), pa.bool_(), pa.int64(), pa.int64())
        arrays = [pa.array(c, t) for c, t in zip(zip(*past, strict=True), types, strict=True)]
        rows = pa.Table.from_arrays(arrays, names=[VIEW, PASSES, LOW, HIGH])
        columns = (WINDOW_START, ASIDE)
        return Fetch(self.shape, (VIEW, PASSES), rows, WINDOW_START, columns)

    # SQL

    def _reach_sql(self, slot: Mapping[str, str]) -> str:
        by = text_of(self._by)
        return (
            f"SELECT {by}, min({PANE}) AS {_FIRST}, max({PANE}) AS {_LAST} "
            f"FROM {slot['stage']} WHERE {REJECTED_WINDOWS} < 2 GROUP BY {by}"
        )

    def _merge_sql(self, slot: Mapping[str, str], *, sets_aside: bool, is_again: bool) -> str:
        parts = {
            "raw": self._raw_sql(slot["stage"]),
            "spans": self._spans_sql(),
            "fresh": self._fresh_sql(),
        }
        if is_again:
            parts["known"] = self._known_sql(slot["after"])
        parts["near"] = self._near_sql(slot, is_again=is_again)
        parts["recomputed"] = self._recomputed_sql()
        parts["framed"] = self._framed_sql()
        parts["late"] = self._late_sql()
        if sets_aside:
            parts["mended"] = self._mended_sql()
        rows = self._rows_sql(slot["after"], sets_aside=sets_aside, is_again=is_again)
        texts = [f"{name} AS MATERIALIZED ({text})" for name, text in parts.items()]
        return f"WITH {', '.join(texts)} {self._state.told_sql(f'({rows})', slot['views'])}"

    def _raw_sql(self, stage: str) -> str:
        """The staged events that at least one row can take, numbered downwards from -1. Those
        that come again (REJECTED_WINDOWS < 0) are taken by all rows."""
        keys = text_of([VIEW, *(column.name for column in self._view.keys)])
        return (
            f"SELECT {keys}, {PANE} AS {_TIME}, {PASSED}, "
            f"CASE WHEN {REJECTED_WINDOWS} > 0 THEN {ASIDE} END AS {ASIDE}, "
            f"{text_of(self._inputs)}, "
            f"-row_number() OVER () AS {ROW} FROM {stage} WHERE {REJECTED_WINDOWS} < 2"
        )

    def _spans_sql(self) -> str:
        """The staged keys with the time of their first event. They are numbered: sorting by a
        number takes two thirds of the time that sorting by a text does."""
        by = text_of(self._by)
        return (
            f"SELECT {by}, min({_TIME}) AS {_FIRST}, row_number() OVER () AS {_KEY} "
            f"FROM raw GROUP BY {by}"
        )

    def _fresh_sql(self) -> str:
        return f"SELECT r.*, k.{_KEY} FROM raw r JOIN spans k ON {self._same_frame('r', 'k')}"

    def _same_frame(self, left: str, right: str) -> str:
        keys = [column for column in self._view.keys if column.name in self._sliding.keys]
        return matched(left, right, keys, [BoundColumn(VIEW, INT), *keys])

    def _known_sql(self, after: str) -> str:
        """Where staged events are stored already."""
        numbered = (BoundColumn(VIEW, INT), *self._view.keys)
        match = matched("s", "f", self._view.keys, numbered)
        return f"SELECT f.{ROW} AS {_FRESH}, s.{ROW} FROM fresh f JOIN {after} s ON {match}"

    def _near_sql(self, slot: Mapping[str, str], *, is_again: bool) -> str:
        """The staged events, and those stored ones that may be in a frame with them."""
        columns = [PASSED, ASIDE, *self._inputs, ROW]
        names = text_of(self._before)
        stored = f"SELECT {names}, {ROW} FROM {slot['after']}"
        if is_again:
            stored += f" WHERE {ROW} NOT IN (SELECT {ROW} FROM known)"
        if self._reach != 0:
            stored += f" UNION ALL SELECT {names}, {ROW} FROM {slot['before']}"
        chosen = text_of(columns, "s.")
        return (
            f"SELECT {_KEY}, {text_of(columns)}, {_TIME}, {_TIME} AS {_FIRST} FROM fresh "
            f"UNION ALL SELECT k.{_KEY}, {chosen}, epoch_us(s.{WINDOW_START}), k.{_FIRST} "
            f"FROM ({stored}) s JOIN spans k ON {self._same_frame('s', 'k')}"
        )

    def _recomputed_sql(self) -> str:
        """The events from the first staged one of their key on, with their frames."""
        source = "near"
        for reach, columns in self._by_range().items():
            chosen = ", ".join(f"{c.combine} AS {quoted(c.name)}" for c in columns)
            preceding = "UNBOUNDED" if reach is None else str(reach)
            source = (
                f"(SELECT *, {chosen} FROM {source} WINDOW {FRAME} AS (PARTITION BY {_KEY} "
                f"ORDER BY {_TIME} RANGE BETWEEN {preceding} PRECEDING AND CURRENT ROW))"
            )
        names = text_of([_KEY, _TIME, ROW, ASIDE, *(c.name for c in self._sliding.columns)])
        return f"SELECT {names} FROM {source} WHERE {_TIME} >= {_FIRST}"

    def _framed_sql(self) -> str:
        """Of these, those that take a staged event into their widest frame: each staged one, and
        few others. The rest stays as it is, to the last digit."""
        others = f"SELECT {_KEY}, {_TIME}, {ROW} FROM recomputed WHERE {ROW} >= 0"
        last = f"SELECT {_KEY}, max({_TIME}) AS {_LAST} FROM ({others}) GROUP BY {_KEY}"
        before = (
            f"SELECT f.* FROM fresh f JOIN ({last}) o "
            f"ON o.{_KEY} = f.{_KEY} AND f.{_TIME} <= o.{_LAST}"
        )
        touched = self._counted_sql(others, f"({before}) WHERE true", self._reached())
        return (
            f"SELECT * FROM recomputed WHERE {ROW} < 0 OR {ROW} IN (SELECT {ROW} FROM ({touched}))"
        )

    def _reached(self) -> str | None:
        """The last moment at which an event is in a frame."""
        return None if self._reach is None else f"{_TIME} + {self._reach}"

    def _counted_sql(self, rows: str, events: str, last: str | None) -> str:
        """The rows that take some of the events, and how many. An event counts for the rows from
        its time on, or from where on it is taken, up to `last`: one step up and one down, which
        are summed along the time. A join would take as long as a key has events, squared."""
        first = f"greatest({_TIME}, coalesce({ASIDE}, {_TIME}))"
        steps = f"SELECT {_KEY}, {first}, NULL, 1 FROM {events}"
        if last is not None:
            counts = f"{first} <= {last}"
            steps += f" AND {counts} UNION ALL "
            steps += f"SELECT {_KEY}, {last} + 1, NULL, -1 FROM {events} AND {counts}"
        summed = (
            f"sum(_step) OVER (PARTITION BY {_KEY} ORDER BY {_TIME} "
            "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
        )
        return (
            f"SELECT {ROW}, n FROM (SELECT {ROW}, {summed} AS n FROM "
            f"(SELECT *, 0 AS _step FROM ({rows}) UNION ALL {steps})) "
            f"WHERE {ROW} NOTNULL AND n > 0"
        )

    def _by_range(self) -> dict[int | None, list[SlidingColumn]]:
        found: dict[int | None, list[SlidingColumn]] = {}
        for column in self._sliding.columns:
            found.setdefault(column.range_microseconds, []).append(column)
        return found

    def _late_sql(self) -> str:
        """How many events each touched row has taken in that were late for it: those of its frame
        whose watermark was after it."""
        late = f"near WHERE {PASSED} > {_TIME}"
        rows = (
            f"SELECT {_KEY}, {_TIME}, {ROW} FROM framed WHERE {_KEY} IN (SELECT {_KEY} FROM {late})"
        )
        reached = self._reached()
        last = f"{PASSED} - 1" if reached is None else f"least({reached}, {PASSED} - 1)"
        return self._counted_sql(rows, late, last)

    def _frame(self, event: str, row: str, reach: int | None) -> list[str]:
        """The conditions that an event is in the frame of a row."""
        key = f"{event}.{_KEY} = {row}.{_KEY}"
        time = f"{event}.{_TIME} <= {row}.{_TIME}"
        if reach is None:
            return [key, time]
        return [key, time, f"{event}.{_TIME} >= {row}.{_TIME} - {reach}"]

    def _takes(self, event: str, row: str) -> str:
        return f"coalesce({event}.{ASIDE} <= {row}.{_TIME}, true)"

    def _mended_sql(self) -> str:
        """The frames of rows that do not take every event in them, and that somebody sees."""
        match = " AND ".join(self._frame("a", "r", self._reach))
        apart = f"(SELECT * FROM near WHERE {ASIDE} > {_TIME})"
        rows = (
            f"SELECT {_KEY}, {_TIME}, {ROW} FROM framed r "
            f"SEMI JOIN {apart} a ON {match} AND NOT {self._takes('a', 'r')} "
            f"WHERE {self._takes('r', 'r')}"
        )
        joined, names = f"({rows}) m", [f"m.{ROW}"]
        for number, (reach, columns) in enumerate(self._by_range().items()):
            within = [*self._frame("e", "r", reach), self._takes("e", "r")]
            chosen = [f"{c.combine} AS {quoted(c.name)}" for c in columns]
            frames = (
                f"SELECT {ROW}, {', '.join(chosen)} FROM "
                f"(SELECT r.{ROW}, {text_of(self._inputs, 'e.')} FROM ({rows}) r JOIN near e ON "
                f"{' AND '.join(within)}) WINDOW {FRAME} AS (PARTITION BY {ROW})"
                f" QUALIFY row_number() OVER (PARTITION BY {ROW}) = 1"
            )
            joined += f" LEFT JOIN ({frames}) f{number} ON f{number}.{ROW} = m.{ROW}"
            names += [f"f{number}.{quoted(c.name)}" for c in columns]
        return f"SELECT {', '.join(names)} FROM {joined}"

    def _rows_sql(self, after: str, *, sets_aside: bool, is_again: bool) -> str:
        """The touched rows as they become and as they were."""
        joins = f"LEFT JOIN late ON late.{ROW} = r.{ROW}"
        columns = {c.name: f"r.{quoted(c.name)}" for c in self._sliding.columns}
        if sets_aside:
            joins += f" LEFT JOIN mended m ON m.{ROW} = r.{ROW}"
            for name, framed in columns.items():
                mended = f"CASE WHEN m.{ROW} IS NULL THEN {framed} ELSE m.{quoted(name)} END"
                columns[name] = mended
        columns[REVISION] = "CAST(coalesce(late.n, 0) AS BIGINT)"
        columns[WINDOW_START] = f"make_timestamptz(r.{_TIME})"
        columns[WINDOW_END] = f"make_timestamptz(r.{_TIME} + 1)"
        state = ", ".join(
            f"{columns.get(name, f's.{quoted(name)}')} AS {quoted(name)}"
            for name in (VIEW, *(column.name for column in self._state.state))
        )
        shown = list(zip(self._state.shown, self._state.was, strict=True))

        def before(row: str) -> str:
            values = [f"{row}.{quoted(column.name)} AS {was}" for column, was in shown]
            last = f"{row}.{PASSES} AS {WAS_PASSED}, {row}.{WINDOW_END} AS {WAS_ENDS}"
            return f"{row}.{ROW}, true AS {KEPT}, {', '.join(values)}, {last}"

        was = before("s")
        stored = f"SELECT {state}, {was} FROM framed r JOIN {after} s ON s.{ROW} = r.{ROW} {joins}"
        if is_again:
            joins += f" LEFT JOIN known k ON k.{_FRESH} = r.{ROW}"
            joins += f" LEFT JOIN {after} b ON b.{ROW} = k.{ROW}"
            was = before("b")
        else:
            nothing = [f"NULL AS {name}" for name in self._state.was]
            was = f"NULL AS {ROW}, true AS {KEPT}, {', '.join(nothing)}, "
            was += f"NULL AS {WAS_PASSED}, NULL AS {WAS_ENDS}"
        fresh = f"SELECT {state}, {was} FROM framed r JOIN fresh s ON s.{ROW} = r.{ROW} {joins}"
        return f"{stored} UNION ALL {fresh}"


def _any(mask: pa.ChunkedArray) -> bool:
    return bool(pc.any(mask, min_count=0).as_py())
