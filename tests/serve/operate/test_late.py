"""Late events and the ledger, as operators ask for them over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from headrace.store.contract import (
    INCIDENT,
    Counts,
    StoredDecision,
    StreamCounts,
    StreamWrite,
    TickWrite,
    ViewStatus,
    ViewWrite,
)

SECOND = 1_000_000
LATE = "/v1/streams/payments/late"


def _problem(response: httpx.Response, status: int, code: str) -> str:
    assert response.status_code == status, response.text
    assert response.json()["code"] == code
    return str(response.json()["detail"])


def _commit(shop: Any, counts: Counts, stream: StreamCounts, **more: Any) -> None:
    reached = {0: counts.read + counts.duplicate}
    view = ViewWrite("income", None, {}, reached, counts, None, **more)
    write = StreamWrite("payments", reached, stream)
    tick = shop.store.last_tick() + 1
    shop.store.commit(TickWrite(tick, shop.generation, 0, (view,), (write,)))


def test_the_ledger_shows_both_sides_of_every_sum(shop: Any) -> None:
    empty = shop.http.get("/v1/ledger").json()
    assert (empty["engine"], empty["streams"]) == ({"tick": 0}, {})
    counts = Counts(read=8, applied=4, filtered=1, late=2, sided=1, dropped=2, duplicate=2)
    _commit(shop, counts, StreamCounts(advanced=10, accepted=8, duplicate=2))
    answer = shop.http.get("/v1/ledger").json()
    assert answer == {
        "engine": {"tick": 1},
        "streams": {
            "payments": {
                "advanced": 10,
                "accepted": 8,
                "duplicate": 2,
                "dead": 0,
                "is_conserved": True,
                "next_offsets": {"0": 10},
            }
        },
        "views": {
            "income": {
                "stream": "payments",
                "read": 8,
                "applied": 4,
                "filtered": 1,
                "late": 2,
                "sided": 1,
                "dropped": 2,
                "dead": 0,
                "duplicate": 2,
                "is_conserved": True,
                "incident": "",
            }
        },
    }
    text = shop.http.get("/metrics").text
    assert 'headrace_stream_events_total{fate="duplicate",stream="payments"} 2.0' in text
    assert 'headrace_conservation_holds{stream="payments"} 1.0' in text


def test_an_incident_shows_although_nothing_of_its_tick_is_stored(shop: Any) -> None:
    said = f"{INCIDENT}view income: 2 events were read, but 1 applied"
    shop.store.set_status("income", ViewStatus("failed", said))
    view = shop.http.get("/v1/ledger").json()["views"]["income"]
    assert (view["is_conserved"], view["incident"]) == (False, said)
    assert 'headrace_conservation_holds{stream="payments"} 0.0' in shop.http.get("/metrics").text
    shop.store.set_status("income", ViewStatus("removed", said))
    assert shop.http.get("/v1/ledger").json()["views"] == {}


def test_late_events_are_listed_within_a_limit(shop: Any) -> None:
    assert shop.http.get(LATE).json() == {
        "stream": "payments", "sided": [], "dropped": [], "decisions": [], "cut": False,
    }  # fmt: skip
    windows = tuple((start * SECOND, (start + 1) * SECOND, start + 1) for start in range(3))
    _commit(shop, Counts(read=6, dropped=6), StreamCounts(6, 6), dropped=windows)
    shop.store.decide(StoredDecision("payments", 0, 5, "drop"))
    answer = shop.http.get(f"{LATE.replace('payments', 'PayMents')}?limit=2").json()
    assert answer["dropped"] == [
        {
            "view": "income",
            "window_start": f"1970-01-01T00:00:0{start}.000000Z",
            "window_end": f"1970-01-01T00:00:0{start + 1}.000000Z",
            "events": start + 1,
            "reason": "late",
        }
        for start in (2, 1)
    ]
    (decision,) = answer["decisions"]
    assert decision.pop("decided_at").endswith("Z")
    assert decision == {"partition": 0, "offset": 5, "decision": "drop"}
    assert answer["cut"] is True
    for wrong in ("limit=0", "limit=1001", "after=3"):
        _problem(shop.http.get(f"{LATE}?{wrong}"), 400, "parameter")
    detail = _problem(shop.http.get("/v1/streams/nothing/late"), 404, "unknown-stream")
    assert "nothing" in detail


def test_late_events_are_applied_to_one_view_or_to_all(shop: Any) -> None:
    answer = shop.http.post(f"{LATE}/apply", json={"view": "Income"})
    assert answer.status_code == 202
    assert answer.json() == {"stream": "payments", "view": "income", "state": "applying"}
    for body in (b"", b"{}", b'{"view": null}'):
        assert shop.http.post(f"{LATE}/apply", content=body).json()["view"] is None
    assert shop.control.late_applied == [("payments", "income")] + [("payments", None)] * 3
    _problem(shop.http.post(f"{LATE}/apply", json={"veiw": "income"}), 400, "body")
    _problem(shop.http.post(f"{LATE}/apply", json={"view": "nothing"}), 404, "view-unknown")
    _problem(shop.http.post("/v1/streams/nothing/late/apply"), 404, "unknown-stream")
    assert len(shop.control.late_applied) == 4


@pytest.mark.parametrize("decision", ["apply", "side", "drop"])
def test_a_halted_stream_is_resumed_once(shop: Any, decision: str, beside: Any, until: Any) -> None:
    path = "/v1/streams/Payments/resume"
    detail = _problem(shop.http.post(path, json={"decision": decision}), 409, "not-halted")
    assert "payments" in detail
    shop.control.halted = [(0, 17), (2, 4)]
    answers: list[Any] = []
    with beside(lambda: answers.append(shop.http.post(path, json={"decision": decision}))):
        until(lambda: shop.control.recordings)
        assert answers == []  # nothing is said before it is recorded
        shop.control.recordings[0].set_result(None)
    assert answers[0].status_code == 200
    assert answers[0].json() == {
        "stream": "payments",
        "decision": decision,
        "events": [{"partition": 0, "offset": 17}, {"partition": 2, "offset": 4}],
    }
    assert shop.control.decisions == [("payments", decision)]
    _problem(shop.http.post(path, json={"decision": decision}), 409, "not-halted")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"decision": "ignore"}', b'{"decision": 1}', b"["])
def test_only_a_decision_decides(shop: Any, body: bytes) -> None:
    shop.control.halted = [(0, 17)]
    _problem(shop.http.post("/v1/streams/payments/resume", content=body), 400, "body")
    assert shop.control.decisions == []
    _problem(
        shop.http.post("/v1/streams/nothing/resume", json={"decision": "drop"}),
        404,
        "unknown-stream",
    )
