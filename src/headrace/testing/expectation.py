"""What a test says of a view or a stream, and what it is told where that is not so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import pyarrow as pa

from headrace.compile import plan_view
from headrace.model.definitions import Project, Stream, View
from headrace.model.errors import KitError
from headrace.model.moments import moment
from headrace.model.types import DataType, parse_type, type_from_arrow
from headrace.serve.operate.control import ViewReport
from headrace.spark.windows import sets_aside
from headrace.store.contract import LATE_SUFFIX, Counts
from headrace.testing.changes import NetChanges, net_changes
from headrace.testing.moments import microseconds
from headrace.testing.rows import (
    Comparison,
    Row,
    RowReader,
    compare,
    nearest,
    told_row,
    told_value,
)
from headrace.testing.running import Running

__all__ = ["Expectation", "Looks"]

LETTERS_MAX = 100_000
_FINAL = "final"

Looks = dict[str, int]  # the tick up to which the changes of each view have been looked at


class Expectation:
    """Of a view or table, of a stream, or of the late events that a stream has set aside
    (STREAM_late). Each method raises AssertionError where what it says is not so, and gives the
    expectation back, so that more can be said of the same thing. It may be kept: everything that
    was sent before a method is called has been taken in.

        project.expect("income").row(user_id="a", income="10.00").counts(late=0)
        project.expect("transactions").dead_letters(["column amount"])
    """

    def __init__(self, definitions: Project, running: Running, looks: Looks, name: str) -> None:
        """Raises KitError for a name that the project does not define."""
        self._definitions = definitions
        self._running = running
        self._looks = looks
        self._view = definitions.view(name)
        self._stream = definitions.stream(name)
        self._aside = _stream_of_late(definitions, name)
        named: View | Stream | None = self._view or self._stream or self._aside
        if named is None:
            known: list[View | Stream] = [*definitions.views, *definitions.streams]
            raise KitError(
                f"the project has no view or stream {name!r}",
                hint=f"it has {', '.join(one.name for one in known)}",
            )
        if self._aside is not None and not sets_aside(self._aside):
            raise KitError(
                f"stream {self._aside.name} sets no late events aside",
                hint="LATE SIDE and LATE REVISE WITHIN do; expect(VIEW).counts(late=…) says how "
                "many were applied",
            )
        self._name = named.name if named is not self._aside else f"{named.name}{LATE_SUFFIX}"

    # Rows

    def rows(self, expected: Sequence[Mapping[str, Any]]) -> Expectation:
        """These are all rows; their order does not count. A row says only the columns that matter.
        Decimals and moments may be written as text, and `pytest.approx(…)` may stand for a
        value."""
        __tracebackhide__ = True
        wanted = [self._reader.read(row) for row in _sequence(expected, "rows")]
        found = self._found
        self._require(
            compare(wanted, found, self._keys), f"{_counted(len(wanted), 'row')} expected", found
        )
        return self

    def row(self, row: Mapping[str, Any] | None = None, /, **columns: Any) -> Expectation:
        """There is a row with these values, given by name or as a mapping."""
        __tracebackhide__ = True
        wanted = self._reader.read(columns if row is None else {**row, **columns})
        found = self._found
        if not compare([wanted], found, ()).missing_at_all:
            return self
        near = nearest(wanted, found, self._keys)
        comparison = Comparison(missing=[wanted])
        if near is not None:
            comparison = Comparison(differing=[(wanted, near)])
        self._require(comparison, "a row expected", found)
        return self

    def no_row(self, row: Mapping[str, Any] | None = None, /, **columns: Any) -> Expectation:
        """There is no row with these values."""
        __tracebackhide__ = True
        wanted = self._reader.read(columns if row is None else {**row, **columns})
        found = self._found
        unwanted = [row for row in found if not compare([wanted], [row], ()).missing_at_all]
        self._require(Comparison(unexpected=unwanted), f"no row with {told_row(wanted)}", found)
        return self

    def empty(self) -> Expectation:
        """There are no rows."""
        __tracebackhide__ = True
        return self.rows([])

    @cached_property
    def _columns(self) -> Mapping[str, DataType]:
        if self._aside is not None:
            schema = self._running.query(f"{self._late_rows} LIMIT 0").schema
            return {field.name: type_from_arrow(field.type) for field in schema}
        described = self._running.store.describe(self._a_view.name)
        return {name: parse_type(type_) for name, type_ in described}

    @cached_property
    def _reader(self) -> RowReader:
        return RowReader(self._name, self._columns)

    @property
    def _late_rows(self) -> str:
        return f'SELECT * FROM "{self._name}"'

    @property
    def _found(self) -> list[Row]:
        self._running.settle()
        if self._aside is not None:
            table = self._running.query(self._late_rows)
        else:
            table = self._running.rows(self._a_view.name)
        schema = pa.schema([(name, type_.arrow) for name, type_ in self._columns.items()])
        rows: list[Row] = table.cast(schema).to_pylist()
        return rows

    @cached_property
    def _keys(self) -> list[str]:
        """The columns that tell what a row stands for."""
        if self._view is None:
            return []
        plan = plan_view(self._definitions, self._view)
        keys = {key.name for key in plan.keys} | {"window_start", "window_end"}
        keys = keys if plan.table is None else set(plan.table.key)
        return [final.name for final in plan.finals if final.sql.strip("`") in keys]

    # Changes

    def changes(
        self,
        *,
        added: Sequence[Mapping[str, Any]] = (),
        changed: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] = (),
        removed: Sequence[Mapping[str, Any]] = (),
    ) -> Expectation:
        """These are all changes since the last look at the view's changes, or since it began:
        rows that came, pairs of a row before and after, rows that went. What came and went in
        between is no change, and neither is a row that became final."""
        __tracebackhide__ = True
        view = self._a_view
        self._running.settle()
        ticks = self._running.changes(view.name, self._looks.get(view.name, 0))
        self._looks[view.name] = self._running.store.last_tick()
        plan = plan_view(self._definitions, view)
        left_out = [_FINAL] if plan.window is not None else []
        net = net_changes(ticks, self._keys, left_out)
        reader = RowReader(view.name, {n: t for n, t in self._columns.items() if n not in left_out})
        lines = _told_changes(net, reader, self._keys, added, changed, removed)
        if lines:
            said = f"the changes of {view.name} are not as expected:"
            raise AssertionError("\n".join([said, *lines, *self._about]))
        return self

    def no_changes(self) -> Expectation:
        """Nothing has changed since the last look at the view's changes."""
        __tracebackhide__ = True
        return self.changes()

    # What became of events

    def dead_letters(self, expected: Sequence[str | Mapping[str, Any]]) -> Expectation:
        """These are all dead letters, of a stream what the gateway could not accept, of a view what
        its expressions could not take, and of a table that changes are posted to both. Each is
        said by a part of its reason, or by a mapping of `reason` and `record`, of which only the
        fields that matter need be said."""
        __tracebackhide__ = True
        wanted = [_wanted_letter(one) for one in _sequence(expected, "dead letters")]
        found = self._letters()
        comparison = compare(wanted, found, ())
        if not comparison.is_equal:
            said = f"the dead letters of {self._name} are not as expected: it has {len(found)}"
            raise AssertionError("\n".join([said, *comparison.told(), *self._about]))
        return self

    def counts(self, **expected: int) -> Expectation:
        """What became of the events that the view took from its stream: `read` are all but the
        `duplicate` ones, and each is `applied`, `filtered` by WHERE, `sided`, `dropped` or `dead`;
        `late` of the applied ones were late for a window at least."""
        __tracebackhide__ = True
        counts = self._report.counts
        unknown = [name for name in expected if name not in Counts.__dataclass_fields__]
        if unknown:
            raise KitError(
                f"there is no count {unknown[0]!r}",
                hint=f"counts are {', '.join(Counts.__dataclass_fields__)}",
            )
        wrong = {n: v for n, v in expected.items() if getattr(counts, n) != v}
        if wrong:
            lines = [f"  {n}: expected {v}, is {getattr(counts, n)}" for n, v in wrong.items()]
            said = f"the events of {self._name} were not counted as expected:"
            raise AssertionError("\n".join([said, *lines, *self._about]))
        return self

    def complete_up_to(self, expected: str | datetime | None) -> Expectation:
        """The view's watermark: no more events before it are expected. None before the first
        event."""
        __tracebackhide__ = True
        wanted = None if expected is None else microseconds(expected)
        found = self._report.watermark_microseconds
        if wanted != found:
            said = (
                f"{self._name} is complete up to {_told_moment(found)}, "
                f"expected {_told_moment(wanted)}"
            )
            raise AssertionError("\n".join([said, *self._about]))
        return self

    def status(self, state: str, detail: str = "") -> Expectation:
        """`live`, `halted` (by a late event, LATE HALT) or `failed`, and a part of the reason."""
        __tracebackhide__ = True
        report = self._report
        if report.state != state or detail not in report.detail:
            said = f"{self._name} is {report.state}, expected {state}"
            wanted = [f"  expected the reason {detail!r}"] if detail else []
            raise AssertionError("\n".join([said, *wanted, *self._about]))
        return self

    @property
    def _a_view(self) -> View:
        if self._view is None:
            views = [v.name for v in self._definitions.views]
            raise KitError(
                f"{self._name} is no view: this can be expected of views alone",
                hint=f"views are {', '.join(views) or 'none'}",
            )
        return self._view

    @property
    def _report(self) -> ViewReport:
        self._running.settle()
        return self._running.reports()[self._a_view.name]

    def _letters(self) -> list[Row]:
        self._running.settle()
        found = [] if self._stream is None else _stream_letters(self._running, self._stream)
        if self._view is not None:
            stored = self._running.store.dead_letters(self._view.name, LETTERS_MAX)
            found += [{"reason": one.reason, "record": _record(one.raw)} for one in stored]
        if self._view is not None or self._stream is not None:
            return found
        raise KitError(
            f"{self._name} has no dead letters",
            hint="streams and views have: expect(STREAM).dead_letters(…)",
        )

    # What a failure says

    def _require(self, comparison: Comparison, expected: str, found: Sequence[Row]) -> None:
        __tracebackhide__ = True
        if comparison.is_equal:
            return
        said = f"{self._name} is not as expected: {expected}, {len(found)} there"
        raise AssertionError("\n".join([said, *comparison.told(), *self._about]))

    @property
    def _about(self) -> list[str]:
        """How far the view is, and what else may be the reason."""
        lines = []
        stream = self._stream or self._aside
        if self._view is not None:
            report = self._report
            detail = f": {report.detail}" if report.detail else ""
            counts = ", ".join(
                f"{getattr(report.counts, name)} {name}"
                for name in Counts.__dataclass_fields__
                if getattr(report.counts, name)
            )
            lines.append(
                f"{self._name} is {report.state}{detail}; complete up to "
                f"{_told_moment(report.watermark_microseconds)}; events: {counts or 'none'}"
            )
            stream = self._definitions.stream(self._view.source)
        assert stream is not None, "whatever is expected belongs to a stream"
        letters = _stream_letters(self._running, stream)
        if letters and (self._stream is None or self._view is not None):
            lines.append(
                f"{stream.name} has {_counted(len(letters), 'dead letter')}, the last: "
                f"{letters[-1]['reason']}"
            )
        return lines


def _stream_of_late(definitions: Project, name: str) -> Stream | None:
    if not name.lower().endswith(LATE_SUFFIX):
        return None
    return definitions.stream(name[: -len(LATE_SUFFIX)])


def _stream_letters(running: Running, stream: Stream) -> list[Row]:
    letters = running.reader.dead_letters(stream.name, -1, LETTERS_MAX)
    return [
        {"reason": one.reason, "record": _record(one.raw.decode("utf-8", "replace"))}
        for one in letters
    ]


def _record(raw: str) -> Any:
    """What the record says; its text where it is no JSON."""
    try:
        return json.loads(raw)
    except ValueError:
        return raw


class _Part:
    """Equal to a text that has it in it, or to a mapping that has all of it."""

    def __init__(self, part: Any) -> None:
        self._part = part

    def __eq__(self, other: object) -> bool:
        if isinstance(self._part, Mapping) and isinstance(other, Mapping):
            return all(name in other and other[name] == v for name, v in self._part.items())
        if isinstance(self._part, str) and isinstance(other, str):
            return self._part in other
        return bool(self._part == other)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"…{self._part}…" if isinstance(self._part, str) else repr(self._part)


def _wanted_letter(given: Any) -> Row:
    said = {"reason": given} if isinstance(given, str) else given
    if not isinstance(said, Mapping) or not said or not said.keys() <= {"reason", "record"}:
        raise KitError(
            f"a dead letter cannot be expected as {given!r}",
            hint='say a part of its reason, or {"reason": "…", "record": {…}}',
        )
    return {name: _Part(value) for name, value in said.items()}


def _sequence(given: Any, what: str) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not hasattr(given, "__iter__"):
        raise KitError(f"expected {what} are a list, not {given!r}", hint="write […] around it")
    return list(given)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _told_moment(microseconds: int | None) -> str:
    return "an unknown time" if microseconds is None else told_value(moment(microseconds))


def _told_changes(
    net: NetChanges,
    reader: RowReader,
    keys: Sequence[str],
    added: Sequence[Mapping[str, Any]],
    changed: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
    removed: Sequence[Mapping[str, Any]],
) -> list[str]:
    """None where all is as expected."""
    pairs = []
    for pair in _sequence(changed, "changed rows"):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise KitError(
                f"a changed row is a pair of rows, not {pair!r}",
                hint="changed=[({…as it was…}, {…as it is…})]",
            )
        pairs.append(_beside(reader.read(pair[0]), reader.read(pair[1])))
    places = [f"{when}.{name}" for name in keys for when in ("before", "after")]
    compared = {
        "added": compare([reader.read(r) for r in _sequence(added, "rows")], net.added, keys),
        "changed": compare(pairs, [_beside(*pair) for pair in net.changed], places),
        "removed": compare([reader.read(r) for r in _sequence(removed, "rows")], net.removed, keys),
    }
    return [
        line
        for what, comparison in compared.items()
        if not comparison.is_equal
        for line in (f" {what}:", *comparison.told())
    ]


def _beside(before: Row, after: Row) -> Row:
    return {
        **{f"before.{name}": value for name, value in before.items()},
        **{f"after.{name}": value for name, value in after.items()},
    }
