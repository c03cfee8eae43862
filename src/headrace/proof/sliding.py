"""Sliding windows, proven: the view's own OVER (…) in Spark, over frames without the events that a
late policy keeps out of them.

An event keeps out of the rows before a bound: its watermark under SIDE and DROP, less the horizon
under REVISE. Most events have none, and most rows lack no event: those are computed as the view
says it. Each of the others gets a copy of its own frame without what it does not take, which
`FRAME_OF` keeps apart in PARTITION BY.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import expressions as exp

from headrace.compile.faults import SourceText
from headrace.compile.sql.dialect import canonical, parse_tokens, tokenize
from headrace.log.contract import EVENT_TIME
from headrace.model.definitions import LatePolicy, Stream
from headrace.model.plan import Sliding, ViewPlan
from headrace.proof.events import APPLIED_TO, DECISION, OFFSET, PARTITION, WATERMARK
from headrace.proof.oracle import REVISION, WINDOW_END, Oracle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["bound_sql", "sliding_rows"]

FRAME_OF = "_frame_of"
_AT, _BOUND = "_at", "_bound"


def sliding_rows(
    spark: SparkSession, plan: ViewPlan, stream: Stream, question: Oracle
) -> DataFrame:
    """One row per event, with the columns that the oracle of other views gives."""
    _declare_frames(spark, plan, stream, question)
    return spark.sql(
        f"SELECT c.*, coalesce(n.{REVISION}, 0L) AS {REVISION} "
        f"FROM ({_own_frames(_query(plan, question))}) c LEFT JOIN _late_in n "
        f"ON c.{PARTITION} = n._p AND c.{OFFSET} = n._o "
        f"WHERE NOT coalesce({_AT} < {_BOUND}, false)"
    )


def _own_frames(rows: str) -> str:
    """Of rows computed over _framed the one that stands for each event."""
    own = f"concat_ws(' ', {PARTITION}, {OFFSET})"
    return (
        f"SELECT c.* FROM ({rows}) c "
        f"LEFT ANTI JOIN _lacking l ON {FRAME_OF} IS NULL AND c.{PARTITION} = l.{PARTITION} "
        f"AND c.{OFFSET} = l.{OFFSET} WHERE coalesce({FRAME_OF} = {own}, true)"
    )


def _declare_frames(spark: SparkSession, plan: ViewPlan, stream: Stream, question: Oracle) -> None:
    """The tables _base: the view's events; _lacking: those whose rows do not take every event;
    _framed: all events, and copies of their frames for those; _late_in: how many events were late
    for a row that took them in."""
    window = plan.window
    assert isinstance(window, Sliding)
    texts = {key.name: key.sql for key in plan.keys}
    keys = [f"({texts[name]}) AS _s{i}" for i, name in enumerate(window.keys)]
    base = spark.table(stream.name).where(question.where)
    base.selectExpr(
        "*", f"unix_micros({EVENT_TIME}) AS {_AT}", f"{bound_sql(stream)} AS {_BOUND}", *keys
    ).createOrReplaceTempView("_base")
    same = "".join(f" AND r._s{i} <=> f._s{i}" for i in range(len(keys)))
    reach = window.range_microseconds
    within = f"f.{_AT} <= r.{_AT}" + (
        "" if reach is None else f" AND r.{_AT} - {reach}L <= f.{_AT}"
    )
    kept_out = f"coalesce(r.{_AT} < f.{_BOUND}, false)"
    spark.sql(
        f"SELECT DISTINCT r.{PARTITION}, r.{OFFSET} FROM _base r JOIN _base f "
        f"ON {within}{same} AND f.{_BOUND} > f.{_AT} AND {kept_out} "
    ).createOrReplaceTempView("_lacking")
    whole = f"SELECT *, CAST(NULL AS STRING) AS {FRAME_OF} FROM _base"
    copies = (
        f"SELECT f.*, concat_ws(' ', r.{PARTITION}, r.{OFFSET}) FROM _base r "
        f"LEFT SEMI JOIN _lacking l ON r.{PARTITION} = l.{PARTITION} AND r.{OFFSET} = l.{OFFSET} "
        f"JOIN _base f ON {within}{same} AND NOT {kept_out}"
    )
    spark.sql(f"{whole} UNION ALL {copies}").createOrReplaceTempView("_framed")
    late = (
        f"SELECT r.{PARTITION} AS _p, r.{OFFSET} AS _o, count(*) AS {REVISION} FROM _base r "
        f"JOIN _base f ON {within}{same} AND f.{WATERMARK} > f.{_AT} AND f.{WATERMARK} > r.{_AT} "
        f"AND NOT {kept_out} GROUP BY r.{PARTITION}, r.{OFFSET}"
    )
    spark.sql(late).createOrReplaceTempView("_late_in")


def bound_sql(stream: Stream) -> str:
    """Rows before this time do not take the event; NULL where every row does."""
    bound = WATERMARK
    if stream.late_policy is LatePolicy.REVISE:
        horizon = stream.late_horizon_microseconds
        bound = "CAST(NULL AS BIGINT)" if horizon is None else f"{WATERMARK} - {horizon}L"
    if stream.late_policy is LatePolicy.HALT:
        bound = f"IF({DECISION} = 'apply', NULL, {WATERMARK})"
    return f"IF({APPLIED_TO} IS NULL, {bound}, NULL)"  # afterwards it is applied to all


def _query(plan: ViewPlan, question: Oracle) -> str:
    source = SourceText("<view>", plan.sql)
    query = parse_tokens(tokenize(source), source)
    for over in query.find_all(exp.Window):
        over.set("partition_by", [*(over.args.get("partition_by") or []), exp.column(FRAME_OF)])
    chosen = [f"{canonical(item.this)} AS e{i}" for i, item in enumerate(query.expressions)]
    chosen += [f"{text} AS k{i}" for i, text in enumerate(question.key_texts)]
    chosen.append(f"timestamp_micros({_AT} + 1L) AS {WINDOW_END}")
    places = f"{PARTITION}, {OFFSET}, {FRAME_OF}, {_AT}, {_BOUND}"
    return f"SELECT {', '.join(chosen)}, {places} FROM _framed"
