"""Random events in random ticks, late and set aside and applied later, give the rows that one look
at all events gives: of every view of the shape, whatever the others do."""

from __future__ import annotations

import datetime as dt
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import pyarrow as pa
import pytest
from kind_runner import KindRunner, Rows, frozen
from store_cases import bound_view

from headrace.compile import bind_view, parse_sql, plan_view
from headrace.kinds.calculator import Calculator
from headrace.kinds.choice import make_kind
from headrace.kinds.inputs import partials_schema, values_schemas
from headrace.model.plan import BoundView, CalendarWindow, Window
from headrace.model.tables import VIEW
from headrace.model.types import parse_type

SECOND = 1_000_000
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
BERLIN = ZoneInfo("Europe/Berlin")
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")  # its clocks move by half an hour
SPRING = int((dt.datetime(2026, 3, 28, 20, tzinfo=dt.UTC) - EPOCH).total_seconds()) * SECOND
AUTUMN = int((dt.datetime(2026, 4, 3, 12, tzinfo=dt.UTC) - EPOCH).total_seconds()) * SECOND
FEW_TICKS = 12

Span = tuple[int, int]


@dataclass(frozen=True)
class Windows:
    """`of` gives the windows that hold a time, by end; `pane` where and how far its pane is.
    Events of a tick lie `stride` after those of the tick before."""

    window: Window | CalendarWindow | None
    of: Callable[[int], list[Span]]
    pane: Callable[[int], Span]
    begin: int = 0
    stride: int = 2 * SECOND


def regular(size: int, slide: int, origin: int, pane: int, begin: int = 0) -> Windows:
    def of(time: int) -> list[Span]:
        last = time - (time - origin) % slide
        starts = range(last, time - size, -slide)
        return sorted((start, start + size) for start in starts)

    def pane_of(time: int) -> Span:
        start = time - (time - origin) % pane
        return start, start + pane

    return Windows(Window(size, slide, origin, pane), of, pane_of, begin)


def days(zone: ZoneInfo, begin: int) -> Windows:
    def day(time: int) -> Span:
        date = (EPOCH + dt.timedelta(microseconds=time)).astimezone(zone).date()
        midnights = (
            dt.datetime.combine(date + dt.timedelta(days=n), dt.time(), zone) for n in (0, 1)
        )
        start, end = (
            (m.astimezone(dt.UTC) - EPOCH) // dt.timedelta(microseconds=1) for m in midnights
        )
        return start, end

    window = CalendarWindow("day", zone.key)
    return Windows(window, lambda time: [day(time)], day, begin, 7_200 * SECOND)


NONE = Windows(None, lambda time: [(0, 0)], lambda time: (0, 0))
WINDOWS = {
    "none": NONE,
    "tumbling": regular(3 * SECOND, 3 * SECOND, SECOND, 3 * SECOND, -9 * SECOND),
    "hopping": regular(10 * SECOND, 4 * SECOND, SECOND, 2 * SECOND, -9 * SECOND),
    "gaps between": regular(2 * SECOND, 3 * SECOND, 0, SECOND, -9 * SECOND),
    "berlin": days(BERLIN, SPRING),
    "lord howe": days(LORD_HOWE, AUTUMN),
}


@dataclass(frozen=True)
class Event:
    view: int
    key: tuple[Any, ...]
    time: int
    amount: Decimal | None
    values: tuple[str | None, float | None]
    late: int = 0
    beyond: int = 0

    def spans(self, windows: Windows) -> Iterable[tuple[Span, bool]]:
        """The windows that take the event, and whether it is late for them."""
        for place, span in enumerate(windows.of(self.time)):
            taken = place < -self.beyond if self.beyond < 0 else place >= self.beyond
            if taken or windows.window is None:
                yield span, place < self.late


def grouped_view(
    windows: Windows,
    *,
    is_keyed: bool = True,
    having: str | None = None,
    closes: bool = False,
    values: bool = True,
) -> BoundView:
    keys = {"k0": "STRING", "k1": "DOUBLE"} if is_keyed else {}
    distincts = {"d0": "STRING", "d1": "DOUBLE"} if values else {}
    finals = [("name", "STRING", 'CAST("k0" AS VARCHAR)')] if is_keyed else []
    finals += [("number", "DOUBLE", '"k1"')] if is_keyed else []
    if windows.window is not None:
        finals += [("since", "BIGINT", 'epoch_us("window_start")')]
        finals += [("until", "BIGINT", 'epoch_us("window_end")')]
    finals += [
        ("total", "DECIMAL(28,2)", 'CAST("p0" AS DECIMAL(28,2))'),
        ("mean", "DOUBLE", 'CAST("p0" AS DOUBLE) / nullif("p1", 0)'),
        ("most", "DECIMAL(18,2)", '"p2"'),
        *((name, "BIGINT", f'"{name}"') for name in distincts),
    ]
    view = bound_view(
        "sales",
        keys=keys,
        window=windows.window,
        partials=(
            ("p0", "sum", "DECIMAL(28,2)", 'CAST(sum("p0") AS DECIMAL(28,2))'),
            ("p1", "count", "BIGINT", 'sum("p1")'),
            ("p2", "max", "DECIMAL(18,2)", 'max("p2")'),
        ),
        distincts=distincts,
        finals=finals,
        having=having,
        is_global=not is_keyed and windows.window is None,
    )
    return replace(view, plan=replace(view.plan, emits_on_close=closes))


def calculator() -> Calculator:
    connection = duckdb.connect(config={"threads": "1"})
    connection.execute("SET TimeZone = 'UTC'")
    return Calculator(connection)


def runner_of(view: BoundView, views: Sequence[int] = (1,)) -> KindRunner:
    runner = KindRunner(make_kind(view, calculator()), view)
    for number in views:
        runner.create(number)
    return runner


def staged(
    view: BoundView, windows: Windows, events: Sequence[Event]
) -> tuple[pa.Table, list[pa.Table]]:
    """As the engine brings them: a partial row per key, pane, lateness and what is set aside, some
    of them in two."""
    panes: dict[tuple[Any, ...], list[Event]] = defaultdict(list)
    times: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for number, event in enumerate(events):
        group: tuple[Any, ...] = (event.view, *(event.key if view.keys else ()))
        start, end = windows.pane(event.time)
        late = (event.late, event.beyond)
        place = (frozen(list(group)), start, late, number % 7 == 0)
        panes[place].append(event)
        pane = () if windows.window is None else (start, *late)
        calendar = (end,) if isinstance(windows.window, CalendarWindow) else ()
        times[place] = (group, pane, calendar)
    partials = []
    for place, found in panes.items():
        group, pane, calendar = times[place]
        amounts = [event.amount for event in found if event.amount is not None]
        numbers = (sum(amounts) if amounts else None, len(amounts), max(amounts, default=None))
        partials.append((*group, *pane, *calendar, len(found), *numbers))
    values = [
        _table(
            schema,
            [
                (*times[place][0], *times[place][1], event.values[index])
                for place, found in panes.items()
                for event in found
            ],
        )
        for index, schema in enumerate(values_schemas(view))
    ]
    return _table(partials_schema(view), partials), values


def _table(schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [[] for _ in schema]
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def expected(
    view: BoundView, windows: Windows, events: Sequence[Event], watermark: int | None
) -> Rows:
    groups: dict[tuple[Any, ...], list[tuple[Event, bool]]] = defaultdict(list)
    for event in events:
        for span, is_late in event.spans(windows):
            groups[(frozen(list(event.key)) if view.keys else (), *span)].append((event, is_late))
    if view.plan.is_global and not groups:
        groups[((), 0, 0)] = []
    rows: Rows = Counter()
    for (key, start, end), found in groups.items():
        amounts = [event.amount for event, _ in found if event.amount is not None]
        total = sum(amounts, Decimal(0)) if amounts else None
        mean = float(total) / len(amounts) if total is not None else None
        numbers = [
            len({frozen(e.values[index]) for e, _ in found if e.values[index] is not None})
            for index in range(len(view.distincts))
        ]
        final = watermark is not None and end <= watermark
        if view.having is not None and not (total is not None and total > 0):
            continue
        if view.plan.emits_on_close and not final:
            continue
        times: tuple[Any, ...] = (start, end) if windows.window is not None else ()
        row = (*key, *times, total, mean, max(amounts, default=None), *numbers)
        if windows.window is not None:
            row = (*row, sum(is_late for _, is_late in found), final)
        rows[row] += 1
    return rows


def made_up(rng: random.Random, view: int, windows: Windows, from_: int) -> Event:
    reach = 6 * windows.stride
    late = rng.choice([0, 0, 0, 1, 2])
    amount = rng.choice([None, Decimal(rng.randint(-999, 999)) / 100])
    values = (rng.choice(["x", "y", "z", None]), rng.choice([1.5, float("nan"), -0.0, 0.0, None]))
    key = (rng.choice(["a", "b", None]), rng.choice([1.5, float("nan"), None]))
    beyond = rng.choice([0, late, min(late, 1)]) if windows.window is not None else 0
    time = windows.begin + from_ + rng.randrange(0, reach, windows.stride // 8)
    return Event(view, key, time, amount, values, late, beyond)


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {"values": False},
    "values": {},
    "without keys": {"is_keyed": False},
    "having": {"having": '"p0" > 0'},
    "on close": {"closes": True},
    "having on close": {"having": '"p0" > 0', "closes": True},
}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (name, shape)
        for name, windows in WINDOWS.items()
        for shape, settings in SHAPES.items()
        if windows.window is not None or "closes" not in settings
    ],
)
def test_rows_are_those_of_one_look_at_all_events(name: str, shape: str, seed: int) -> None:
    windows = WINDOWS[name]
    rng = random.Random(f"{seed} {name} {shape}")
    view = grouped_view(windows, **SHAPES[shape])
    views = (53, 54, 55)  # each lets its values go in one of the last ticks
    runner = runner_of(view, views)
    assert runner.kind.shape == make_kind(view, calculator()).shape
    applied: dict[int, list[Event]] = {number: [] for number in views}
    marks: dict[int, int | None] = dict.fromkeys(views)
    aside: list[Event] = []
    for tick in range(FEW_TICKS):
        from_ = tick * windows.stride
        fed = rng.sample(views, rng.choice([0, 1, 2, 3, 3]))
        events = [made_up(rng, v, windows, from_) for v in fed for _ in range(rng.randint(1, 9))]
        if aside and rng.random() < 0.4:
            events.append(aside.pop())
        aside += [
            replace(event, beyond=-event.beyond, late=event.beyond)
            for event in events
            if event.beyond > 0 and tick < FEW_TICKS - 6
        ]
        for event in events:
            applied[event.view].append(event)
        # Events that were set aside may come six ticks later.
        bound = windows.begin + (tick - 6) * windows.stride
        aside = [event for event in aside if event.time >= bound + windows.stride]
        moved = {v: windows.begin + from_ + rng.randrange(windows.stride) for v in views}
        moved = {v: mark for v, mark in moved.items() if rng.random() < 0.5}
        marks.update(moved)
        partials, values = staged(view, windows, events)
        runner.tick(
            partials,
            values,
            watermarks=moved if windows.window is not None else None,
            everywhere=dict.fromkeys(views, bound),
        )
        assert runner.rounds <= 1
        for number in views:
            mark = marks[number] if windows.window is not None else None
            assert runner.rows(number) == expected(view, windows, applied[number], mark), number
    assert sum(map(len, applied.values())) > 20


def one(amount: str, view: int = 1, key: Any = "a", time: int = 0, **more: Any) -> Event:
    return Event(view, (key, 1.0), time, Decimal(amount), ("x", 1.0), **more)


def test_what_readers_do_not_see_is_no_change() -> None:
    view = bound_view(
        "most",
        keys={"k0": "STRING"},
        partials=(("p0", "max", "BIGINT", 'max("p0")'),),
        finals=(("most", "BIGINT", '"p0"'),),
    )
    runner = runner_of(view, (1, 2))

    def tick(*rows: tuple[int, str, int]) -> list[tuple[int, int]] | None:
        table = _table(partials_schema(view), [(v, key, 1, most) for v, key, most in rows])
        changes = runner.tick(table)
        if changes is None:
            return None
        after = changes.after.column("f0").to_pylist()
        return sorted(zip(changes.views.to_pylist(), after, strict=True))

    assert tick((1, "a", 5), (2, "a", 5)) == [(1, 5), (2, 5)]
    assert tick((1, "a", 5), (2, "a", 6)) == [(2, 6)]
    assert tick((1, "a", 4)) is None
    assert [row["_rows"] for row in runner.tables.rows[runner.kind.shape].values()] == [2, 3]


def test_a_view_without_groups_has_its_row_before_any_event() -> None:
    view = grouped_view(NONE, is_keyed=False)
    runner = runner_of(view, (1, 2))
    assert runner.rows(1) == Counter({(None, None, None, 0, 0): 1})
    changes = runner.tick(*staged(view, NONE, [one("2.50", view=2)]))
    assert changes is not None
    assert changes.was_shown.to_pylist() == [True]
    assert changes.before.to_pylist()[0]["f3"] == 0
    assert runner.rows(1) == Counter({(None, None, None, 0, 0): 1})
    assert runner.rows(2) == Counter({(Decimal("2.50"), 2.5, Decimal("2.50"), 1, 1): 1})


def test_counts_over_no_event_are_zero() -> None:
    view = bound_view("n", is_global=True, finals=(("n", "BIGINT", '"n"'),))
    assert runner_of(view).rows(1) == Counter({(0,): 1})


def test_having_hides_the_row_of_a_view_without_groups() -> None:
    view = grouped_view(NONE, is_keyed=False, having='"p1" > 1')
    runner = runner_of(view)
    assert runner.rows(1) == Counter()
    assert runner.tick(*staged(view, NONE, [one("1")])) is None
    runner.tick(*staged(view, NONE, [one("1")]))
    assert runner.rows(1).total() == 1


def test_a_sum_that_overflows_raises_and_nothing_has_happened() -> None:
    view = bound_view(
        "sums",
        keys={"k0": "STRING"},
        partials=(("p0", "sum", "BIGINT", 'CAST(sum("p0") AS BIGINT)'),),
        finals=(("sum", "BIGINT", '"p0"'),),
    )
    runner = runner_of(view, (1, 2))
    largest = 2**63 - 1

    def tick(*rows: tuple[int, str, int]) -> None:
        runner.tick(_table(partials_schema(view), [(v, key, 1, p0) for v, key, p0 in rows]))

    tick((1, "a", largest), (2, "a", 1))
    with pytest.raises(duckdb.Error):
        tick((1, "a", 1), (2, "a", 1))
    tick((1, "b", 1), (2, "a", 1))
    assert runner.rows(1) == Counter([(largest,), (1,)])
    assert runner.rows(2) == Counter([(2,)])


def test_a_decimal_sum_that_overflows_raises() -> None:
    view = bound_view(
        "sums",
        partials=(("p0", "sum", "DECIMAL(38,2)", 'CAST(sum("p0") AS DECIMAL(38,2))'),),
        finals=(("sum", "DECIMAL(38,2)", '"p0"'),),
        keys={"k0": "STRING"},
    )
    runner = runner_of(view)
    half = Decimal("6" + "0" * 35)
    row = _table(partials_schema(view), [(1, "a", 1, half)])
    runner.tick(row)
    with pytest.raises(duckdb.Error):
        runner.tick(row)


def test_values_go_when_no_event_reaches_their_window() -> None:
    windows = WINDOWS["tumbling"]  # from 1 to 4, …
    view = grouped_view(windows)
    runner = runner_of(view, (61, 62, 63))
    events = [one("1", view=v, time=t * SECOND) for v in (61, 62, 63) for t in (1, 4)]
    runner.tick(*staged(view, windows, events), everywhere={61: 9 * SECOND})  # not its turn
    name = runner.kind.tables[1].name

    def stored() -> list[tuple[int, int]]:
        rows = runner.tables.rows[name].values()
        return sorted((row[VIEW], row["window_start"].second) for row in rows)

    assert len(stored()) == 6
    runner.tick(everywhere={62: 4 * SECOND - 1, 61: 9 * SECOND}, views=[61, 62])
    assert len(stored()) == 6
    runner.tick(everywhere={61: 4 * SECOND, 62: 9 * SECOND}, views=[61, 62])
    assert stored() == [(61, 4), (62, 1), (62, 4), (63, 1), (63, 4)]
    again = [one("1", view=61, time=4 * SECOND), one("1", view=63, time=SECOND)]
    runner.tick(*staged(view, windows, again))
    assert {row[-4:-2] for number in (61, 63) for row in runner.rows(number)} == {(1, 1)}


def test_events_that_were_set_aside_are_applied_to_the_windows_they_missed() -> None:
    windows = WINDOWS["hopping"]  # a time lies in two or three windows
    view = grouped_view(windows, values=False)
    runner = runner_of(view)
    event = one("1", time=5 * SECOND, late=2, beyond=2)
    assert len(windows.of(event.time)) == 3
    runner.tick(*staged(view, windows, [event]))
    assert sorted((row[2], row[-2]) for row in runner.rows(1)) == [(5 * SECOND, 0)]
    runner.tick(*staged(view, windows, [replace(event, beyond=-2)]))
    found = sorted((row[2], row[-2]) for row in runner.rows(1))
    assert found == [(-3 * SECOND, 1), (SECOND, 1), (5 * SECOND, 0)]


def test_an_event_that_no_window_takes_leaves_no_row() -> None:
    windows = WINDOWS["tumbling"]
    view = grouped_view(windows)
    runner = runner_of(view)
    event = one("1", late=1, beyond=1)
    assert runner.tick(*staged(view, windows, [event])) is None
    assert [len(rows) for rows in runner.tables.rows.values()] == [0, 0, 0]
    runner.tick(*staged(view, windows, [one("1")]))
    stored = [list(rows) for rows in runner.tables.rows.values()]
    assert runner.tick(*staged(view, windows, [event])) is None
    assert [list(rows) for rows in runner.tables.rows.values()] == stored, "nothing is rewritten"


def test_names_alone_make_no_other_shape() -> None:
    windows = WINDOWS["tumbling"]
    view = grouped_view(windows)
    renamed = replace(
        view,
        plan=replace(view.plan, view="other", fingerprint="f2", sql="…", where="x > 1"),
        finals=tuple((replace(c, name=f"{c.name} other"), sql) for c, sql in view.finals),
    )
    shapes = {
        name: make_kind(each, calculator()).shape
        for name, each in {
            "same": renamed,
            "having": grouped_view(windows, having='"p0" > 0'),
            "values": grouped_view(windows, values=False),
            "window": grouped_view(WINDOWS["hopping"]),
            "none": grouped_view(NONE),
            "closes": grouped_view(windows, closes=True),
            "keys": grouped_view(windows, is_keyed=False),
            "finals": replace(view, finals=view.finals[1:]),
        }.items()
    }
    assert shapes.pop("same") == make_kind(view, calculator()).shape
    assert len({*shapes.values(), make_kind(view, calculator()).shape}) == len(shapes) + 1


TYPES = (
    ("BOOLEAN", True), ("TINYINT", -3), ("SMALLINT", 300), ("INT", 70_000), ("BIGINT", 2**40),
    ("FLOAT", 1.5), ("DOUBLE", 0.1), ("STRING", "é☃"), ("BINARY", b"\x00\xff"),
    ("DATE", dt.date(2026, 1, 2)), ("TIMESTAMP", EPOCH + dt.timedelta(microseconds=SPRING)),
    ("DECIMAL(38,10)", Decimal("1.0000000001")), ("ARRAY<STRING>", ["a", None, "b'\","]),
    ("STRUCT<a: INT, b: ARRAY<BIGINT>>", {"a": 1, "b": [2]}),
)  # fmt: skip


@pytest.mark.parametrize(("type_", "value"), TYPES)
def test_every_type_can_be_key_partial_value_and_final(type_: str, value: Any) -> None:
    view = bound_view(
        "typed",
        keys={"k0": type_},
        partials=(("p0", "max", type_, 'max("p0")'),),
        distincts={"d0": type_},
        finals=(("k", type_, '"k0"'), ("p", type_, '"p0"'), ("d", "BIGINT", '"d0"')),
    )
    runner = runner_of(view)
    partials = _table(partials_schema(view), [(1, value, 1, value), (1, None, 1, None)])
    values = [
        _table(values_schemas(view)[0], [(1, value, value), (1, None, value), (1, value, None)])
    ]
    assert runner.tick(partials, values) is not None
    assert runner.tick(partials, values) is None
    kept = frozen(value)
    assert runner.rows(1) == Counter({(kept, kept, 1): 1, (None, None, 1): 1})


SPREAD = """
CREATE STREAM readings (sensor STRING, value DOUBLE, note STRING, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 2 SECONDS LATE REVISE;
CREATE MATERIALIZED VIEW spread AS
  SELECT sensor, stddev_pop(value) AS spread, first(note) AS note, count(DISTINCT note) AS notes
  FROM readings GROUP BY sensor;
"""
POSITION = "STRUCT<_event_time: TIMESTAMP, _partition: INT, _offset: BIGINT>"


def spread_view() -> BoundView:
    project = parse_sql(SPREAD, "readings.sql")
    plan = plan_view(project, project.views[0])
    of_function = {"count": "BIGINT", "avg": "DOUBLE", "m2": "DOUBLE", "min": POSITION}
    types = {p.name: of_function.get(p.function, "STRING") for p in plan.partials}
    outputs = {"sensor": "STRING", "spread": "DOUBLE", "note": "STRING", "notes": "BIGINT"}
    return bind_view(
        plan,
        project.streams[0],
        keys={"k0": parse_type("STRING")},
        partials={name: parse_type(type_) for name, type_ in types.items()},
        distincts={"d0": parse_type("STRING")},
        outputs={name: parse_type(type_) for name, type_ in outputs.items()},
    )


def test_aggregates_that_look_at_each_other_bear_new_values_beside_them(seed: int) -> None:
    """Means, deviations and firsts are merged from several columns of a row."""
    rng = random.Random(seed)
    view = spread_view()
    runner = runner_of(view)
    seen: dict[str, list[tuple[float, int, str | None]]] = {"a": [], "b": []}
    for tick in range(8):
        partials, values = [], []
        for sensor, known in seen.items():
            found = [
                (rng.uniform(-5, 5), rng.randrange(10_000) * 100 + tick, rng.choice("xyz"))
                for _ in range(rng.randrange(4))
            ]
            if not found:
                continue
            known += found
            numbers = [value for value, _, _ in found]
            _, at, note = min(found, key=lambda event: event[1])
            place = {
                "_event_time": EPOCH + dt.timedelta(microseconds=at),
                "_partition": 0,
                "_offset": at,
            }
            of_function = {
                "count": len(found),
                "avg": statistics.fmean(numbers),
                "m2": statistics.pvariance(numbers) * len(numbers),
                "min": place,
                "min_by": note,
            }
            row = [of_function[partial.function] for partial in view.plan.partials]
            partials.append((1, sensor, len(found), *row))
            values += [(1, sensor, note) for _, _, note in found]
        runner.tick(
            _table(partials_schema(view), partials), [_table(values_schemas(view)[0], values)]
        )
    wanted = {
        sensor: (
            pytest.approx(statistics.pstdev([value for value, _, _ in known])),
            min(known, key=lambda event: event[1])[2],
            len({note for _, _, note in known}),
        )
        for sensor, known in seen.items()
        if known
    }
    assert {sensor: tuple(rest) for sensor, *rest in runner.rows(1)} == wanted
