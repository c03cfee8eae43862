"""ViewPlan and Spark's types → BoundView: finals, HAVING and merges in the store's own SQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.compile.duckdb.combine import store_type
from headrace.compile.duckdb.finals import translate
from headrace.compile.duckdb.spark_types import BIGINT, BOOLEAN, VOID
from headrace.compile.duckdb.values import TranslationError
from headrace.compile.sql.dialect import parse_expression
from headrace.model.definitions import Stream
from headrace.model.errors import DefinitionError
from headrace.model.plan import (
    ROWS,
    BoundColumn,
    BoundDistinct,
    BoundView,
    Partial,
    Sliding,
    ViewPlan,
)
from headrace.model.types import DataType

__all__ = ["bind_view"]

_TIMESTAMP = DataType("TIMESTAMP")


def bind_view(
    plan: ViewPlan,
    stream: Stream,
    keys: Mapping[str, DataType],
    partials: Mapping[str, DataType],
    distincts: Mapping[str, DataType],
    outputs: Mapping[str, DataType],
) -> BoundView:
    """The types are Spark's: of key expressions, of the partials the engine computes, of distinct
    values, and of the columns of `plan.sql`. The bound plan's `combine` texts bring every merged
    value back to its column's type, so that a sum that no longer fits raises in the merge.

    Raises DefinitionError for an output whose value or type in the store would not be Spark's.
    """
    columns: dict[str, DataType] = {ROWS: BIGINT}
    if plan.window is not None:
        columns |= {"window_start": _TIMESTAMP, "window_end": _TIMESTAMP}
    columns |= {key.name.lower(): keys[key.name] for key in plan.keys}
    columns |= {partial.name.lower(): partials[partial.name] for partial in plan.partials}
    columns |= {distinct.name.lower(): BIGINT for distinct in plan.distincts}
    plan, slidings = _bound_sliding(plan, {ROWS: BIGINT, **partials})
    columns |= {column.name.lower(): column.type for column in slidings}
    for partial in plan.partials:
        _check_mergeable(plan, partial, partials[partial.name])
    finals = [
        (
            BoundColumn(final.name, outputs[final.name]),
            _final_sql(plan, final.name, final.sql, outputs[final.name], columns),
        )
        for final in plan.finals
    ]
    having = None
    if plan.having is not None:
        having = _final_sql(plan, "HAVING", plan.having, BOOLEAN, columns)
    typed = tuple(
        replace(p, combine=f"CAST({p.combine} AS {store_type(partials[p.name])})")
        for p in plan.partials
    )
    return BoundView(
        plan=replace(plan, partials=typed),
        keys=tuple(BoundColumn(key.name, keys[key.name]) for key in plan.keys),
        partials=tuple(BoundColumn(p.name, partials[p.name]) for p in plan.partials),
        distincts=tuple(BoundDistinct(d.name, distincts[d.name]) for d in plan.distincts),
        finals=tuple(finals),
        having=having,
        slidings=slidings,
    )


def _bound_sliding(
    plan: ViewPlan, types: Mapping[str, DataType]
) -> tuple[ViewPlan, tuple[BoundColumn, ...]]:
    """A frame's value is cast to the type of what it combines, as other merged values are."""
    window = plan.window
    if not isinstance(window, Sliding):
        return plan, ()
    columns = tuple(
        replace(c, combine=f"CAST({c.combine} AS {store_type(types[c.partial])})")
        for c in window.columns
    )
    bound = tuple(BoundColumn(c.name, types[c.partial]) for c in columns)
    return replace(plan, window=replace(window, columns=columns)), bound


def _check_mergeable(plan: ViewPlan, partial: Partial, of_type: DataType) -> None:
    """Arrays and structs with NULLs inside are ordered otherwise in the store than in Spark. The
    order of first, last, min_by and max_by is a struct of our own; its first part may be theirs."""
    is_own_order = any(partial.input in other.order for other in plan.partials)
    compared = of_type.fields[0][1] if is_own_order and of_type.fields else of_type
    if partial.function in ("min", "max") and compared.is_nested:
        raise DefinitionError(
            f"view {plan.view}: {partial.function} of {compared} has no one order in every store",
            hint="compare a simple value",
        )


def _final_sql(
    plan: ViewPlan, name: str, text: str, wanted: DataType, columns: Mapping[str, DataType]
) -> str:
    try:
        final = translate(parse_expression(text), columns)
    except TranslationError as error:
        raise DefinitionError(f"view {plan.view}: {name}: {error}", hint=error.hint) from error
    if final.type not in (wanted, VOID):
        raise DefinitionError(
            f"view {plan.view}: {name} is {wanted} in Spark but would be {final.type} in the store",
            hint=f"CAST the whole expression: CAST(… AS {wanted})",
        )
    return f"CAST({final.sql} AS {store_type(wanted)})"
