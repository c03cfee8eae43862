"""From ranges of events to partials: one job for all that is small, else one plan for each stream.

- Duplicates are found first, and left out of every run (dedup.py).
- What the views look up in tables is looked up then, for the whole range at once (lookups.py).
- Streams with few events are computed together, event by event (shared_plan.py); a stream with
  many is grouped by a plan of its own.
- Events that others must judge (LATE is NULL) are judged. Where each row is one event the result is
  filled in; where rows are groups the plan runs again.
- A stream that halts on late events is cut before the first that nobody has decided.
- What fails on data runs for each stream alone, then for each view; a view that fails alone leaves
  the tick and tries with half the rows, until one event is left, which becomes its dead letter.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.dedup import Verdict, find_duplicates
from headrace.engine.late_events import OWN_COLUMNS, LateFinder
from headrace.engine.late_windows import JoinedWindows, count_rows
from headrace.engine.lateness import LatenessResolver
from headrace.engine.lookups import LookUps
from headrace.engine.shared_plan import Planning
from headrace.engine.views import (
    Halt,
    Isolation,
    LiveView,
    ViewGroup,
    moved,
    reached_offsets,
)
from headrace.log.contract import LogReader, Range
from headrace.model.definitions import LatePolicy, Stream
from headrace.model.errors import LookUpError
from headrace.model.plan import LATE, REJECTED_WINDOWS
from headrace.model.settings import Settings
from headrace.spark.data_failures import data_failure
from headrace.spark.event_annotations import (
    DECISION,
    EventAnnotations,
    annotations_of,
    lateness_column,
    merged,
)
from headrace.spark.event_query import TIME, EventQuery
from headrace.spark.event_tables import EventTables
from headrace.spark.leaf import OFFSET, PARTITION, WATERMARK
from headrace.spark.prepared_plan import PartialTables, PreparedPlan
from headrace.spark.prepared_projection import Part
from headrace.spark.windows import Decision, Lateness
from headrace.store.contract import Store, ViewStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Computed", "Computer"]

log = logging.getLogger("headrace.engine")

PLANS_MAX = 64
Work = tuple["ViewGroup", tuple[Range, ...]]
_ANNOTATIONS_NAME = "annotations.arrow"


@dataclass(frozen=True)
class GroupedTables:
    """What a grouped plan gave: each row stands for one event or more."""

    tables: PartialTables


Run = GroupedTables | EventTables


@dataclass(frozen=True)
class Computed:
    """What a run gave for some views of a group. `dead` names the reason by view, when the range
    is the one event that fails; `verdict` says which events are duplicates; `late` are the late
    events of views that set some aside, `joined` the windows of those that others had to judge;
    `rowless` are the places of events that are dead letters of a view because a table has no row
    for them, and that table's name; `halt` is where the stream must stop after these ranges."""

    group: ViewGroup
    ranges: tuple[Range, ...]
    views: tuple[LiveView, ...]
    tables: PartialTables
    annotations: EventAnnotations = field(default_factory=EventAnnotations)
    verdict: Verdict = field(default_factory=Verdict)
    dead: Mapping[str, str] = field(default_factory=dict)
    late: Mapping[str, pa.Table] = field(default_factory=dict)
    joined: Mapping[str, JoinedWindows] = field(default_factory=dict)
    rowless: Mapping[str, pa.Table] = field(default_factory=dict)
    halt: Halt | None = None

    @property
    def rows(self) -> int:
        return sum(r.rows for r in self.ranges)

    @cached_property
    def duplicates(self) -> int:
        return sum(self.annotations.excluded_in(r.partition, r.start, r.end) for r in self.ranges)

    @property
    def next_offsets(self) -> tuple[int, ...]:
        return moved(self.group.next_offsets, self.ranges)


class Computer:
    """Holds the prepared plans. Runs on the tick's thread."""

    def __init__(
        self,
        spark: SparkSession,
        planning: Planning,
        reader: LogReader,
        store: Store,
        settings: Settings,
    ) -> None:
        self._spark = spark
        self._analysis = planning.analysis
        self._store = store
        self._settings = settings
        self._lanes = settings.engine.cores_used
        self._pool = ThreadPoolExecutor(max(2, self._lanes), "headrace-lane")
        self._plans: dict[tuple[str, ...], PreparedPlan] = {}
        self._reader = reader
        event_query = EventQuery(spark, reader.address)
        self._finder = LateFinder(event_query, reader)
        self._lateness = LatenessResolver(event_query, store)
        self._look_ups = LookUps(reader, store, event_query, settings.run_directory)
        self._views: Sequence[LiveView] = ()
        self._planning = planning.pool
        self._shared = planning.shared
        self._filed: dict[str, tuple[EventAnnotations, str]] = {}  # by stream
        self._verdicts: dict[tuple[str, tuple[Range, ...]], Verdict] = {}

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def prepare(self, views: Sequence[LiveView]) -> None:
        """The plan that the first small tick runs."""
        self._shared.prepare(views)

    def prepare_grouped(self, group: ViewGroup) -> None:
        """What the group's first large tick runs, made beside the ticks until then."""
        self._planning.submit(self._plan(group.stream, group.views).warm_up)

    def follow(self, views: Sequence[LiveView]) -> None:
        """At the start of every tick: views that have begun since get a new plan, beside the one
        that serves."""
        self._views = views
        self._shared.follow(views)

    def compute(self, work: Sequence[Work]) -> list[Computed]:
        """The partials of every group, of which each stream has at most one. Groups are computed
        together where they are small; if that fails on data, one after the other."""
        known: dict[str, EventTables] = {}
        for together in self._shared.packed(work):
            if len(together) < 2:
                continue
            try:
                known.update(self._run_small(together))
            except Exception as error:
                if _own_failure(error) is None:
                    raise
        return [
            done
            for group, ranges in work
            for done in self._compute(group, ranges, known.get(group.stream.name))
        ]

    def _compute(
        self, group: ViewGroup, ranges: tuple[Range, ...], known: EventTables | None = None
    ) -> list[Computed]:
        """The group's partials; when its views fail on data together, each view's on its own."""
        try:
            return [self._attempt(group, ranges, known)]
        except Exception as error:
            reason = _own_failure(error)
            if reason is None:
                raise
            if isinstance(error, LookUpError) and len(group.views) == 1:
                self._fail(group.views[0], error)
                return []
        if len(group.views) > 1:
            alone = [replace(group, views=(view,)) for view in group.views]
            found = [done for one in alone for done in self._compute(one, ranges)]
            least = self._least(group.stream, ranges, [done.ranges for done in found])
            if least == ranges:
                return found
            # Some views halt earlier than others: none goes on without them.
            again = [done for one in alone for done in self._compute(one, least)]
            halt = next(done.halt for done in found if done.halt is not None)
            return [replace(done, halt=done.halt or halt) for done in again]
        return self.isolate(group, ranges, reason)

    def _fail(self, view: LiveView, error: LookUpError) -> None:
        """It asks for rows of a table that the table no longer has, and always will."""
        view.status = ViewStatus("failed", f"{error.message}; {error.hint}")
        self._store.set_status(view.name, view.status)
        log.error("view %s stops: %s", view.name, error.message)

    def isolate(self, group: ViewGroup, ranges: tuple[Range, ...], reason: str) -> list[Computed]:
        """The view leaves the tick and tries again with half the rows, until one event is left."""
        (view,) = group.views
        rows = sum(r.rows for r in ranges)
        if rows == 1:
            verdict = self._verdict(group.stream, ranges)
            annotations = self._known_annotations(group.stream, ranges, verdict)
            dead = {view.name: reason}
            return [Computed(group, ranges, group.views, {}, annotations, verdict, dead)]
        kept = view.isolation or Isolation(moved(group.next_offsets, ranges), rows_max=rows)
        kept.rows_max = rows // 2
        view.isolation = kept
        log.warning("view %s failed on data among %s events: %s", view.name, rows, reason)
        return []

    def _attempt(
        self, group: ViewGroup, ranges: tuple[Range, ...], known: EventTables | None = None
    ) -> Computed:
        verdict = self._verdict(group.stream, ranges)
        annotations = self._annotations(group, ranges, verdict)
        run = known or self._run(group, ranges, annotations)
        unresolved = [view for view in group.views if _has_null(run.tables, view, LATE)]
        joined: dict[str, JoinedWindows] = {}
        if unresolved:
            run, annotations, joined = self._with_lateness(
                group, unresolved, ranges, run, annotations
            )
        undecided = [view for view in group.views if _has_null(run.tables, view, REJECTED_WINDOWS)]
        if undecided and group.stream.late_policy is LatePolicy.HALT:
            cut, halt = self._cut(group.stream, undecided, ranges, run, annotations)
            if not cut:
                return Computed(group, (), group.views, {}, halt=halt)
            return replace(self._attempt(group, cut), halt=halt)
        late = {
            view.name: self._late_events(view, group.stream, ranges, run, annotations)
            for view in group.views
            if _records_late(group.stream) and _sets_aside(run.tables, view)
        }
        rowless = self._rowless(group, ranges, annotations)
        return Computed(
            group,
            ranges,
            group.views,
            run.tables,
            annotations,
            verdict,
            late=late,
            joined=joined,
            rowless=rowless,
        )

    def _rowless(
        self, group: ViewGroup, ranges: tuple[Range, ...], annotations: EventAnnotations
    ) -> dict[str, pa.Table]:
        found = {}
        for view in group.views:
            if any(join.dead is not None for join in view.running_plan.plan.joins):
                file = self._file(group.stream, annotations)
                found[view.name] = self._look_ups.rowless(
                    view.running_plan.plan, group.stream, ranges, file
                )
        return found

    def _verdict(self, stream: Stream, ranges: tuple[Range, ...]) -> Verdict:
        """Views that run alone after a failure are judged once, like the group they left."""
        if stream.deduplication is None:
            return Verdict()
        key = (stream.name, ranges)
        if key not in self._verdicts:
            reached = reached_offsets(self._store, stream)
            self._verdicts[key] = find_duplicates(
                self._reader, self._store, stream, ranges, reached
            )
        return self._verdicts[key]

    def forget(self) -> None:
        """The tick is over: what was found rests on where the stream stood."""
        self._verdicts.clear()
        self._look_ups.forget()

    def _with_lateness(
        self,
        group: ViewGroup,
        views: Sequence[LiveView],
        ranges: tuple[Range, ...],
        run: Run,
        annotations: EventAnnotations,
    ) -> tuple[Run, EventAnnotations, dict[str, JoinedWindows]]:
        """How the events were judged that a first run could not judge, and what follows."""
        file = self._file(group.stream, annotations)
        joined: dict[str, JoinedWindows] = {}
        for view in views:
            partials = run.tables[(view.name, None)]
            events = run if isinstance(run, EventTables) else None
            found, joined[view.name] = self._lateness.resolve(
                view.running_plan, group.stream, ranges, partials, file, events
            )
            annotations = merged(annotations, found)
            if isinstance(run, EventTables):
                run = run.with_lateness(view.name, group.stream, found)
        if not isinstance(run, EventTables):
            run = self._run(group, ranges, annotations)
        return run, annotations, joined

    def _annotations(
        self, group: ViewGroup, ranges: tuple[Range, ...], verdict: Verdict
    ) -> EventAnnotations:
        """What is known of these events, with what the group's views look up for them."""
        known = self._known_annotations(group.stream, ranges, verdict)
        return self._look_ups.add(group.stream, ranges, group.views, known, self._views)

    def _known_annotations(
        self, stream: Stream, ranges: Sequence[Range], verdict: Verdict
    ) -> EventAnnotations:
        """What is known of these events: which are duplicates, and the operator's decisions."""
        known = EventAnnotations(verdict.excluded)
        if stream.late_policy is not LatePolicy.HALT:
            return known
        decided: dict[int, list[tuple[int, int]]] = {}
        for d in self._store.decisions(stream.name):
            if any(r.partition == d.partition and r.start <= d.offset < r.end for r in ranges):
                decided.setdefault(d.partition, []).append((d.offset, Decision[d.decision.upper()]))
        return merged(known, annotations_of(DECISION, decided)) if decided else known

    def _run(
        self, group: ViewGroup, ranges: tuple[Range, ...], annotations: EventAnnotations
    ) -> Run:
        if self._shared.packed([(group, ranges)]):
            return self._run_small([(group, ranges)], annotations)[group.stream.name]
        rows = sum(r.rows for r in ranges)
        shuffle = 0 < self._settings.engine.shuffle_rows_min <= rows
        plan = self._plan(group.stream, group.views)
        return GroupedTables(plan.run(ranges, shuffle, self._file(group.stream, annotations)))

    def _run_small(
        self, together: Sequence[Work], annotations: EventAnnotations | None = None
    ) -> dict[str, EventTables]:
        """One job. Without annotations those that are known of each stream's events."""
        parts = []
        for group, ranges in together:
            own = annotations
            if own is None:
                verdict = self._verdict(group.stream, ranges)
                own = self._annotations(group, ranges, verdict)
            names = tuple(view.name for view in group.views)
            parts.append(Part(group.stream.name, names, ranges, self._file(group.stream, own)))
        return self._shared.run(parts)

    def _file(self, stream: Stream, annotations: EventAnnotations) -> str:
        """Where the tasks find the annotations. Two files never share a name, nor do those of two
        engines that one Spark serves in turn: workers remember files."""
        if annotations.is_empty:
            return ""
        known = self._filed.get(stream.name)
        if known is not None and known[0] is annotations:
            return known[1]
        directory = self._settings.run_directory
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.glob(f"{stream.name}.*.{_ANNOTATIONS_NAME}"):
            old.unlink()
        file = directory / f"{stream.name}.{uuid.uuid4().hex}.{_ANNOTATIONS_NAME}"
        annotations.write(file)
        self._filed[stream.name] = (annotations, str(file))
        return str(file)

    def _late_events(
        self,
        view: LiveView,
        stream: Stream,
        ranges: Sequence[Range],
        run: Run,
        annotations: EventAnnotations,
    ) -> pa.Table:
        plan = view.running_plan.plan
        if isinstance(run, EventTables):
            return run.late_events(view.name, OWN_COLUMNS)
        return self._finder.find(plan, stream, ranges, self._file(stream, annotations))

    def _cut(
        self,
        stream: Stream,
        views: Sequence[LiveView],
        ranges: Sequence[Range],
        run: Run,
        annotations: EventAnnotations,
    ) -> tuple[tuple[Range, ...], Halt]:
        """The ranges up to the first late event of each partition that nobody has decided, and
        the first of those events."""
        halts: dict[int, Halt] = {}
        for view in views:
            found = self._late_events(view, stream, ranges, run, annotations)
            for row in found.filter(found.column(REJECTED_WINDOWS).is_null()).to_pylist():
                halt = Halt(row[PARTITION], row[OFFSET], _reason(view, row))
                known = halts.get(halt.partition)
                if known is None or halt.offset < known.offset:
                    halts[halt.partition] = halt
        cut = [
            self._up_to(stream, r, halts[r.partition].offset) if r.partition in halts else r
            for r in ranges
        ]
        return tuple(r for r in cut if r.rows), halts[min(halts)]

    def _up_to(self, stream: Stream, piece: Range, end: int) -> Range:
        return self._reader.cut(stream.name, piece.partition, piece.start, min(piece.end, end))

    def _least(
        self, stream: Stream, ranges: tuple[Range, ...], found: Sequence[tuple[Range, ...]]
    ) -> tuple[Range, ...]:
        """The part of the ranges that is in all that was found."""
        least = []
        for r in ranges:
            ends = [
                next((f.end for f in one if f.partition == r.partition), r.start) for one in found
            ]
            least.append(r if min(ends) >= r.end else self._up_to(stream, r, min(ends)))
        return tuple(r for r in least if r.rows)

    def missed(
        self, view: LiveView, places: Sequence[tuple[int, int]]
    ) -> tuple[PartialTables, int]:
        """The partials of events that were set aside, turned to just the windows they missed; and
        how many of the events had been applied to no window."""
        stream, ends = view.stream, self._reader.ends(view.stream.name)
        ranges = tuple(
            self._reader.cut(stream.name, partition, offset, ends[partition], 1)
            for partition, offset in places
        )
        late: dict[int, list[tuple[int, int]]] = {}
        for partition, offset in places:
            late.setdefault(partition, []).append((offset, Lateness.BEYOND_HORIZON))
        group = ViewGroup(view.stream, (view,), view.next_offsets, view.next_offsets, 0, False)
        known = self._annotations(group, ranges, Verdict())
        annotations = merged(known, annotations_of(lateness_column(view.name), late))
        tables = self._run(group, ranges, annotations).tables
        found: PartialTables = {}
        for key, table in tables.items():
            if REJECTED_WINDOWS in table.column_names:
                turned = pc.negate(table.column(REJECTED_WINDOWS))
                place = table.column_names.index(REJECTED_WINDOWS)
                found[key] = table.set_column(place, REJECTED_WINDOWS, turned)
        waited = count_rows(view.running_plan.plan, tables[(view.name, None)])[2]
        return found, waited

    def late_side_output(self, done: Computed, view: LiveView) -> pa.Table | None:
        late = done.late.get(view.name)
        if late is None:
            return None
        joined = done.joined.get(view.name, JoinedWindows())
        return self._finder.late_side_output(
            view.running_plan.plan, done.group.stream, late, joined
        )

    def _plan(self, stream: Stream, views: Sequence[LiveView]) -> PreparedPlan:
        key = _plan_key(stream, views)
        plan = self._plans.pop(key, None)
        if plan is None:
            if len(self._plans) >= PLANS_MAX:
                self._plans.pop(next(iter(self._plans)))
            plan = PreparedPlan(
                self._spark,
                self._analysis,
                self._reader,
                stream,
                [view.running_plan.plan for view in views],
                self._lanes,
                self._pool,
            )
        self._plans[key] = plan
        return plan


def _own_failure(error: Exception) -> str | None:
    """The reason, where it is of some view's own making; None else."""
    return error.message if isinstance(error, LookUpError) else data_failure(error)


def _plan_key(stream: Stream, views: Sequence[LiveView]) -> tuple[str, ...]:
    """By name too: a plan's tables carry the names of its views, and two may be defined alike."""
    plans = sorted(f"{view.name} {view.running_plan.plan.fingerprint}" for view in views)
    return (stream.name, *plans)


def _has_null(tables: PartialTables, view: LiveView, column: str) -> bool:
    partials = tables.get((view.name, None))
    if partials is None or column not in partials.column_names:
        return False
    return bool(partials.column(column).null_count)


def _records_late(stream: Stream) -> bool:
    """Whether late events that are set aside are kept one by one."""
    if stream.late_policy is LatePolicy.REVISE:
        return stream.late_horizon_microseconds is not None
    return stream.late_policy is not LatePolicy.DROP


def _sets_aside(tables: PartialTables, view: LiveView) -> bool:
    partials = tables.get((view.name, None))
    if partials is None or REJECTED_WINDOWS not in partials.column_names:
        return False
    return bool((partials.column(REJECTED_WINDOWS).to_numpy() > 0).any())


def _reason(view: LiveView, row: Mapping[str, int]) -> str:
    behind = (row[WATERMARK] - row[TIME]) / 1_000_000
    return (
        f"event {row[OFFSET]} of partition {row[PARTITION]} is late for {row[LATE]} "
        f"window{'s' if row[LATE] != 1 else ''} of view {view.name}: "
        f"it is {behind:g} s behind the watermark"
    )
