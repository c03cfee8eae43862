"""Definitions that change while the log holds their events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from headrace.log.contract import Group, PartitionBatch
from headrace.model.definitions import Changelog, Column, Stream
from headrace.model.errors import LogError
from headrace.model.types import parse_type

NOTE = Column("note", parse_type("STRING"))


def test_a_nullable_column_at_the_end_is_taken_over(embedded: Any, shop: Any) -> None:
    old, new = shop.stream(partitions=2), shop.stream(partitions=2, extra=(NOTE,))
    writer = embedded.writer([old])
    old_reader = embedded.reader([old])
    writer.append(Group((shop.to(old, 0, 0, 3),)))
    writer.close()
    writer, reader = embedded.writer([new]), embedded.reader([new])
    batch = shop.batch(new, 3, 2).set_column(4, NOTE.name, pa.array(["x", "y"]))
    writer.append(Group((PartitionBatch("transactions", 0, batch),)))
    for _ in range(2):
        rows = [r for p in reader.read("transactions", 0, 0, 5) for r in p.batch.to_pylist()]
        assert [row["note"] for row in rows] == [None, None, None, "x", "y"]
        assert [row["id"] for row in rows] == [0, 1, 2, 3, 4]
        notes = [p.batch for p in reader.read("transactions", 0, 1, 4, ["note", "id"])]
        assert [v for b in notes for v in b.column("note").to_pylist()] == [None, None, "x"]
        assert shop.ids(old_reader, "transactions", 0) == [0, 1, 2, 3, 4]
        writer.close()
        writer = embedded.writer([new])
    with pytest.raises(LogError, match="schema"):
        writer.append(Group((shop.to(old, 0, 0, 1),)))
    writer.close()
    with pytest.raises(LogError, match="column note is gone"):
        embedded.writer([old])


def test_an_added_column_before_any_event(embedded: Any, shop: Any) -> None:
    old, new = shop.stream(), shop.stream(extra=(NOTE,))
    embedded.writer([old]).close()
    writer, reader = embedded.writer([new]), embedded.reader([new])
    writer.append(Group((shop.to(new, 1, 0, 2),)))
    assert shop.ids(reader, "transactions", 1) == [0, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"partitions": 4}, "3 partitions became 4"),
        ({"event_time": None}, "event time created_at became None"),
        ({"drop": 1}, "column 2 was user_id and is now amount"),
        ({"drop": 3}, "column created_at is gone"),
        ({"retype": "INT"}, "column id was int64 NOT NULL and is now int32 NOT NULL"),
        ({"nullable": True}, "column id was int64 NOT NULL and is now int64\n"),
        ({"extra": replace(NOTE, nullable=False)}, "added column note is NOT NULL"),
    ],
)
def test_other_changes_are_refused(
    embedded: Any, shop: Any, change: dict[str, Any], message: str
) -> None:
    stream = shop.stream()
    writer = embedded.writer([stream])
    writer.append(Group((shop.to(stream, 0, 0, 1),)))
    writer.close()
    columns = list(stream.columns)
    if "drop" in change:
        del columns[change["drop"]]
    if "retype" in change:
        columns[0] = replace(columns[0], type=parse_type(change["retype"]))
    if "nullable" in change:
        columns[0] = replace(columns[0], nullable=True)
    if "extra" in change:
        columns.append(change["extra"])
    plain = {k: v for k, v in change.items() if k in ("partitions", "event_time")}
    changed = replace(stream, columns=tuple(columns), **plain)
    with pytest.raises(LogError, match=message) as caught:
        embedded.writer([changed])
    assert "new name" in caught.value.hint
    embedded.writer([stream])  # the refusal changed nothing, and the lock is free again


def test_a_table_gets_columns_that_its_earlier_rows_need_no_value_for(embedded: Any) -> None:
    changes = Column("id", parse_type("STRING"), False), Column("name", parse_type("STRING"))
    key = Changelog(key=("id",), required=("id",))
    table = Stream("customers", changes, partition_by=("id",), changelog=key)
    embedded.writer([table]).close()
    added = replace(table, columns=(*changes, NOTE))
    needed = replace(added, changelog=replace(key, required=("id", "note")))
    with pytest.raises(LogError, match="added column note is NOT NULL") as caught:
        embedded.writer([needed])
    assert "table customers changed while the log holds its changes" in caught.value.message
    assert "the changed table a new name" in caught.value.hint
    embedded.writer([added]).close()


def test_a_stream_left_out_keeps_its_events(embedded: Any, shop: Any) -> None:
    stream, other = shop.stream(), shop.stream("refunds", partitions=1)
    writer = embedded.writer([stream, other])
    writer.append(Group((shop.to(stream, 0, 0, 2), shop.to(other, 0, 0, 2))))
    writer.close()
    writer = embedded.writer([other])
    writer.append(Group((shop.to(other, 0, 2, 2),)))
    writer.close()
    writer, reader = embedded.writer([stream, other]), embedded.reader([stream, other])
    assert shop.ids(reader, "transactions", 0) == [0, 1]
    assert shop.ids(reader, "refunds", 0) == [0, 1, 2, 3]
