"""What a view ought to hold where a proof found it wrong, for windows that look around.

Rows of sessions, event groups and sliding windows rest on the same events as their neighbours, and
the store keeps some of those events: they may be what is wrong. So no row is mended alone, but a
stretch as a whole: everything that the view holds of some keys, or, of a sliding view, the events
of some keys from one range before a wrong row up to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.log.contract import EVENT_TIME, NO_EVENT_TIME
from headrace.model.errors import ProofError
from headrace.model.plan import EventGroup, SessionWindow, Sliding, ViewPlan
from headrace.proof.aggregates import aggregate_sql, one_event_sql
from headrace.proof.comparison import differing
from headrace.proof.events import OFFSET, PARTITION, WATERMARK
from headrace.proof.oracle import LATE, Oracle, oracle
from headrace.proof.reconcile import Subject, proven_rows, stored_rows
from headrace.proof.sliding import sliding_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["EVENTS_MAX", "ROWS_MAX", "bounded", "write_stretches"]

ROWS_MAX = 100_000
EVENTS_MAX = 1_000_000
_WRONG = "_wrong"


def bounded(rows: DataFrame, most: int, view: str) -> pa.Table:
    """Raises ProofError for more."""
    found = rows.limit(most + 1).toArrow()
    if found.num_rows > most:
        raise ProofError(
            f"more than {most:,} rows of {view} are to be replaced",
            hint=f"headrace rebuild {view} fills it again from the log",
        )
    return found


def write_stretches(spark: SparkSession, what: Subject, folder: Path) -> int:
    """Write the stretches to `stretches.parquet`, the state rows in them to `repair.parquet`, the
    values of each count(DISTINCT …) to `values-I.parquet` and the events of event groups to
    `events.parquet`; returns how many stretches."""
    plan, view = what.plan, what.plan.view
    question = oracle(plan, what.stream)
    proven = proven_rows(spark, what, question)
    wrong = differing(stored_rows(spark, what), proven, len(what.snapshot.columns))
    found = bounded(wrong.selectExpr(*_stretch(plan, question)).distinct(), ROWS_MAX, view)
    spark.createDataFrame(found).createOrReplaceTempView(_WRONG)
    pq.write_table(found, folder / "stretches.parquet")
    state = _state(spark, what, question)
    names = [f"s{i}" for i in range(len(state.columns))]
    within = _within(plan, names[len(plan.keys)])
    rows = _kept(spark, state.toDF(*names), names, within)
    pq.write_table(bounded(rows, ROWS_MAX, view), folder / "repair.parquet")
    if isinstance(plan.window, SessionWindow):
        for index, distinct in enumerate(plan.distincts):
            values = _values(spark, plan, question, distinct.input)
            file = folder / f"values-{index}.parquet"
            pq.write_table(bounded(values, EVENTS_MAX, view), file)
    if isinstance(plan.window, EventGroup):
        events = _events(spark, what)
        pq.write_table(bounded(events, EVENTS_MAX, view), folder / "events.parquet")
    return int(found.num_rows)


def _keys(plan: ViewPlan) -> list[int]:
    """The places of the keys whose rows depend on each other."""
    if not isinstance(plan.window, Sliding):
        return list(range(len(plan.keys)))
    names = [key.name for key in plan.keys]
    return [names.index(name) for name in plan.window.keys]


def _stretch(plan: ViewPlan, question: Oracle) -> list[str]:
    """The keys, and from when to when in microseconds; NULL where all of it is meant."""
    chosen = [f"coalesce(proven.k{k}, stored.k{k}) AS b{i}" for i, k in enumerate(_keys(plan))]
    low = high = "CAST(NULL AS BIGINT)"
    if isinstance(plan.window, Sliding):
        time = f"k{question.keys - 1}"
        high = f"unix_micros(coalesce(proven.{time}, stored.{time}))"
        reach = plan.window.range_microseconds
        low = low if reach is None else f"{high} - {reach}L"
    return [*chosen, f"{low} AS low", f"{high} AS high"]


def _within(plan: ViewPlan, start: str) -> str:
    same = [f"s{k} <=> b{i}" for i, k in enumerate(_keys(plan))]
    time = f"unix_micros({start})"
    return " AND ".join(
        [*same, f"coalesce({time} >= low, true)", f"coalesce({time} <= high, true)"]
    )


def _kept(spark: SparkSession, rows: DataFrame, names: list[str], within: str) -> DataFrame:
    from pyspark.sql.functions import expr

    return rows.join(spark.table(_WRONG), expr(within), "left_semi").select(*names)


def _state(spark: SparkSession, what: Subject, question: Oracle) -> DataFrame:
    """All rows, also those that HAVING hides: the columns of the state table in their order."""
    plan = what.plan
    if isinstance(plan.window, Sliding):
        return sliding_state(spark, plan, what.stream, question)
    partials = [aggregate_sql(partial) for partial in plan.partials]
    distincts = [f"count(DISTINCT {distinct.input})" for distinct in plan.distincts]
    made = [*question.key_texts, f"{question.window}.`end`", f"count_if({question.passed})"]
    made += ["count(*)", *partials, *distincts]
    made += [question.ends] if isinstance(plan.window, EventGroup) else []
    chosen = ", ".join(f"{text} AS s{i}" for i, text in enumerate(made))
    return spark.sql(
        f"SELECT {chosen} FROM {question.events} WHERE {question.where} AND {question.taken} "
        f"GROUP BY {', '.join(question.groups)}"
    )


def _values(spark: SparkSession, plan: ViewPlan, question: Oracle, value: str) -> DataFrame:
    """Keys, pane and value: a pane is the event time in whole gaps."""
    assert isinstance(plan.window, SessionWindow)
    at = f"unix_micros({EVENT_TIME})"
    pane = f"{at} - pmod({at}, {plan.window.gap_microseconds}L)"
    texts = [*(key.sql for key in plan.keys), pane, value]
    names = [f"s{i}" for i in range(len(texts))]
    chosen = ", ".join(f"{text} AS {name}" for text, name in zip(texts, names, strict=True))
    found = spark.sql(
        f"SELECT DISTINCT {chosen} FROM {question.events} "
        f"WHERE {question.where} AND {question.taken} AND ({value}) IS NOT NULL"
    )
    same = [f"s{i} <=> b{i}" for i in range(len(plan.keys))]
    return _kept(spark, found, names, " AND ".join(same) or "true")


def _events(spark: SparkSession, what: Subject) -> DataFrame:
    """The events of a view by event group that were taken in, each as the store keeps it."""
    plan, window = what.plan, what.plan.window
    assert isinstance(window, EventGroup)
    before = [
        *(f"({key.sql})" for key in plan.keys),
        *(f"unix_micros({EVENT_TIME})", PARTITION, OFFSET),
        *(f"coalesce({text}, false)" for text in (window.open, window.close)),
        f"coalesce({WATERMARK}, {NO_EVENT_TIME + 1}L - 1L)",
        f"CAST(coalesce({LATE}, false) AS INT)",
    ]
    values = one_event_sql([distinct.input for distinct in plan.distincts], "v")
    partials = [f"{aggregate_sql(p)} AS p{i}" for i, p in enumerate(plan.partials)]
    chosen = [*one_event_sql(before, "e"), "1L AS one", *partials, *values]
    found = spark.sql(
        f"SELECT {', '.join(chosen)} FROM `{what.stream.name}` WHERE {plan.where or 'true'} "
        f"GROUP BY {PARTITION}, {OFFSET}"
    )
    names = [f"s{i}" for i in range(len(found.columns))]
    same = [f"s{i} <=> b{i}" for i in range(len(plan.keys))]
    return _kept(spark, found.toDF(*names), names, " AND ".join(same) or "true")
