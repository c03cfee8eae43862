"""From groupings to the passes of Spark SQL that compute their partials.

Narrow groupings share a pass: each event becomes one struct per grouping it feeds, and one GROUP BY
over tag and keys gives the partials of all. Columns of equal type share a slot. A wide grouping has
a pass of its own, without structs, and so has one whose state is a row per event, without the GROUP
BY; they read the columns that they mention. Where a view's WHERE fails, the row has a tag of its
own and nothing else: so Spark counts what a view filtered, as it counts what the view takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.plan import ROWS
from headrace.model.types import DataType
from headrace.spark.aggregations import Grouping, is_hashable
from headrace.spark.slots import Slots

__all__ = [
    "FILTERED",
    "SHARED_SLOTS_MAX",
    "Pass",
    "aggregate_sql",
    "build_pass",
    "in_passes",
    "single_sql",
]

FILTERED = "_filtered"  # in the place of a distinct's name: the table that counts filtered events
SHARED_SLOTS_MAX = 8  # of a pass of several groupings: the structs of wider ones cost too much
_TAKEN = "_taken"  # BOOLEAN, whether an event meets the WHERE

_Slot = tuple[str, str]  # key or input, and the type


@dataclass(frozen=True)
class _Layout:
    """Where a grouping finds its columns in the result of the pass."""

    tag: int
    grouping: Grouping
    columns: tuple[tuple[str, str], ...]  # (name, column of the result)

    @property
    def counts_filtered(self) -> bool:
        return self.grouping.distinct is None and self.grouping.where is not None

    @property
    def rows_column(self) -> str:
        return next(column for name, column in self.columns if name == ROWS)


def _filtered_tag(tag: int) -> int:
    return -1 - tag


@dataclass(frozen=True)
class Pass:
    """The SQL of one pass and how to take its result apart."""

    tagged: Callable[[str], str]  # the SQL of the tagged rows, of the relation with this name
    by: str
    chosen: str
    layouts: tuple[_Layout, ...]

    def sql(self, from_name: str) -> str:
        by = f" GROUP BY {self.by}" if self.by else ""
        return f"SELECT {self.chosen} FROM ({self.tagged(from_name)}) WHERE tag IS NOT NULL{by}"

    def split(self, result: pa.Table) -> dict[tuple[str, str | None], pa.Table]:
        """The partial table of each (view, distinct), groupings without rows left out; and for
        each view with a WHERE how many events it filtered, under FILTERED."""
        tables: dict[tuple[str, str | None], pa.Table] = {}
        tags = result.column("tag")
        for layout in self.layouts:
            is_whole = len(self.layouts) == 1 and not layout.counts_filtered
            mine = result if is_whole else result.filter(pc.equal(tags, layout.tag))
            if layout.counts_filtered:
                filtered = result.filter(pc.equal(tags, _filtered_tag(layout.tag)))
                rows = filtered.column(layout.rows_column)
                tables[(layout.grouping.view, FILTERED)] = pa.table([rows], [ROWS])
            if mine.num_rows == 0:
                continue
            arrays = [mine.column(column) for _, column in layout.columns]
            names = [name for name, _ in layout.columns]
            tables[(layout.grouping.view, layout.grouping.distinct)] = pa.table(arrays, names)
        return tables


def in_passes(groupings: Sequence[Grouping], types: Mapping[str, DataType]) -> list[list[Grouping]]:
    """The groupings of each pass. `types` gives the Spark type of every expression that they
    mention, by its text."""
    passes: list[tuple[bool, Counter[_Slot], list[Grouping]]] = []
    for grouping in groupings:
        is_hashed, own = is_hashable(grouping, types), _width(grouping, types)
        for place, (other, width, members) in enumerate(passes):
            joint = width | own
            is_like = other == is_hashed and not (grouping.is_single or members[0].is_single)
            if is_like and joint.total() <= SHARED_SLOTS_MAX:
                passes[place] = (other, joint, [*members, grouping])
                break
        else:
            passes.append((is_hashed, own, [grouping]))
    return [members for *_, members in passes]


def _width(grouping: Grouping, types: Mapping[str, DataType]) -> Counter[_Slot]:
    """How many slots of each kind and type the grouping takes."""
    inputs = {text for p in grouping.partials for text in (p.input, *p.order)}
    keys = [("key", types[text].name) for _, text in grouping.keys]
    return Counter([*keys, *(("input", types[text].name) for text in inputs)])


def build_pass(groupings: Sequence[Grouping], types: Mapping[str, DataType]) -> Pass:
    """Of groupings that `in_passes` put together."""
    is_single = groupings[0].is_single
    function_sql = single_sql if is_single else aggregate_sql
    slots = Slots("s")
    inputs: dict[str, str] = {}  # slot → type
    structs: list[tuple[Grouping, dict[str, str]]] = []
    layouts: list[_Layout] = []
    key_slots: dict[str, None] = {}
    aggregates: dict[str, str] = {}  # aggregate SQL → column of the result
    for tag, grouping in enumerate(groupings):
        used: dict[tuple[str, str], int] = {}
        filled: dict[str, str] = {}
        columns: list[tuple[str, str]] = []

        def slot(kind: str, sql: str) -> str:
            of_type = types[sql].name
            name = slots.take(kind, of_type, used)  # noqa: B023
            inputs[name] = of_type
            filled[name] = sql  # noqa: B023
            return name

        for name, sql in grouping.keys:
            key = slot("key", sql)
            key_slots[key] = None
            columns.append((name, key))
        if grouping.distinct is None:
            rows = "1L" if is_single else "count(1)"
            columns.append((ROWS, aggregates.setdefault(rows, f"a{len(aggregates)}")))
        taken: dict[str, str] = {}
        for asked in grouping.partials:
            texts = (asked.input, *asked.order)
            arguments = []
            for text in texts:
                if text not in taken:
                    taken[text] = slot("input", text)
                arguments.append(taken[text])
            sql = function_sql(asked.function, arguments)
            columns.append((asked.name, aggregates.setdefault(sql, f"a{len(aggregates)}")))
        structs.append((grouping, filled))
        layouts.append(_Layout(tag, grouping, tuple(columns)))
    tagged: Callable[[str], str] = (
        partial(_rows_sql, *structs[0], inputs)
        if len(structs) == 1
        else partial(_structs_sql, structs, inputs)
    )
    by = ", ".join(["tag", *key_slots])
    chosen = ", ".join([by, *(f"{sql} AS {name}" for sql, name in aggregates.items())])
    return Pass(tagged, "" if is_single else by, chosen, tuple(layouts))


def _rows_sql(
    grouping: Grouping, filled: Mapping[str, str], inputs: Mapping[str, str], from_name: str
) -> str:
    """Of a grouping alone. Spark computes a WHERE once for all the columns that ask for it."""
    tag, columns, where = "0", dict(filled), grouping.where
    if where is not None and grouping.distinct is None:
        from_name = f"(SELECT *, coalesce(({where}), false) AS {_TAKEN} FROM {from_name})"
        tag, where = f"IF({_TAKEN}, 0, {_filtered_tag(0)})", None
        columns = {
            name: f"IF({_TAKEN}, {sql}, CAST(NULL AS {inputs[name]}))"
            for name, sql in filled.items()
        }
    chosen = ", ".join([f"{tag} AS tag", *(f"{sql} AS {name}" for name, sql in columns.items())])
    return f"SELECT {chosen} FROM {from_name}" + (f" WHERE {where}" if where else "")


def _structs_sql(
    structs: Sequence[tuple[Grouping, Mapping[str, str]]],
    inputs: Mapping[str, str],
    from_name: str,
) -> str:
    elements = [
        _struct_sql(tag, grouping, filled, inputs) for tag, (grouping, filled) in enumerate(structs)
    ]
    return f"SELECT inline(array({', '.join(elements)})) FROM {from_name}"


def _struct_sql(
    tag: int, grouping: Grouping, filled: Mapping[str, str], inputs: Mapping[str, str]
) -> str:
    struct = _tagged(tag, filled, inputs)
    if grouping.where is None:
        return struct
    otherwise = "NULL"
    if grouping.distinct is None:
        otherwise = _tagged(_filtered_tag(tag), {}, inputs)
    return f"IF({grouping.where}, {struct}, {otherwise})"


def _tagged(tag: int, filled: Mapping[str, str], inputs: Mapping[str, str]) -> str:
    parts = [f"'tag', {tag}"]
    for name, of_type in inputs.items():
        parts.append(f"'{name}', {filled.get(name) or f'CAST(NULL AS {of_type})'}")
    return f"named_struct({', '.join(parts)})"


def aggregate_sql(function: str, arguments: Sequence[str]) -> str:
    """The Spark SQL of one partial function over its input (and what it is ordered by)."""
    first = arguments[0]
    if function == "m2":
        return f"var_pop({first}) * count({first})"
    if function in ("min_by", "max_by"):
        return f"{function}({first}, {arguments[1]})"
    return f"{function}({first})"


def single_sql(function: str, arguments: Sequence[str]) -> str:
    """What `aggregate_sql` gives over one event, where it may have the narrower type of its input:
    the store's column has the type of the aggregate."""
    first = arguments[0]
    if function == "count":
        return f"IF({first} IS NULL, 0L, 1L)"
    if function == "m2":  # 0, and NaN where the value is infinite
        return f"CAST({first} AS DOUBLE) - CAST({first} AS DOUBLE)"
    if function == "avg":
        return f"CAST({first} AS DOUBLE)"
    if function in ("min_by", "max_by"):
        return f"IF({arguments[1]} IS NULL, NULL, {first})"
    return first
