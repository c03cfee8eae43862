"""The passes a view goes through, in order. Each checks or resolves one thing, in one file.

A pass reports every fault it finds and goes on; only where what follows would be consequences
does it break off.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.compile.draft import ViewDraft
from headrace.compile.passes.aggregates import check_aggregates
from headrace.compile.passes.columns import resolve_columns
from headrace.compile.passes.functions import check_functions
from headrace.compile.passes.grouped import check_grouped
from headrace.compile.passes.grouping import resolve_grouping
from headrace.compile.passes.joins import find_tables, resolve_joins
from headrace.compile.passes.outputs import name_outputs
from headrace.compile.passes.over import resolve_over
from headrace.compile.passes.plan import check_plan
from headrace.compile.passes.shape import check_shape
from headrace.compile.passes.source import find_source
from headrace.compile.passes.windowed import check_windowed

__all__ = ["PASSES", "run_passes"]

PASSES: tuple[Callable[[ViewDraft], None], ...] = (
    check_shape,
    find_source,
    find_tables,
    name_outputs,
    resolve_joins,
    resolve_over,
    resolve_grouping,
    resolve_columns,
    check_functions,
    check_aggregates,
    check_grouped,
    check_windowed,
    check_plan,
)


def run_passes(draft: ViewDraft) -> None:
    for each in PASSES:
        each(draft)
        if draft.is_broken:
            return
