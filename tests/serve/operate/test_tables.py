"""A table as operators and readers see it: its stream may have its own name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from change_cases import Change, partials, table_view

from headrace.store.contract import Counts, StreamCounts, StreamWrite, TickWrite, ViewWrite


def fill(shop: Any) -> None:
    """Of 5 changes one is superseded and one comes too long after a delete."""
    view = table_view()
    view = replace(view, plan=replace(view.plan, stream="customers"))
    shop.store.create_view(view, {0: 0})
    shop.control.views = (*shop.control.views, "customers")
    changes = [
        Change(0, 0, "a", "new", False, 2, 1, 1),
        Change(0, 1, "a", "old", False, 1, 2, 2),
        Change(0, 2, "b", None, True, 7, 3, 3),
        Change(0, 3, "b", "back", False, 1, 4, 15),
        Change(0, 4, "c", "c", False, None, 5, 16),
    ]
    rows = partials(view, changes).drop_columns(["_view"])
    write = ViewWrite("customers", rows, {}, {0: 5}, Counts(read=5, applied=5), None)
    stream = StreamWrite("customers", {0: 5}, StreamCounts(advanced=5, accepted=5))
    tick = shop.store.last_tick() + 1
    shop.store.commit(TickWrite(tick, shop.generation, 0, (write,), (stream,)))


def test_status_and_metrics_say_what_became_of_changes(shop: Any) -> None:
    fill(shop)
    views = shop.http.get("/v1/status").json()["views"]
    assert views["customers"]["table"] == {"superseded": 1, "resurrected": 1}
    assert views["income"]["table"] is None
    figures = shop.http.get("/metrics").text
    for fate in ("superseded", "resurrected"):
        assert f'headrace_table_changes_total{{fate="{fate}",table="customers"}} 1.0' in figures


def test_a_table_is_read_like_a_view(shop: Any) -> None:
    fill(shop)
    described = {view["name"]: view for view in shop.http.get("/v1/views").json()["views"]}
    assert [described[name]["is_table"] for name in ("customers", "income")] == [True, False]
    assert described["customers"]["stream"] == "customers"
    first = shop.http.get("/v1/views/CUSTOMERS", params={"limit": 2}).json()
    after = {"limit": 2, "cursor": first["next_cursor"]}
    second = shop.http.get("/v1/views/customers", params=after).json()
    rows = [(row["id"], row["name"]) for page in (first, second) for row in page["rows"]]
    assert rows == [("a", "new"), ("b", "back"), ("c", "c")]
    sql = {"sql": "SELECT count(*) AS n FROM customers"}
    assert shop.http.post("/v1/sql", json=sql).json()["rows"] == [{"n": 3}]


def test_changes_of_a_table_are_never_late(shop: Any) -> None:
    fill(shop)
    for method, path, body in (
        ("GET", "late", None),
        ("POST", "late/apply", {}),
        ("POST", "resume", {"decision": "apply"}),
    ):
        answer = shop.http.request(method, f"/v1/streams/customers/{path}", json=body)
        assert answer.status_code == 404, answer.text
        assert answer.json()["detail"] == "customers is a table, not a stream"
