"""The SQL of a view with OVER (… RANGE …): one state row per event, with the inputs of its
aggregates and what they give over the row's frame.

A tick's events touch the rows of the same keys whose frame they are in: those at their time and up
to the range after it. To compute these anew takes the events from a range before to a range after
them, and nothing else is read: the state table lies about in the order of time, and DuckDB skips
what is outside the literal bounds.

An event that is late for a row counts in its revision, and one that is set aside for it (ASIDE
after the row's time) is not in its frame. No window function over the frame can say that, since it
depends on both rows. Revisions are counted along the time instead; the values of rows that lack an
event of their frame, which are few, come from a join.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import pyarrow as pa

from headrace.kinds.calculator import quoted
from headrace.model.plan import (
    ASIDE,
    BEYOND,
    FRAME,
    LATE,
    PANE,
    PASSED,
    ROWS,
    BoundColumn,
    BoundView,
    Sliding,
    SlidingColumn,
)
from headrace.store.duckdb.schema import BIGINT, REVISION, WINDOW_END, WINDOW_START, ViewSchema

__all__ = ["SlidingSchema", "Span"]

Span = tuple[int, int]  # event times from … to, both included, in microseconds


class SlidingSchema(ViewSchema):
    """Beside what other windows have, state rows hold PASSED, ASIDE (NULL: no row is without the
    event) and the columns of the frames. A row whose own event is set aside for it is not public.
    """

    def __init__(self, view: BoundView, number: int) -> None:
        window = view.plan.window
        assert isinstance(window, Sliding)
        self.sliding = window
        super().__init__(view, number)
        self.row = f"{self.prefix}row"
        self.time = f"{self.prefix}time"
        self.key = f"{self.prefix}key"
        self._low, self._high = f"{self.prefix}low", f"{self.prefix}high"
        self._by = [quoted(name) for name in window.keys]
        self._inputs = [ROWS, *(quoted(c.name) for c in view.partials)]

    def _more_state(self) -> tuple[BoundColumn, ...]:
        own = (BoundColumn(PASSED, BIGINT), BoundColumn(ASIDE, BIGINT))
        return (*own, *self.view.slidings)

    @cached_property
    def stage_schema(self) -> pa.Schema:
        keys = [(column.name, column.type.arrow) for column in self.keys]
        late = [(LATE, pa.int32()), (BEYOND, pa.int32())]
        times = [(PANE, pa.int64()), (PASSED, pa.int64()), (ASIDE, pa.int64())]
        partials = [(column.name, column.type.arrow) for column in self.view.partials]
        return pa.schema([*keys, *times, *late, (ROWS, pa.int64()), *partials])

    @property
    def _passes(self) -> str:
        return f"({super()._passes} AND coalesce({ASIDE} <= epoch_us({WINDOW_START}), true))"

    # The merge

    def sliding_merge_sql(
        self, stage: str, spans: Sequence[Span], *, sets_aside: bool, is_again: bool
    ) -> str:
        """As `merge_sql`, of the rows that the staged events touch; it reads the state table.

        `spans` hold all staged events, each with its range on both sides. `sets_aside`: some event
        among the staged ones or in the state is set aside for some row. `is_again`: some staged
        event may be in the state already, and takes that row's place."""
        parts = {
            "raw": self._raw_sql(stage),
            "spans": self._spans_sql(),
            "fresh": self._fresh_sql(),
            "stored": self._stored_sql(spans, is_again),
            "near": self._near_sql(),
            "recomputed": self._recomputed_sql(),
            "framed": self._framed_sql(),
            "late": self._late_sql(),
            "rows": self._rows_sql(spans, sets_aside=sets_aside, is_again=is_again),
        }
        if is_again:
            parts["known"] = self._known_sql(spans)
        if sets_aside:
            parts["mended"] = self._mended_sql()
        order = (
            *("raw", "spans", "fresh", "known", "stored", "near"),
            *("recomputed", "framed", "late", "mended", "rows"),
        )
        texts = [f"{name} AS MATERIALIZED ({parts[name]})" for name in order if name in parts]
        before = f"SELECT {', '.join(self._before_columns())} FROM {self.state_table} "
        before += f"WHERE {self._within(spans)}"
        complete = (
            f"SELECT r.*, {', '.join(f'b.{quoted(name)}' for name in self.before)}, "
            f"coalesce(b.{self.passed}, false) AS {self.passed} "
            f"FROM rows r LEFT JOIN (SELECT b.* FROM ({before}) b SEMI JOIN rows USING ({self.id}))"
            f" b ON b.{self.id} = r.{self.id}"
        )
        return f"WITH {', '.join(texts)}, {self._finished_sql(complete)}"

    def _before_columns(self) -> list[str]:
        finals = [
            f"{sql} AS {quoted(name)}"
            for name, sql in zip(self.before, self._final_sql, strict=True)
        ]
        return [self.id, *finals, f"{self._passes} AS {self.passed}"]

    def _raw_sql(self, stage: str) -> str:
        """The staged events that at least one row can take, numbered downwards from -1. Those
        that come again (BEYOND < 0) are taken by all rows."""
        keys = [quoted(column.name) for column in self.keys]
        partials = [quoted(column.name) for column in self.view.partials]
        columns = [
            *keys,
            f"{PANE} AS {self.time}",
            PASSED,
            f"CASE WHEN {BEYOND} > 0 THEN {ASIDE} END AS {ASIDE}",
            ROWS,
            *partials,
            f"-row_number() OVER () AS {self.row}",
        ]
        return f"SELECT {', '.join(columns)} FROM {stage} WHERE {BEYOND} < 2"

    def _known_sql(self, spans: Sequence[Span]) -> str:
        """Where staged events stand in the state already."""
        match = " AND ".join(
            f"s.{quoted(c.name)} IS NOT DISTINCT FROM f.{quoted(c.name)}" for c in self.keys
        )
        return (
            f"SELECT f.{self.row}, s.{self.id} FROM fresh f JOIN {self.state_table} s ON {match}"
            f" WHERE {self._within(spans)}"
        )

    def _spans_sql(self) -> str:
        """The staged keys with the time of their first and last event. They are numbered: sorting
        by a number takes two thirds of the time that sorting by a text does."""
        by = f" GROUP BY {', '.join(self._by)}" if self._by else ""
        times = [f"min({self.time}) AS {self._low}", f"max({self.time}) AS {self._high}"]
        columns = [*self._by, *times, f"row_number() OVER () AS {self.key}"]
        return f"SELECT {', '.join(columns)} FROM raw{by}"

    def _fresh_sql(self) -> str:
        match = " AND ".join(self._same_keys("r", "k")) or "true"
        return f"SELECT r.*, k.{self.key} FROM raw r JOIN spans k ON {match}"

    def _stored_sql(self, spans: Sequence[Span], is_again: bool) -> str:
        """What the state holds of the staged keys within reach of their events."""
        columns = [*self._by, PASSED, ASIDE, *self._inputs, f"{self.id} AS {self.row}"]
        time = f"epoch_us({WINDOW_START})"
        known = f" AND {self.id} NOT IN (SELECT {self.id} FROM known)" if is_again else ""
        state = (
            f"SELECT {', '.join(columns)}, {time} AS {self.time} FROM {self.state_table} "
            f"WHERE {self._within(spans)}{known}"
        )
        match = self._same_keys("s", "k")
        reach = self.sliding.range_microseconds
        if reach is not None:
            match.append(f"s.{self.time} >= k.{self._low} - {reach}")
            match.append(f"s.{self.time} <= k.{self._high} + {reach}")
        on = " AND ".join(match) or "true"
        return f"SELECT s.*, k.{self.key}, k.{self._low} FROM ({state}) s JOIN spans k ON {on}"

    def _same_keys(self, left: str, right: str) -> list[str]:
        return [f"{left}.{name} IS NOT DISTINCT FROM {right}.{name}" for name in self._by]

    def _near_sql(self) -> str:
        columns = ", ".join([self.key, PASSED, ASIDE, *self._inputs, self.row, self.time])
        return (
            f"SELECT {columns}, {self.time} AS {self._low} FROM fresh "
            f"UNION ALL SELECT {columns}, {self._low} FROM stored"
        )

    def _recomputed_sql(self) -> str:
        """The events from the first staged one of their key on, with their frames."""
        source = "near"
        for reach, columns in self._by_range().items():
            chosen = ", ".join(f"{c.combine} AS {quoted(c.name)}" for c in columns)
            preceding = "UNBOUNDED" if reach is None else str(reach)
            source = (
                f"(SELECT *, {chosen} FROM {source} WINDOW {FRAME} AS (PARTITION BY {self.key} "
                f"ORDER BY {self.time} RANGE BETWEEN {preceding} PRECEDING AND CURRENT ROW))"
            )
        names = [quoted(c.name) for c in self.sliding.columns]
        kept = [self.key, self.time, self.row, ASIDE, *names]
        return f"SELECT {', '.join(kept)} FROM {source} WHERE {self.time} >= {self._low}"

    def _framed_sql(self) -> str:
        """Of these, those that take a staged event into their widest frame: each staged one, and
        few others. The rest stays as it is, to the last digit."""
        others = f"SELECT {self.key}, {self.time}, {self.row} FROM recomputed WHERE {self.row} >= 0"
        last = f"SELECT {self.key}, max({self.time}) AS {self._high} FROM ({others}) GROUP BY ALL"
        before = (
            f"SELECT f.* FROM fresh f "
            f"JOIN ({last}) o ON o.{self.key} = f.{self.key} AND f.{self.time} <= o.{self._high}"
        )
        touched = self._counted_sql(others, f"({before}) WHERE true", self._reached())
        return (
            f"SELECT * FROM recomputed WHERE {self.row} < 0 "
            f"OR {self.row} IN (SELECT {self.row} FROM ({touched}))"
        )

    def _reached(self) -> str | None:
        """The last moment at which an event is in a frame."""
        reach = self.sliding.range_microseconds
        return None if reach is None else f"{self.time} + {reach}"

    def _counted_sql(self, rows: str, events: str, last: str | None) -> str:
        """The rows that take some of the events, and how many. An event counts for the rows from
        its time on, or from where on it is taken, up to `last`: one step up and one down, which
        are summed along the time. A join would take as long as a key has events, squared."""
        first = f"greatest({self.time}, coalesce({ASIDE}, {self.time}))"
        count = f"{self.prefix}count"
        steps = f"SELECT {self.key}, {first}, NULL, 1 FROM {events}"
        if last is not None:
            counts = f"{first} <= {last}"
            steps += f" AND {counts} UNION ALL "
            steps += f"SELECT {self.key}, {last} + 1, NULL, -1 FROM {events} AND {counts}"
        summed = (
            f"sum({count}) OVER (PARTITION BY {self.key} ORDER BY {self.time} "
            "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
        )
        return (
            f"SELECT {self.row}, n FROM (SELECT {self.row}, {summed} AS n FROM "
            f"(SELECT *, 0 AS {count} FROM ({rows}) UNION ALL {steps})) "
            f"WHERE {self.row} NOTNULL AND n > 0"
        )

    def _by_range(self) -> dict[int | None, list[SlidingColumn]]:
        found: dict[int | None, list[SlidingColumn]] = {}
        for column in self.sliding.columns:
            found.setdefault(column.range_microseconds, []).append(column)
        return found

    def _late_sql(self) -> str:
        """How many events each touched row has taken in that were late for it: those of its frame
        whose watermark was after it."""
        late = f"near WHERE {PASSED} > {self.time}"
        rows = (
            f"SELECT {self.key}, {self.time}, {self.row} FROM framed "
            f"WHERE {self.key} IN (SELECT {self.key} FROM {late})"
        )
        reached = self._reached()
        last = f"{PASSED} - 1" if reached is None else f"least({reached}, {PASSED} - 1)"
        return self._counted_sql(rows, late, last)

    def _frame(self, event: str, row: str, reach: int | None) -> list[str]:
        """The conditions that an event is in the frame of a row."""
        key = f"{event}.{self.key} = {row}.{self.key}"
        time = f"{event}.{self.time} <= {row}.{self.time}"
        if reach is None:
            return [key, time]
        return [key, time, f"{event}.{self.time} >= {row}.{self.time} - {reach}"]

    def _takes(self, event: str, row: str) -> str:
        return f"coalesce({event}.{ASIDE} <= {row}.{self.time}, true)"

    def _mended_sql(self) -> str:
        """The frames of rows that do not take every event in them, and that somebody sees."""
        widest = self.sliding.range_microseconds
        match = " AND ".join(self._frame("a", "r", widest))
        apart = f"(SELECT * FROM near WHERE {ASIDE} > {self.time})"
        rows = (
            f"SELECT {', '.join([self.key, self.time, self.row])} FROM framed r "
            f"SEMI JOIN {apart} a ON {match} AND NOT {self._takes('a', 'r')} "
            f"WHERE {self._takes('r', 'r')}"
        )
        joined, names = f"({rows}) m", [f"m.{self.row}"]
        for number, (reach, columns) in enumerate(self._by_range().items()):
            within = [*self._frame("e", "r", reach), self._takes("e", "r")]
            chosen = [f"{c.combine} AS {quoted(c.name)}" for c in columns]
            inputs = ", ".join(f"e.{name}" for name in self._inputs)
            frames = (
                f"SELECT {self.row}, {', '.join(chosen)} FROM "
                f"(SELECT r.{self.row}, {inputs} FROM ({rows}) r JOIN near e ON "
                f"{' AND '.join(within)}) WINDOW {FRAME} AS (PARTITION BY {self.row})"
                f" QUALIFY row_number() OVER (PARTITION BY {self.row}) = 1"
            )
            joined += f" LEFT JOIN ({frames}) f{number} ON f{number}.{self.row} = m.{self.row}"
            names += [f"f{number}.{quoted(c.name)}" for c in columns]
        return f"SELECT {', '.join(names)} FROM {joined}"

    def _rows_sql(self, spans: Sequence[Span], *, sets_aside: bool, is_again: bool) -> str:
        """The touched rows as they become, with the id of the row each replaces."""
        joins = f"LEFT JOIN late ON late.{self.row} = r.{self.row}"
        columns = {c.name: f"r.{quoted(c.name)}" for c in self.sliding.columns}
        if sets_aside:
            joins += f" LEFT JOIN mended m ON m.{self.row} = r.{self.row}"
            for name, framed in columns.items():
                mended = f"CASE WHEN m.{self.row} IS NULL THEN {framed} ELSE m.{quoted(name)} END"
                columns[name] = mended
        columns[REVISION] = "CAST(coalesce(late.n, 0) AS BIGINT)"
        columns[WINDOW_START] = f"make_timestamptz(r.{self.time})"
        columns[WINDOW_END] = f"make_timestamptz(r.{self.time} + 1)"
        chosen = [
            f"{columns.get(c.name, f's.{quoted(c.name)}')} AS {quoted(c.name)}" for c in self.state
        ]
        now = f"CAST(NULL AS BIGINT) AS {self.id}"
        fresh_joins = joins
        if is_again:
            fresh_joins += f" LEFT JOIN known k ON k.{self.row} = r.{self.row}"
            now = f"k.{self.id}"
        fresh = (
            f"SELECT {', '.join(chosen)}, {now} FROM framed r JOIN fresh s "
            f"ON s.{self.row} = r.{self.row} {fresh_joins}"
        )
        stored = (
            f"SELECT {', '.join(chosen)}, s.{self.id} FROM framed r JOIN (SELECT * FROM "
            f"{self.state_table} WHERE {self._within(spans)}) s ON s.{self.id} = r.{self.row} "
            f"{joins}"
        )
        return f"{fresh} UNION ALL {stored}"

    def _within(self, spans: Sequence[Span]) -> str:
        """Literal bounds of event time, by which DuckDB skips what lies outside."""
        texts = [
            f"{WINDOW_START} BETWEEN make_timestamptz({low}) AND make_timestamptz({high})"
            for low, high in spans
        ]
        return f"({' OR '.join(texts)})" if texts else "true"
