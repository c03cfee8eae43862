"""Following a view over HTTP: every tick once, in order, without a gap, whatever happens."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.serve.changes import change_stream as changes_module
from headrace.serve.changes import subscriptions


class Followed:
    """The messages of one connection, read as a plain SSE client does."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.last_id: str | None = None
        self._lines = response.iter_lines()

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        name, data = "message", ""
        for line in self._lines:
            if not line:
                if data:
                    yield name, json.loads(data)
                name, data = "message", ""
            elif line.startswith("id: "):
                self.last_id = line[4:]
            elif line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data += line[6:]

    def until_tick(self, tick: int) -> list[int]:
        ticks = []
        for name, document in self:
            assert name == "changes"
            ticks.append(document["tick"])
            if document["tick"] >= tick:
                return ticks
        raise AssertionError(f"the stream ended before tick {tick}: {ticks}")


@contextmanager
def follow(
    shop: Any, view: str = "income", after: int | None = None, **headers: str
) -> Iterator[Followed]:
    parameters = {} if after is None else {"after": after}
    url = f"/v1/views/{view}/changes"
    with shop.http.stream("GET", url, params=parameters, headers=headers) as response:
        if response.status_code != 200:
            response.read()
        yield Followed(response)


def test_one_message_per_tick_with_rows_before_and_after(shop: Any) -> None:
    with follow(shop) as followed:
        assert followed.response.headers["content-type"] == "text/event-stream"
        messages = iter(followed)
        shop.tick(income=[("ann", "70.00")])
        next(messages)  # it has read the store; the next tick reaches it live
        shop.control.watermarks["income"] = 3_000_000
        shop.control.pending_events = 9
        shop.tick(income=[("ann", "10.00"), ("bob", "1.00")])
        name, message = next(messages)
    assert name == "changes"
    assert followed.last_id == "2"
    assert message["tick"] == 2
    assert message["view"] == "income"
    assert message["before"] == [{"user_id": "ann", "total": "70.00", "payments": 1}]
    assert sorted(message["after"], key=str) == [
        {"user_id": "ann", "total": "80.00", "payments": 2},
        {"user_id": "bob", "total": "1.00", "payments": 1},
    ]
    assert message["freshness"]["tick"] == 2
    assert message["freshness"]["complete_up_to"] == "1970-01-01T00:00:03.000000Z"
    assert message["freshness"]["pending_events"] == 9


def test_replay_and_live_join_without_a_seam(shop: Any, beside: Any) -> None:
    for _ in range(40):
        shop.tick(income=[("ann", "1.00")])
    ticks = partial(_fill, shop, 40, 1)
    with follow(shop, after=5) as followed, beside(ticks):
        assert followed.until_tick(80) == list(range(6, 81))


def test_a_replayed_message_equals_the_live_one_but_for_completeness(shop: Any) -> None:
    with follow(shop) as followed:
        messages = iter(followed)
        shop.tick(income=[("ann", "1.00")])
        next(messages)  # it has read the store; the next tick reaches it live
        shop.tick(income=[("ann", "2.00")])
        _, live = next(messages)
    with follow(shop, after=1) as followed:
        _, replayed = next(iter(followed))
    ledger = shop.store.ledger(1).to_pylist()[0]["committed_at"]
    assert replayed["freshness"].pop("committed_at") == ledger.isoformat(
        timespec="microseconds"
    ).replace("+00:00", "Z")
    live["freshness"].pop("committed_at")
    assert replayed["freshness"].pop("text") != live["freshness"].pop("text")
    assert replayed == live


def test_going_on_from_a_querys_answer_misses_nothing(shop: Any) -> None:
    shop.tick(income=[("ann", "1.00")])
    answer = shop.http.get("/v1/views/income").json()
    shop.tick(income=[("ann", "2.00")])
    with follow(shop, after=answer["freshness"]["tick"]) as followed:
        _, message = next(iter(followed))
    assert message["before"] == answer["rows"]


def test_last_event_id_resumes_and_wins_over_after(shop: Any) -> None:
    for _ in range(6):
        shop.tick(income=[("ann", "1.00")])
    with follow(shop, after=1, **{"Last-Event-ID": "4"}) as followed:
        assert followed.until_tick(6) == [5, 6]


def test_the_position_is_told_before_the_first_change(shop: Any, until: Any) -> None:
    shop.tick(income=[("ann", "1.00")])
    with follow(shop) as followed:
        shop.tick(income=[("ann", "1.00")])
        lines = followed.response.iter_lines()
        first = [next(lines) for _ in range(2)]
    assert first == ["retry: 1000", "id: 1"]


def test_only_the_followed_views_ticks_come(make_shop: Any) -> None:
    shop = make_shop(views=("income", "other"))
    with follow(shop, "income") as followed:
        shop.tick(other=[("ann", "1.00")])
        shop.tick(income=[("ann", "1.00")], other=[("ann", "1.00")])
        shop.tick(other=[("ann", "1.00")])
        shop.tick(income=[("ann", "1.00")])
        assert followed.until_tick(4) == [2, 4]


def test_watched_names_views_with_subscribers(make_shop: Any, until: Any) -> None:
    shop = make_shop(views=("income", "other"))
    assert shop.server.watched() == frozenset()
    with follow(shop, "INCOME"):
        assert shop.server.watched() == {"income"}
        with follow(shop, "other"):
            assert shop.server.watched() == {"income", "other"}
        until(lambda: shop.server.watched() == {"income"})
    until(lambda: shop.server.watched() == frozenset())


def test_a_subscriber_that_comes_between_question_and_commit_misses_nothing(shop: Any) -> None:
    watched = shop.server.watched()
    assert watched == frozenset()
    with follow(shop) as followed:
        real, shop.server.watched = shop.server.watched, lambda: watched
        shop.tick(income=[("ann", "1.00")])  # the store gives no changes for publishing
        shop.server.watched = real
        assert followed.until_tick(1) == [1]


def test_heartbeats_carry_the_position(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "HEARTBEAT_SECONDS", 0.05)
    with follow(shop) as followed:
        shop.tick(income=[("ann", "1.00")])
        lines = followed.response.iter_lines()
        for line in lines:
            if line == ": heartbeat" and next(lines) == "id: 1":
                return


def test_as_many_subscribers_as_allowed(make_shop: Any, until: Any) -> None:
    shop = make_shop(subscribers_max=2)
    with follow(shop), follow(shop), follow(shop) as third:
        assert third.response.status_code == 503
        assert third.response.json()["code"] == "subscribers"
        assert int(third.response.headers["retry-after"]) > 0
    until(lambda: not shop.server.watched())
    with follow(shop) as followed:
        assert followed.response.status_code == 200


def test_too_old_is_410(make_shop: Any) -> None:
    shop = make_shop(changes_ticks_max=5)
    for _ in range(20):
        shop.tick(income=[("ann", "1.00")])
    shop.store.checkpoint()
    with follow(shop, after=2) as followed:
        assert followed.response.status_code == 410
        assert followed.response.json()["code"] == "changes-expired"
    with follow(shop, after=18) as followed:
        assert followed.until_tick(20) == [19, 20]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("after=x", 400, "parameter"),
        ("after=-1", 400, "parameter"),
        ("since=1", 400, "parameter"),
        ("after=99", 410, "changes-expired"),
    ],
)
def test_wrong_positions_are_problems(empty_shop: Any, query: str, status: int, code: str) -> None:
    response = empty_shop.http.get(f"/v1/views/income/changes?{query}")
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert empty_shop.server.watched() == frozenset()


def test_following_is_for_event_streams_and_known_views(empty_shop: Any) -> None:
    url = "/v1/views/income/changes"
    assert empty_shop.http.get(url, headers={"Accept": "application/json"}).status_code == 406
    assert empty_shop.http.get("/v1/views/nothing/changes").status_code == 404


def test_a_rebuild_ends_the_stream_with_a_problem(shop: Any) -> None:
    for _ in range(3):
        shop.tick(income=[("ann", "1.00")])
    with follow(shop, after=2) as followed:
        messages = iter(followed)
        assert next(messages)[1]["tick"] == 3
        shop.rebuild("income", followed=False)
        name, document = next(messages)
        assert (name, document["code"]) == ("problem", "changes-expired")
        assert list(messages) == []
    with follow(shop, after=2) as followed:
        assert followed.response.status_code == 410


def test_what_a_rebuild_makes_different_comes_as_changes(shop: Any) -> None:
    shop.tick(income=[("ann", "1.00"), ("bob", "1.00")])
    with follow(shop, after=1) as followed:
        messages = iter(followed)
        shop.rebuild("income", [("ann", "1.00"), ("bob", "2.00")])
        name, document = next(messages)
        assert (name, document["tick"]) == ("changes", 3)
        assert [row["total"] for row in document["before"]] == ["1.00"]
        assert [row["total"] for row in document["after"]] == ["2.00"]
        shop.tick(income=[("ann", "1.00")])
        assert next(messages)[1]["tick"] == 4
    with follow(shop, after=0) as followed:
        assert [next(iter(followed))[1]["tick"]] == [1]


def test_stopping_the_server_ends_streams_at_once(shop: Any) -> None:
    with follow(shop) as followed:
        shop.server.stop()  # raises when it does not end soon
        assert list(followed) == []


def _fill(shop: Any, ticks: int, rows: int) -> None:
    for _ in range(ticks):
        shop.tick(income=[(f"user {n} {'x' * 100}", "1.00") for n in range(rows)])


def test_a_slow_subscriber_holds_up_nobody_and_misses_nothing(
    shop: Any, until: Any, beside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "BUFFER_MESSAGES_MAX", 4)
    address = json.loads((shop.settings.run_directory / "engine.json").read_text())
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", address["port"]))
        slow.sendall(
            b"GET /v1/views/income/changes HTTP/1.1\r\nHost: x\r\n"
            b"Headrace-Internal: " + address["secret"].encode() + b"\r\n\r\n"
        )
        until(lambda: shop.server.watched())
        with follow(shop) as quick, beside(partial(_fill, shop, 60, 1_000)):
            assert quick.until_tick(60) == list(range(1, 61))
        until(lambda: "headrace_subscriptions_fallen_behind_total 0.0" not in
              shop.http.get("/metrics").text)  # fmt: skip
        slow.settimeout(60)
        ticks = []
        for line in slow.makefile("rb"):
            if line.startswith(b"id: "):
                ticks.append(int(line[4:]))
                if ticks[-1] == 60:
                    break
    assert ticks == list(range(61))


def test_a_subscriber_that_takes_nothing_is_let_go(
    shop: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes_module, "STALLED_SECONDS_MAX", 0.3)
    address = json.loads((shop.settings.run_directory / "engine.json").read_text())
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", address["port"]))
        stalled.sendall(
            b"GET /v1/views/income/changes HTTP/1.1\r\nHost: x\r\n"
            b"Headrace-Internal: " + address["secret"].encode() + b"\r\n\r\n"
        )
        until(lambda: shop.server.watched())
        _fill(shop, 60, 1_000)
        until(lambda: not shop.server.watched())


def test_more_ticks_than_can_wait_are_read_from_the_store(
    shop: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "HANDED_OVER_TICKS_MAX", 3)
    may_go_on, has_begun = threading.Event(), threading.Event()
    encode = subscriptions.Hub.encode

    def held_up(*arguments: Any, **options: Any) -> Any:
        has_begun.set()
        assert may_go_on.wait(60)
        return encode(*arguments, **options)

    monkeypatch.setattr(subscriptions.Hub, "encode", held_up)
    with follow(shop) as followed:
        shop.tick(income=[("ann", "1.00")])
        try:
            assert has_begun.wait(60)
            for _ in range(9):
                shop.tick(income=[("ann", "1.00")])
        finally:
            may_go_on.set()
        assert followed.until_tick(10) == list(range(1, 11))


@pytest.fixture
def two_views(make_shop: Any) -> Any:
    return make_shop(views=("income", "other"))


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32), buffer=st.integers(1, 4), handed_over=st.integers(1, 4))
def test_any_interleaving_gives_every_tick_once_in_order(
    two_views: Any,
    beside: Any,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    buffer: int,
    handed_over: int,
) -> None:
    """Subscribers come, leave and resume at random while ticks run; each must see exactly the
    ticks that changed its view."""
    chance = random.Random(seed)
    first = two_views.store.last_tick() + 1
    changed = [chance.random() < 0.7 for _ in range(29)] + [True]
    last = first + len(changed) - 1
    seen: dict[int, list[int]] = {}

    def subscriber(number: int, stays: random.Random) -> None:
        seen[number] = []
        after = first - 1
        with two_views.client() as http:
            while after != last:
                wanted = stays.randint(1, 6)
                url = f"/v1/views/income/changes?after={after}"
                with http.stream("GET", url) as response:
                    for count, (_, document) in enumerate(Followed(response), 1):
                        after = document["tick"]
                        seen[number].append(after)
                        if count == wanted or after == last:
                            break

    with monkeypatch.context() as patched:
        patched.setattr(subscriptions, "BUFFER_MESSAGES_MAX", buffer)
        patched.setattr(subscriptions, "HANDED_OVER_TICKS_MAX", handed_over)
        patched.setattr(subscriptions, "CATCH_UP_TICKS_MAX", 1 + seed % 3)
        subscribers = [partial(subscriber, n, random.Random(seed + n)) for n in range(3)]
        with beside(*subscribers):
            try:
                for is_changed in changed:
                    two_views.tick(**{"income" if is_changed else "other": [("ann", "1.00")]})
            except BaseException:
                two_views.server.stop()  # else the subscribers would wait for ever
                raise
    expected = [tick for tick, is_changed in enumerate(changed, first) if is_changed]
    assert seen == dict.fromkeys(range(3), expected)
