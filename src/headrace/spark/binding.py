"""Ask Spark for the types of a view's expressions, so that state can be made for it.

Spark SQL is the meaning: the compiler checks what it can offline, and whatever Spark's analyser
refuses after that is this view's fault alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.compile import bind_view
from headrace.model.definitions import Stream
from headrace.model.errors import DefinitionError
from headrace.model.plan import BoundView, JoinPlan, ViewPlan
from headrace.model.types import DataType, TypeSyntaxError
from headrace.spark.aggregations import Grouping, expressions_of, groupings_of
from headrace.spark.analysis import Analysis
from headrace.spark.passes import aggregate_sql

__all__ = ["bind", "expression_types"]


def expression_types(
    analysis: Analysis, stream: Stream, groupings: Iterable[Grouping]
) -> dict[str, DataType]:
    """Spark's type of every expression the groupings mention, by its text."""
    texts = [text for grouping in groupings for text in expressions_of(grouping)]
    wanted = list(dict.fromkeys(texts))
    if not wanted:
        return {}
    chosen = ", ".join(f"{sql} AS c{number}" for number, sql in enumerate(wanted))
    found = analysis.types(stream, f"SELECT {chosen} FROM `{stream.name}`")
    return dict(zip(wanted, found, strict=True))


def bind(analysis: Analysis, stream: Stream, plan: ViewPlan) -> BoundView:
    """Raises DefinitionError with Spark's own words when it does not accept the view."""
    from pyspark.errors import PySparkException

    main, *distincts = groupings_of(plan, stream)
    try:
        types = expression_types(analysis, stream, [main, *distincts])
        partials: list[DataType] = []
        if plan.partials:
            chosen = ", ".join(
                f"{aggregate_sql(p.function, (p.input, *p.order))} AS c{number}"
                for number, p in enumerate(plan.partials)
            )
            partials = analysis.types(stream, f"SELECT {chosen} FROM `{stream.name}`")
        outputs = analysis.types(stream, plan.sql)
        for join in plan.joins:
            _check_join(analysis, stream, plan.view, join)
    except PySparkException as error:
        raise DefinitionError(
            f"view {plan.view}: Spark does not accept it: {first_line(error)}",
            hint="correct the definition; `headrace status` shows the view's state",
        ) from error
    except TypeSyntaxError as error:
        raise DefinitionError(
            f"view {plan.view}: {error}", hint="cast it to a type a column can have"
        ) from error
    return bind_view(
        plan,
        stream,
        keys={key.name: types[key.sql] for key in plan.keys},
        partials=dict(zip((p.name for p in plan.partials), partials, strict=True)),
        distincts={d.name: types[d.input] for d in plan.distincts},
        outputs=dict(zip((f.name for f in plan.finals), outputs, strict=True)),
    )


def _check_join(analysis: Analysis, stream: Stream, view: str, join: JoinPlan) -> None:
    """Values of other types than the key's would not be compared as Spark compares them."""
    lookup, boolean = join.lookup, DataType("BOOLEAN")
    wanted = [
        (f"{name} of {lookup.table} is looked up by {text}", text, of_type)
        for (name, text), of_type in zip(lookup.keys, join.key_types, strict=True)
    ]
    if lookup.as_of is not None:
        what = f"FOR SYSTEM_TIME AS OF {lookup.as_of}"
        wanted.append((what, lookup.as_of, DataType("TIMESTAMP")))
    wanted += [("ON or WHERE", text, boolean) for text in (join.waits, join.dead) if text]
    chosen = ", ".join(f"{text} AS c{number}" for number, (_, text, _) in enumerate(wanted))
    found = analysis.types(stream, f"SELECT {chosen} FROM `{stream.name}`")
    for (what, text, of_type), known in zip(wanted, found, strict=True):
        if known != of_type:
            raise DefinitionError(
                f"view {view}: {what}, which is {known}, not {of_type}",
                hint=f"CAST({text} AS {of_type})",
            )


def first_line(error: Exception) -> str:
    """Spark's messages go on with plans and stack traces; people need the first line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__
