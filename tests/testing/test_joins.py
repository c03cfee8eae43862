"""Views that join tables, in a test."""

from __future__ import annotations

from collections.abc import Callable

from headrace.testing import Project

SQL = """
CREATE STREAM calls (id STRING, user_id STRING);
CREATE TABLE users (id STRING, name STRING, PRIMARY KEY (id));
CREATE MATERIALIZED VIEW named AS
SELECT c.id, u.name FROM calls c JOIN users u ON u.id = c.user_id;
CREATE MATERIALIZED VIEW strict AS
SELECT c.id, u.name FROM calls c JOIN users u ON u.id = c.user_id ELSE DEAD LETTER;
"""


def test_an_event_keeps_the_row_it_found(make: Callable[..., Project]) -> None:
    project = make(sql=SQL)
    project.upsert("users", {"id": "u", "name": "Ann"})
    project.send("calls", [{"id": "a", "user_id": "u"}, {"id": "b", "user_id": "nobody"}])
    project.upsert("users", {"id": "u", "name": "Anna"})
    project.send("calls", {"id": "c", "user_id": "u"})
    rows = [{"id": "a", "name": "Ann"}, {"id": "c", "name": "Anna"}]
    project.expect("named").rows(rows).counts(read=3, applied=2, filtered=1)
    strict = project.expect("strict").dead_letters(["table users has no row for it"])
    strict.rows(rows).counts(read=3, applied=2, filtered=0, dead=1)
