"""Tables in a test: rows posted to them, and what they are then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.model.errors import RequestError
from headrace.testing import Project

Make = Callable[..., Project]

TABLES = """
CREATE TABLE customers (id STRING, name STRING NOT NULL, tier INT, PRIMARY KEY (id));

CREATE STREAM account_changes (id STRING, owner STRING, op STRING, version INT) INTO 2 PARTITIONS;

CREATE TABLE accounts FROM account_changes KEY (id) SEQUENCE BY version
APPLY AS DELETE WHEN op = 'd' COLUMNS * EXCEPT (op, version)
TOMBSTONES FOR INTERVAL 1 DAY;
"""


def test_rows_are_posted_replaced_and_deleted(make: Make) -> None:
    project = make(sql=TABLES)
    rows = [{"id": "a", "name": "Ann", "tier": 1}, {"id": "b", "name": "Bob"}]
    assert project.upsert("customers", rows, key="k").accepted == 2
    assert project.upsert("customers", rows, key="k").is_retry
    customers = project.expect("customers")
    customers.rows(rows).changes(added=rows).counts(read=2, applied=2)
    project.upsert("customers", rows[0])
    customers.no_changes().counts(read=3)
    project.upsert("Customers", {"id": "a", "name": "Anna"})
    project.delete("customers", {"id": "b"})
    customers.rows([{"id": "a", "name": "Anna", "tier": None}])
    customers.changes(changed=[(rows[0], {"id": "a", "name": "Anna"})], removed=rows[1:])
    assert project.query("SELECT name, tier FROM customers") == [{"name": "Anna", "tier": None}]


def test_what_is_no_change_of_the_table_is_a_dead_letter_of_it(make: Make) -> None:
    project = make(sql=TABLES)
    assert project.upsert("customers", [{"id": "a"}, {"name": "x"}]).quarantined == 2
    project.expect("customers").empty().dead_letters(["name", "id"])
    with pytest.raises(AssertionError, match="customers has 2 dead letters"):
        project.expect("customers").row(id="a")


def test_a_table_follows_a_stream(make: Make) -> None:
    project = make(sql=TABLES)
    change = {"id": "a", "owner": "x", "op": "u"}
    project.send("account_changes", [{**change, "version": 2}, {**change, "version": 1}])
    accounts = project.expect("accounts").rows([{"id": "a", "owner": "x"}])
    accounts.counts(read=2, applied=2)
    project.send("account_changes", {"id": "a", "op": "d", "version": 3})
    project.send("account_changes", {**change, "version": 3})
    accounts.empty()
    project.advance(days=1, seconds=1)
    project.send("account_changes", {**change, "version": 0})
    accounts.row(id="a")


def test_changes_and_events_are_not_taken_for_each_other(make: Make) -> None:
    project = make(sql=TABLES)
    with pytest.raises(RequestError, match="customers is a table, not a stream"):
        project.send("customers", {"id": "a"})
    with pytest.raises(RequestError, match="accounts takes its changes from the stream"):
        project.upsert("accounts", {"id": "a"})
    with pytest.raises(RequestError, match="account_changes is a stream, not a table"):
        project.delete("account_changes", {"id": "a"})
    with pytest.raises(RequestError, match="there is no stream 'nothing'") as refused:
        project.send("nothing", {"id": "a"})
    assert refused.value.hint == "streams are account_changes"
