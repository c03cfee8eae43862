"""A store of format 1 that is opened by this version: what its views need of it is there."""

from __future__ import annotations

import tarfile
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest
from store_cases import rows_of, sales, tick_write, view_write

from headrace.model.definitions import Column, Stream
from headrace.model.errors import StoreError
from headrace.model.settings import StoreSettings
from headrace.model.types import DataType
from headrace.store.contract import StoredDecision, StoreDeadLetter
from headrace.store.opening import Refill, open_store

DATA = Path(__file__).parent / "duckdb" / "data" / "store_format_1.tar.xz"
ONE = Decimal("1.00")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with tarfile.open(DATA) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "store.duckdb"


def test_what_the_log_cannot_give_again_is_carried_over(file: Path) -> None:
    """The log has lost offsets 0 to 3 of partition 0, which the user agreed to."""
    refill = Refill({"sales", "plain"}, {"events": (3, 0)})
    with pytest.raises(StoreError, match="log begins at 3"):
        open_store(file, StoreSettings(), refill)
    file.rename(f"{file}.format1")
    with closing(open_store(file, StoreSettings(), refill)) as store:
        assert store.last_tick() == 5
        assert store.ledger(10).column("tick").to_pylist() == [5]
        assert store.claim() == 3
        store.declare_stream(Stream("events", (Column("user", DataType("STRING")),)))
        assert store.decisions("events") == [StoredDecision("events", 0, 2, "side")]
        assert store.replays("events", "sales") == [(0, 1, 5)]
        other = sales("other")
        store.create_view(other, {0: 0})
        assert store.dead_letters(None, 10) == []  # their views are not there yet
        store.commit(tick_write(store, 3, view_write(other, [("ann", 1, ONE, 1, ONE)])))
        assert store.last_tick() == 6
    with closing(open_store(file, StoreSettings())) as store:
        assert rows_of(store, "SELECT payments FROM other") == [(1,)]
        store.create_view(sales("sales"), {0: 3})
        assert store.dead_letters("sales", 10) == []  # the one at offset 3 is found again
        store.create_view(sales("plain"), {0: 3})
        lost = StoreDeadLetter("plain", "events", 0, 2, "overflow", '{"user": "ann"}')
        assert store.dead_letters("plain", 10) == [lost]
        store.drop_view("plain")
        store.create_view(sales("plain"), {0: 3})
        assert store.dead_letters("plain", 10) == []


def test_it_is_refused_without_the_log_and_where_the_log_does_not_reach(file: Path) -> None:
    before = file.read_bytes()
    with pytest.raises(StoreError, match="another version"):
        open_store(file, StoreSettings())
    with pytest.raises(StoreError, match="log begins at 3") as refused:
        open_store(file, StoreSettings(), Refill({"sales"}, {"events": (3, 0)}))
    assert f"mv {file} {file}.format1" in refused.value.hint
    assert not file.with_name("store.duckdb.format1").exists()
    assert len(file.read_bytes()) >= len(before)
    open_store(file, StoreSettings(), Refill({"sales"}, {"events": (0, 0)})).close()
