"""A view against the log: computed again with one batch query, at the offsets of one tick."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.compile import plan_view
from headrace.log.opening import log_address
from headrace.model.definitions import Project, Stream, View
from headrace.model.errors import ProofError
from headrace.model.plan import EventGroup, SessionWindow, Sliding, ViewPlan, changes_name
from headrace.model.settings import Settings
from headrace.proof.comparison import Compared, compare
from headrace.proof.duplicates import find_duplicates
from headrace.proof.events import LogTable, Note
from headrace.proof.groups import declare_grouped
from headrace.proof.oracle import REVISION, WINDOW_END, Oracle, oracle
from headrace.proof.sessions import declare_judged
from headrace.proof.sliding import sliding_rows
from headrace.store.contract import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Subject", "declare_events", "defined_view", "reconcile", "subject", "told"]

FINAL = "final"


@dataclass(frozen=True)
class Subject:
    """What is to be proven: the view as it is defined, and as it stood at one tick. `rows` is the
    file that came with the snapshot; `changes` are the streams of the changes of the tables that
    the view joins, by table."""

    settings: Settings
    stream: Stream
    plan: ViewPlan
    snapshot: Snapshot
    rows: Path
    changes: Mapping[str, Stream] = field(default_factory=dict)

    @property
    def starts(self) -> Mapping[int, int]:
        return self.snapshot.start_offsets

    @property
    def ends(self) -> Mapping[int, int]:
        return self.snapshot.next_offsets

    def events(self) -> int:
        """How many events the view is made of, as the log counts them."""
        reader = log_address(self.settings).open([self.stream])
        return sum(
            reader.rows_of(self.stream.name, partition, start, self.ends[partition])
            for partition, start in self.starts.items()
        )


def defined_view(project: Project, name: str) -> View:
    view = project.view(name)
    if view is None:
        raise ProofError(
            f"the project defines no view {name!r}",
            hint=f"views are {', '.join(v.name for v in project.views) or 'none yet'}",
        )
    return view


def subject(settings: Settings, project: Project, snapshot: Snapshot, rows: Path) -> Subject:
    """Raises ProofError when the snapshot is of another definition, or when the log no longer
    holds what the view is made of."""
    view = defined_view(project, snapshot.view)
    stream = project.stream(view.source)
    assert stream is not None, "the compiler saw to it"
    plan = plan_view(project, view)
    if plan.fingerprint != snapshot.fingerprint:
        raise ProofError(
            f"the definition of view {view.name} changed: the rows are those of another one",
            hint=f"headrace rebuild {view.name} fills it by the definition as it is now",
        )
    found = Subject(settings, stream, plan, snapshot, rows, _changes(project, plan))
    check_log(found)
    return found


def _changes(project: Project, plan: ViewPlan) -> dict[str, Stream]:
    found: dict[str, Stream] = {}
    for name in (join.lookup.table for join in plan.joins):
        table = project.view(name)
        assert table is not None, "the compiler saw to it"
        stream = project.stream(table.source)
        assert stream is not None, "the compiler saw to it"
        found[name] = stream
    return found


def check_log(what: Subject) -> None:
    reader = log_address(what.settings).open([what.stream])
    oldest = reader.oldest(what.stream.name)
    lost = [
        f"offset {oldest[partition]} of partition {partition}"
        for partition, start in sorted(what.starts.items())
        if partition < len(oldest) and start < min(oldest[partition], what.ends[partition])
    ]
    if lost:
        raise ProofError(
            f"view {what.plan.view} cannot be proven before {', '.join(lost)}: "
            "the log no longer holds what came before, and it was not archived",
            hint="RETAIN … THEN ARCHIVE keeps it; headrace rebuild --from-oldest begins there",
        )
    for partition, (upto, _) in enumerate(reader.compacted(what.stream.name)):
        if upto > what.ends.get(partition, 0):
            raise _compacted(what)


def _compacted(what: Subject) -> ProofError:
    return ProofError(
        f"the log of {what.stream.name} was compacted while {what.plan.view} was being proven: "
        "what its rows rested on is gone in part, and it rests on later changes by now",
        hint="try again",
    )


def reconcile(spark: SparkSession, what: Subject, limit: int) -> Compared:
    """Raises ProofError when Spark cannot compute it, with what Spark says."""
    question = oracle(what.plan, what.stream)
    names = what.snapshot.columns
    compacted = _compactions(what)
    with told(what):
        rows = _stored_rows(spark, what), _proven_rows(spark, what, question)
        found = compare(*rows, names, limit)
    if _compactions(what) != compacted:
        raise _compacted(what)  # it is read in pieces: some before, some after
    return found


def _compactions(what: Subject) -> list[tuple[tuple[int, int], ...]]:
    """Of all streams that are read for the proof."""
    streams = (what.stream, *what.changes.values())
    address = log_address(what.settings)
    return [address.open([stream]).compacted(stream.name) for stream in streams]


@contextmanager
def told(what: Subject) -> Iterator[None]:
    """What Spark fails on comes out as ProofError."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        check_log(what)  # retention may have come in between
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ProofError(
            f"view {what.plan.view} cannot be computed in one query: {lines[0]}",
            hint="try again; if it stays, report it with the view's definition",
        ) from error


def _stored_rows(spark: SparkSession, what: Subject) -> DataFrame:
    return spark.read.parquet(str(what.rows))


def _proven_rows(spark: SparkSession, what: Subject, question: Oracle) -> DataFrame:
    """The rows that the log gives, in the shape of the snapshot's file."""
    declare_events(spark, what, question.columns)
    if isinstance(what.plan.window, SessionWindow):
        declare_judged(spark, what.stream, question, what.plan.window.gap_microseconds)
    if isinstance(what.plan.window, EventGroup):
        declare_grouped(spark, what.plan, what.stream)
    outputs = [f"e{i} AS c{i}" for i in range(question.outputs)]
    for place, name in enumerate(what.snapshot.columns[question.outputs :], question.outputs):
        outputs.append(f"{_beside(name, what.snapshot)} AS c{place}")
    keys = [f"k{i}" for i in range(question.keys)]
    if isinstance(what.plan.window, Sliding):
        rows = sliding_rows(spark, what.plan, what.stream, question)
    else:
        rows = spark.sql(question.sql)
    if what.plan.emits_on_close:  # a window is published once it is final
        rows = rows.where(_final(what.snapshot))
    return rows.selectExpr(*outputs, *keys)


def declare_events(
    spark: SparkSession, what: Subject, columns: Sequence[str], *, with_duplicates: bool = False
) -> Mapping[int, Sequence[int]]:
    """Give Spark the stream's events under the stream's name, without those the view never took,
    and with what they find in the tables that it joins.
    Returns the offsets of the duplicates by partition, which are among the events if asked for."""
    left_out = _by_partition(what.snapshot.dead)
    repeated = duplicates(spark, what)
    for partition, offsets in () if with_duplicates else repeated.items():
        left_out.setdefault(partition, []).extend(offsets)
    table = LogTable(
        log_address(what.settings),
        what.stream,
        tuple(columns),
        what.starts,
        what.ends,
        left_out,
        _notes(what.snapshot),
    )
    events = table.frame(spark, with_watermark=what.plan.window is not None)
    events.createOrReplaceTempView(what.stream.name)
    if what.plan.joined is not None:
        for name, stream in what.changes.items():
            _declare_changes(spark, what.settings, name, stream)
        spark.sql(what.plan.joined).createOrReplaceTempView(what.stream.name)
    return repeated


def _declare_changes(spark: SparkSession, settings: Settings, table: str, stream: Stream) -> None:
    """All that the log has: an event sees those up to its own position."""
    reader = log_address(settings).open([stream])
    oldest = dict(enumerate(reader.oldest(stream.name)))
    ends = dict(enumerate(reader.ends(stream.name)))
    columns = tuple(column.name for column in stream.columns)
    left_out: Mapping[int, Sequence[int]] = {}
    if stream.deduplication is not None:
        rule = stream.deduplication
        keys = LogTable(reader.address, stream, rule.columns, oldest, ends)
        left_out = find_duplicates(spark, keys, rule)
    changes = LogTable(reader.address, stream, columns, oldest, ends, left_out)
    changes.frame(spark, with_watermark=False).createOrReplaceTempView(changes_name(table))


def duplicates(spark: SparkSession, what: Subject) -> Mapping[int, Sequence[int]]:
    """What the stream's rule does not accept, read from as far back as the log goes: an event may
    repeat one from before the view."""
    rule = what.stream.deduplication
    if rule is None:
        return {}
    reader = log_address(what.settings).open([what.stream])
    oldest = dict(enumerate(reader.oldest(what.stream.name)))
    table = LogTable(reader.address, what.stream, rule.columns, oldest, what.ends)
    return find_duplicates(spark, table, rule)


def _beside(name: str, snapshot: Snapshot) -> str:
    """The columns that every view with a window has beside its outputs."""
    if name == REVISION:
        return REVISION
    assert name == FINAL, name
    return _final(snapshot)


def _final(snapshot: Snapshot) -> str:
    watermark = snapshot.watermark_microseconds
    return "false" if watermark is None else f"unix_micros({WINDOW_END}) <= {watermark}L"


def _by_partition(places: Sequence[tuple[int, int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for partition, offset in places:
        found.setdefault(partition, []).append(offset)
    return found


def _notes(snapshot: Snapshot) -> dict[int, dict[int, Note]]:
    found: dict[int, dict[int, Note]] = {}
    for partition, offset, decision in snapshot.decisions:
        found.setdefault(partition, {})[offset] = Note(decision)
    for partition, offset, start, _, come in snapshot.applied:
        notes = found.setdefault(partition, {})
        known = notes.get(offset, Note())
        windows = (*(known.applied_to or ()), start)
        notes[offset] = replace(known, applied_to=windows, applied_at=come)
    return found
