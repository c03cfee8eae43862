"""The views that are open, stacked by shape: one kind, one set of tables and one merge for all
views whose definitions differ in names alone.

A tick runs the merges of all shapes in lock-step: what they and the books want to fetch in one
round is one call of the backend. Where the merge of a stack fails, its views are merged one by
one, which says whose data it was.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kinds.calculator import Calculator, conformed
from headrace.kinds.choice import make_kind
from headrace.kinds.contract import Changes, Delta, Kind, KindInput
from headrace.kinds.inputs import BOUNDS, EVERYWHERE, SINCES, VIEWS, partials_schema, values_schemas
from headrace.model.errors import MergeError, StoreError
from headrace.model.plan import BoundView
from headrace.model.tables import VIEW, Fetch, TableDelta
from headrace.store.backend import Backend
from headrace.store.catalog import StoredView
from headrace.store.changes import ShapeChanges, TickChanges
from headrace.store.contract import ViewWrite, copied_view
from headrace.store.copies import without_ticks

__all__ = ["Merged", "Stacks", "run_together"]

AnySteps = Generator[Sequence[Fetch], Sequence[pa.Table], Any]
# Not the data, but the machine or the process.
_UNRELATED = (duckdb.OutOfMemoryException, duckdb.IOException, duckdb.FatalException)


@dataclass(frozen=True)
class _Opened:
    """A view of a stack, and its columns by its own names."""

    number: int
    partials: pa.Schema
    distincts: tuple[str, ...]
    values: tuple[pa.Schema, ...]


@dataclass
class _Stack:
    kind: Kind
    partials: pa.Schema
    values: tuple[pa.Schema, ...]
    views: dict[str, _Opened] = field(default_factory=dict)


@dataclass(frozen=True)
class Merged:
    """What a tick's merges have come to."""

    deltas: tuple[TableDelta, ...]
    changes: TickChanges


class Stacks:
    """Every method is called by the one that writes."""

    def __init__(self, backend: Backend, calculator: Calculator) -> None:
        self._backend = backend
        self._calculator = calculator
        self._stacks: dict[str, _Stack] = {}
        self._shapes: dict[str, str] = {}  # of the views that are open
        self._since: dict[str, int] = {}  # of tables and their copies, by the table's name

    def kind_of(self, view: BoundView) -> Kind:
        """The kind that serves all views of this one's shape."""
        kind = make_kind(view, self._calculator)
        stack = self._stacks.get(kind.shape)
        return kind if stack is None else stack.kind

    def open(self, view: BoundView, number: int, kind: Kind) -> None:
        schema, values = partials_schema(view), values_schemas(view)
        stack = self._stacks.get(kind.shape)
        if stack is None:
            stack = self._stacks[kind.shape] = _Stack(kind, schema, values)
        stack.views[view.name] = _Opened(
            number,
            _unnumbered(schema),
            tuple(distinct.name for distinct in view.distincts),
            tuple(_unnumbered(value) for value in values),
        )
        self._shapes[view.name] = kind.shape

    def is_open(self, view: str) -> bool:
        return view in self._shapes

    def opened_kind(self, view: str) -> tuple[Kind, int]:
        """Raises StoreError for a view that is not open."""
        stack = self._stack(view)
        return stack.kind, stack.views[view].number

    def keep_versions(self, table: str, since: int) -> None:
        """Of this table and of its copy; see Store.keep_versions."""
        self._since[table] = since

    def forget(self, table: str) -> None:
        self._since.pop(table, None)

    def rename(self, view: str, name: str) -> None:
        """`name` must not be open."""
        shape = self._shapes[name] = self._shapes.pop(view)
        views = self._stacks[shape].views
        views[name] = views.pop(view)

    def close(self, view: str) -> None:
        shape = self._shapes.pop(view, None)
        if shape is not None:
            del self._stacks[shape].views[view]
            if not self._stacks[shape].views:
                del self._stacks[shape]

    def _stack(self, view: str) -> _Stack:
        if view not in self._shapes:
            raise StoreError(f"view {view} is not open")
        return self._stacks[self._shapes[view]]

    def partials_of(self, view: str, partials: pa.Table) -> pa.Table:
        """A view's own partials as its kind takes them."""
        stack = self._stack(view)
        opened = stack.views[view]
        return _stacked(stack.partials, [(opened.number, opened.partials, partials)])

    def merge(
        self,
        tick: int,
        writes: Sequence[ViewWrite],
        stored: Mapping[str, StoredView],
        others: Sequence[AnySteps] = (),
    ) -> tuple[Merged, list[Any]]:
        """What the tick's writes come to, and the results of `others`, whose fetches go with those
        of the merges. Raises MergeError naming the view whose data cannot be merged."""
        by_shape: dict[str, list[ViewWrite]] = {}
        for write in writes:
            self._stack(write.view)
            by_shape.setdefault(self._shapes[write.view], []).append(write)
        given = {
            shape: _input(tick, self._stacks[shape], group, stored, self._since)
            for shape, group in by_shape.items()
        }
        steps: list[AnySteps] = [self._stacks[s].kind.merge(one) for s, one in given.items()]
        results = run_together(self._backend, [*steps, *others], failing=len(steps))
        deltas: list[TableDelta] = []
        changes: list[ShapeChanges] = []
        for (shape, one), result in zip(given.items(), results, strict=False):
            stack = self._stacks[shape]
            if isinstance(result, duckdb.Error):
                result = self._one_by_one(stack, one, by_shape[shape])
            copies = [stored[w.view].number for w in by_shape[shape] if copied_view(w.view)]
            deltas += [without_ticks(stack.kind, d, copies) for d in result.deltas]
            if result.changes is not None and result.changes.num_rows:
                changes.append(ShapeChanges(shape, stack.kind.feed_is_rows, result.changes))
        return Merged(tuple(deltas), TickChanges(changes)), results[len(steps) :]

    def _one_by_one(self, stack: _Stack, given: KindInput, writes: Sequence[ViewWrite]) -> Delta:
        found: list[Delta] = []
        for write in writes:
            alone = _only(given, stack.views[write.view].number)
            try:
                found.append(run_steps(self._backend, stack.kind.merge(alone)))
            except _UNRELATED:
                raise
            except duckdb.Error as error:
                raise MergeError(write.view, str(error)) from error
        return _joined(found)


def run_steps(backend: Backend, steps: AnySteps) -> Any:
    try:
        fetches = next(steps)
        while True:
            fetches = steps.send(backend.fetch(fetches))
    except StopIteration as stop:
        return stop.value


def run_together(backend: Backend, steps: Sequence[AnySteps], failing: int = 0) -> list[Any]:
    """Run them all, with one fetch a round. The first so many may fail with a duckdb.Error about
    their data, which then is the result; any other error is raised."""
    results: list[Any] = [None] * len(steps)
    answers: dict[int, Sequence[pa.Table] | None] = dict.fromkeys(range(len(steps)))
    while answers:
        asked: dict[int, Sequence[Fetch]] = {}
        for place, answer in answers.items():
            try:
                one = steps[place]
                asked[place] = next(one) if answer is None else one.send(answer)
            except StopIteration as stop:
                results[place] = stop.value
            except _UNRELATED:
                raise
            except duckdb.Error as error:
                if place >= failing:
                    raise
                results[place] = error
        found = iter(backend.fetch([fetch for one in asked.values() for fetch in one]))
        answers = {place: [next(found) for _ in one] for place, one in asked.items()}
    return results


def _input(
    tick: int,
    stack: _Stack,
    writes: Sequence[ViewWrite],
    stored: Mapping[str, StoredView],
    since: Mapping[str, int],
) -> KindInput:
    moves: list[tuple[int, int | None, int | None]] = []
    partials: list[tuple[int, pa.Schema, pa.Table]] = []
    values: list[list[tuple[int, pa.Schema, pa.Table]]] = [[] for _ in stack.values]
    bounds: list[tuple[int, int, int]] = []
    everywhere: list[tuple[int, int]] = []
    sinces: list[tuple[int, int]] = []
    for write in writes:
        opened = stack.views[write.view]
        number = opened.number
        before, after = (
            stored[write.view].entry.watermark_microseconds,
            write.watermark_microseconds,
        )
        moves.append((number, before, before if after is None else after))
        if write.partials is not None and write.partials.num_rows:
            partials.append((number, opened.partials, write.partials))
        for place, schema in enumerate(opened.values):
            table = write.distincts.get(opened.distincts[place])
            if table is not None and table.num_rows:
                values[place].append((number, schema, table))
        bounds += [(number, partition, bound) for partition, bound in write.state_expiry.items()]
        if write.state_expiry and all(p in write.state_expiry for p in write.next_offsets):
            everywhere.append((number, min(write.state_expiry.values())))
        name = copied_view(write.view) or write.view
        if name in since:
            sinces.append((number, since[name]))
    return KindInput(
        tick,
        _table(VIEWS, moves),
        _stacked(stack.partials, partials),
        tuple(_stacked(s, parts) for s, parts in zip(stack.values, values, strict=True)),
        _table(BOUNDS, bounds),
        _table(EVERYWHERE, everywhere),
        _table(SINCES, sinces),
    )


def _table(schema: pa.Schema, rows: Sequence[Sequence[object]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = [pa.array(column, of.type) for column, of in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _stacked(schema: pa.Schema, parts: Sequence[tuple[int, pa.Schema, pa.Table]]) -> pa.Table:
    """The tables, each with the columns of the schema beside it, one behind the other, and before
    them the numbers of their views. Raises StoreError for columns that are missing or of a wrong
    type."""
    if not parts:
        return schema.empty_table()
    names = schema.names[1:]
    tables = []
    for _, own, table in parts:
        fitting = table if table.schema.equals(own) else conformed(table, own)
        tables.append(fitting if own.names == names else fitting.rename_columns(names))
    rows = [table.num_rows for table in tables]
    numbers = np.repeat(np.array([part[0] for part in parts], dtype=np.int32), rows)
    joined = pa.concat_tables(tables)
    return pa.Table.from_arrays([pa.array(numbers), *joined.columns], schema=schema)


def _unnumbered(schema: pa.Schema) -> pa.Schema:
    return pa.schema(list(schema)[1:])


def _only(given: KindInput, view: int) -> KindInput:
    def own(table: pa.Table) -> pa.Table:
        return table.filter(pc.equal(table.column(VIEW), view))

    return KindInput(
        given.tick,
        own(given.views),
        own(given.partials),
        tuple(own(values) for values in given.values),
        own(given.bounds),
        own(given.everywhere),
        own(given.since),
    )


def _joined(deltas: Sequence[Delta]) -> Delta:
    changes = [delta.changes for delta in deltas if delta.changes is not None]
    all_changes = None
    if changes:
        all_changes = Changes(
            pa.concat_arrays([part.views for part in changes]),
            pa.concat_tables([part.key for part in changes]),
            pa.concat_tables([part.before for part in changes]),
            pa.concat_tables([part.after for part in changes]),
            pa.concat_arrays([part.was_shown for part in changes]),
            pa.concat_arrays([part.is_shown for part in changes]),
        )
    return Delta(tuple(one for delta in deltas for one in delta.deltas), all_changes)
