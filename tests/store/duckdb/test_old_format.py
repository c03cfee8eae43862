"""A store that the version of format 1 left behind, killed after its fifth tick.

`data/store_format_1.tar.xz` has views over the stream `events`: `sales` (two events set aside, one
of them applied in tick 2), `plain` (begun at offset 5 of partition 1; failed), `rebuilt` (dropped
and made again after an event was applied, then another applied) and `removed`. Generation 2 wrote
it; the last tick is in the write-ahead log alone. Three late events were decided.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from headrace.model.errors import StoreError, StoreLockedError
from headrace.model.settings import StoreSettings
from headrace.store.contract import StoredDecision, StoreDeadLetter, ViewStatus
from headrace.store.duckdb.keyed_tables import DuckBackend
from headrace.store.duckdb.old_format import OldReplay, OldStore, carry_over, check_reach

DATA = Path(__file__).parent / "data" / "store_format_1.tar.xz"
VIEWS = ("sales", "plain", "rebuilt")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with tarfile.open(DATA) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "store.duckdb"


def accept(old: OldStore) -> None:
    pass


def make_new(old: OldStore, new: Path) -> None:
    backend = DuckBackend(new, StoreSettings())
    for _ in range(old.generation):
        backend.claim()
    backend.close()


def carried(file: Path, check: Callable[[OldStore], None] = accept) -> OldStore:
    found: list[OldStore] = []

    def write(old: OldStore, new: Path) -> None:
        found.append(old)
        make_new(old, new)

    assert carry_over(file, StoreSettings(), check, write)
    return found[0]


def test_what_the_log_does_not_hold_is_read(file: Path) -> None:
    old = carried(file)
    assert (old.generation, old.last_tick) == (2, 5)
    assert [d.decision for d in old.decisions] == [
        StoredDecision("events", 0, 2, "side"),
        StoredDecision("orders", 0, 7, "apply"),
        StoredDecision("orders", 1, 3, "drop"),
    ]
    assert all(d.decided_at_microseconds > 1_700_000_000_000_000 for d in old.decisions)
    assert old.replays == (
        OldReplay("events", "rebuilt", 0, 0, 5),
        OldReplay("events", "rebuilt", 0, 2, 5),
        OldReplay("events", "sales", 0, 1, 5),
    )
    raw = '{"user": "ann"}'
    assert old.dead_letters == (
        (1, StoreDeadLetter("plain", "events", 0, 2, "overflow", raw)),
        (1, StoreDeadLetter("sales", "events", 0, 3, "division by zero", raw)),
        (5, StoreDeadLetter("plain", "events", 0, 5, "overflow again", raw)),
    )
    views = {view.name: view for view in old.views}
    assert set(views) == {*VIEWS, "removed"}
    assert views["plain"].start_offsets == {0: 0, 1: 5}
    assert views["plain"].next_offsets == {0: 6, 1: 7}
    assert views["plain"].status == ViewStatus("failed", "it overflowed")
    assert (views["sales"].stream, views["sales"].fingerprint) == ("events", "f1")


def test_the_old_file_stays_beside_the_new_one(file: Path) -> None:
    with pytest.raises(StoreError, match="another version"):
        DuckBackend(file, StoreSettings())
    old = carried(file)
    backend = DuckBackend(file, StoreSettings())
    assert backend.generation == 2
    backend.close()
    aside = file.with_name("store.duckdb.format1")
    assert {f.name for f in file.parent.iterdir()} == {file.name, aside.name}
    aside.rename(file)  # it is whole by itself: the write-ahead log was folded in
    assert carried(file) == old


def test_nothing_is_done_where_there_is_no_old_store(tmp_path: Path, file: Path) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("nothing is to be carried over")

    carried(file)
    assert not carry_over(file, StoreSettings(), refuse, refuse)
    other = tmp_path / "other.duckdb"
    assert not carry_over(other, StoreSettings(), refuse, refuse)
    assert not other.exists()
    with duckdb.connect(str(other)) as connection:
        connection.execute("CREATE TABLE one (a INTEGER)")
    assert not carry_over(other, StoreSettings(), refuse, refuse)


def test_it_is_refused_where_the_log_does_not_reach_back(file: Path) -> None:
    def check(old: OldStore) -> None:
        check_reach(file, old, {"events": (0, 2), "orders": (9,)}, VIEWS)

    with pytest.raises(StoreError) as refused:
        carried(file, check)
    message = str(refused.value)
    assert "view sales holds events of stream events from offset 0 of partition 1" in message
    assert "begins at 2" in message
    assert "plain" not in message  # begins behind that
    assert {f.name for f in file.parent.iterdir()} == {file.name}
    assert f"mv {file} {file}.format1" in refused.value.hint
    file.rename(f"{file}.format1")  # as the hint says
    assert carried(file, check).last_tick == 5
    assert DuckBackend(file, StoreSettings()).close() is None


@pytest.mark.parametrize("oldest", [{}, {"events": (0, 0)}, {"events": (0, 0, 0)}])
def test_a_log_that_reaches_back_is_enough(file: Path, oldest: dict[str, Any]) -> None:
    carried(file, lambda old: check_reach(file, old, oldest, VIEWS))


def test_views_that_are_no_longer_defined_need_no_log(file: Path) -> None:
    carried(file, lambda old: check_reach(file, old, {"events": (0, 3)}, ["plain"]))


def test_a_new_store_that_was_not_finished_is_made_again(file: Path) -> None:
    def fail(old: OldStore, new: Path) -> None:
        make_new(old, new)
        raise StoreError("no more")

    with pytest.raises(StoreError, match="no more"):
        carry_over(file, StoreSettings(), accept, fail)
    old = carried(file)
    # As if it had ended between its last two steps.
    file.rename(f"{file}.new")
    assert carried(file) == old
    backend = DuckBackend(file, StoreSettings())
    assert backend.generation == 2
    backend.close()


def test_an_old_store_that_is_open_is_left_alone(file: Path) -> None:

    hold = f"import duckdb; c = duckdb.connect({str(file)!r}); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreLockedError, match=str(holder.pid)):
            carried(file)
        holder.communicate("\n")
    carried(file)
