"""Any name and any column type of a stream can be in a view. Runs against every backend."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from store_cases import bound_view, rows_of, tick_write, view_write

from headrace.store.contract import Store


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


HOSTILE = (
    'a"b', "select", "x; DROP TABLE y", "ünï ☃", "_headrace", "store", "with space", "'", "Group",
    "_h", "_hid", "_h_key0",
)  # fmt: skip


def test_names_are_data_never_sql(store: Store) -> None:
    generation = store.claim()
    for name in HOSTILE:
        quoted = '"' + name.replace('"', '""') + '"'
        view = bound_view(
            name,
            keys={name: "STRING"},
            partials=((name + "2", "sum", "BIGINT", f'sum({quoted[:-1]}2")'),),
            finals=((name, "STRING", quoted), (name + "3", "BIGINT", f'{quoted[:-1]}2"')),
        )
        store.create_view(view, {})
        for _ in range(2):
            store.commit(tick_write(store, generation, view_write(view, [(name, 1, 4)])))
        page = store.read_view(name, {name: name}, [(name, True)], 5, None)
        assert page.table.to_pylist() == [{name: name, name + "3": 8}]
        assert rows_of(store, f"SELECT * FROM {quoted}") == [(name, 8)]
    for name in HOSTILE:
        store.drop_view(name)


TYPES = (
    ("BOOLEAN", True), ("TINYINT", -3), ("SMALLINT", 300), ("INT", 70_000), ("BIGINT", 2**40),
    ("FLOAT", 1.5), ("DOUBLE", 0.1), ("STRING", "é☃"), ("BINARY", b"\x00\xff"),
    ("DATE", datetime(2026, 1, 2).date()),  # noqa: DTZ001
    ("TIMESTAMP", at(1_700_000_000)), ("DECIMAL(38,10)", Decimal("1.0000000001")),
    ("ARRAY<STRING>", ["a", None, "b'\","]),
    ("STRUCT<a: INT, b: ARRAY<BIGINT>>", {"a": 1, "b": [2]}),
)  # fmt: skip


@pytest.mark.parametrize(("type_", "value"), TYPES)
def test_every_type_can_be_key_partial_and_final(store: Store, type_: str, value: object) -> None:
    view = bound_view(
        "typed",
        keys={"k": type_},
        partials=(("p", "max", type_, 'max("p")'),),
        finals=(("k", type_, '"k"'), ("p", type_, '"p"')),
    )
    store.create_view(view, {})
    generation = store.claim()
    for _ in range(2):
        rows = [(value, 1, value), (None, 1, None)]
        changes = store.commit(tick_write(store, generation, view_write(view, rows)))
    assert changes == []
    assert store.describe("typed") == (("k", view.keys[0].type.name), ("p", view.keys[0].type.name))
    first = store.read_view("typed", {}, [("k", False)], 1, None)
    assert first.table.to_pylist() == [{"k": value, "p": value}]
    assert first.table.schema.field("k").type == view.keys[0].type.arrow
    rest = store.read_view("typed", {}, [("k", False)], 1, first.next_cursor)
    assert rest.table.to_pylist() == [{"k": None, "p": None}]
    assert rest.next_cursor is None
