"""The state rows that a view ought to have where a proof found it wrong.

Public values do not make a state: an average is kept as a sum and a count. So the partial columns
of each differing group are computed from all its events at once, which is what a single partial of
all of them would be, and the engine puts them in the place of what it has.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.model.errors import ProofError
from headrace.model.plan import EventGroup, SessionWindow, Sliding
from headrace.proof.aggregates import aggregate_sql
from headrace.proof.comparison import EXTRA, differing
from headrace.proof.oracle import REVISION, WINDOW_END, Oracle, oracle
from headrace.proof.reconcile import Subject, proven_rows, stored_rows, told
from headrace.proof.stretches import ROWS_MAX, bounded, write_stretches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ROWS_MAX", "further", "write_repair"]

_WRONG = "_wrong"


def write_repair(spark: SparkSession, what: Subject, folder: Path) -> int:
    """Write the rows to `repair.parquet` and the values of each count(DISTINCT …) to
    `values-I.parquet`; returns how many rows differ. Views whose rows depend on each other are
    mended by stretches (stretches.py). Raises ProofError where that is more than can be replaced
    in one tick."""
    plan = what.plan
    if not what.snapshot.has_ids:
        raise ProofError(
            f"view {plan.view} cannot be repaired",
            hint=f"headrace rebuild {plan.view} fills it again from the log",
        )
    if isinstance(plan.window, SessionWindow | EventGroup | Sliding):
        with told(what):
            return write_stretches(spark, what, folder)
    question = oracle(plan, what.stream)
    names = len(what.snapshot.columns)
    with told(what):
        stored, proven = stored_rows(spark, what), proven_rows(spark, what, question)
        wrong = differing(stored, proven, names).selectExpr(
            "kind",
            "stored.id AS was",
            *(f"coalesce(proven.k{i}, stored.k{i}) AS k{i}" for i in range(question.keys)),
        )
        found = bounded(wrong, ROWS_MAX, plan.view)
        spark.createDataFrame(found).createOrReplaceTempView(_WRONG)
        pq.write_table(_state(spark, what, question), folder / "repair.parquet")
        for index, distinct in enumerate(plan.distincts):
            values = _values(spark, question, distinct.input)
            pq.write_table(values.toArrow(), folder / f"values-{index}.parquet")
    return int(found.num_rows)


def further(what: Subject, folder: Path) -> dict[str, int]:
    """What the engine must know beside the files of `write_repair`."""
    found = {"values": len(list(folder.glob("values-*.parquet")))}
    if isinstance(what.plan.window, SessionWindow | EventGroup | Sliding):
        found["last_id"] = what.snapshot.last_id
    return found


def _same(question: Oracle) -> str:
    keys = [f"({text}) <=> {_WRONG}.k{i}" for i, text in enumerate(question.key_texts)]
    return " AND ".join(keys) or "true"


def _state(spark: SparkSession, what: Subject, question: Oracle) -> pa.Table:
    """The columns of the state table in their order, then the id and whether the row stays."""
    plan = what.plan
    columns = [f"k{i}" for i in range(question.keys)]
    windowed = plan.window is not None
    made = [f"{text} AS g{i}" for i, text in enumerate(question.key_texts)]
    if windowed:
        end = question.key_texts[-1].removesuffix(".start") + ".`end`"
        made += [f"{end} AS {WINDOW_END}", f"count_if({question.passed}) AS {REVISION}"]
    partials = [f"{aggregate_sql(p)} AS p{i}" for i, p in enumerate(plan.partials)]
    distincts = [f"count(DISTINCT {d.input}) AS d{i}" for i, d in enumerate(plan.distincts)]
    made += ["count(*) AS _rows", *partials, *distincts]
    groups = [*question.key_texts]
    if windowed:
        groups[-1:] = [question.key_texts[-1].removesuffix(".start")]
    by = f" GROUP BY {', '.join(groups)}" if groups else ""
    state = spark.sql(
        f"SELECT {', '.join(made)} FROM {question.events} "
        f"WHERE {question.where} AND {question.taken}{by}"
    )
    on = " AND ".join(f"{c} <=> g{i}" for i, c in enumerate(columns)) or "true"
    from pyspark.sql.functions import expr

    joined: DataFrame = spark.table(_WRONG).join(state, expr(on), "left")
    further = [WINDOW_END, REVISION] if windowed else []
    names = [*further, "_rows"]
    names += [f"p{i}" for i in range(len(plan.partials))]
    names += [f"d{i}" for i in range(len(plan.distincts))]
    present = f"kind <> '{EXTRA}' AS present"
    return joined.selectExpr(*columns, *names, "was", present).toArrow()


def _values(spark: SparkSession, question: Oracle, value: str) -> Any:
    keys = [f"{text} AS g{i}" for i, text in enumerate(question.key_texts)]
    return spark.sql(
        f"SELECT DISTINCT {', '.join([*keys, f'{value} AS value'])} FROM {question.events} "
        f"LEFT SEMI JOIN {_WRONG} ON {_same(question)} "
        f"WHERE {question.where} AND {question.taken} AND ({value}) IS NOT NULL"
    )
