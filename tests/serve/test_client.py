"""The Python client against the real server and store, through a connection that can be cut."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from headrace.client import AsyncClient, Client
from headrace.model.covers import Covers
from headrace.model.errors import ChangesExpiredError, ClientError, RefusedError, UnreachableError
from headrace.store.contract import ViewStatus


class Cable:
    """Passes bytes on to wherever the engine listens just now; `cut` breaks every connection."""

    def __init__(self, port: Callable[[], int]) -> None:
        self._port = port
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._is_closing = False
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work: Callable[..., None], *given: socket.socket) -> None:
        thread = threading.Thread(target=work, args=given)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            if self._is_closing:
                near.close()
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._port()))
            except OSError:
                near.close()
                continue
            self.connections += 1
            self._sockets |= {near, far}
            for source, target in ((near, far), (far, near)):
                self._start(self._pass, source, target)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while piece := source.recv(65_536):
                target.sendall(piece)
        except OSError:
            pass  # cut, as the test wants
        _shut(target)
        self._sockets.discard(source)
        source.close()

    def cut(self) -> None:
        for connection in list(self._sockets):
            _shut(connection)
        self._sockets.clear()

    def close(self) -> None:
        """A thread that would stay held the store until the interpreter ends."""
        self._is_closing = True
        socket.create_connection(self._listener.getsockname()).close()  # wakes the one that waits
        self._threads[0].join()
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


@pytest.fixture
def cable(shop: Any) -> Iterator[Cable]:
    cable = Cable(lambda: shop.server.port)
    yield cable
    cable.close()


def _know_secret(client: Client | AsyncClient, shop: Any) -> None:
    """The part of the gateway that matters here."""
    address = json.loads((shop.settings.run_directory / "engine.json").read_text())
    client._http.headers["Headrace-Internal"] = address["secret"]


@pytest.fixture
def client(shop: Any, cable: Cable) -> Iterator[Client]:
    with Client(cable.url) as client:
        _know_secret(client, shop)
        yield client


def test_query_gives_rows_arrow_pandas_and_freshness(shop: Any, client: Client) -> None:
    shop.control.watermarks["income"] = 3_000_000
    shop.tick(income=[("ann", "70.00"), ("bob", "1.50")])
    result = client.query("SELECT user_id, total FROM income ORDER BY total")
    assert result.rows == [
        {"user_id": "bob", "total": Decimal("1.50")},
        {"user_id": "ann", "total": Decimal("70.00")},
    ]
    assert result.arrow.column_names == ["user_id", "total"]
    assert list(result.pandas()["user_id"]) == ["bob", "ann"]
    assert len(result) == 2
    assert result.freshness.tick == 1
    assert result.freshness.complete_up_to is not None
    assert result.freshness.complete_up_to.timestamp() == 3.0


def test_view_filters_orders_and_pages(shop: Any, client: Client) -> None:
    shop.tick(income=[(f"user {n}", f"{n}.00") for n in range(5)])
    assert [r["user_id"] for r in client.view("income", total=Decimal("3.00")).rows] == ["user 3"]
    assert [r["user_id"] for r in client.view("income", where={"user_id": "user 1"}).rows] == [
        "user 1"
    ]
    page = client.view("income", order_by=["-total"], limit=3)
    following = client.view("income", order_by="-total", limit=3, cursor=page.next_cursor)
    names = [row["user_id"] for row in [*page.rows, *following.rows]]
    assert names == [f"user {n}" for n in (4, 3, 2, 1, 0)]
    assert following.next_cursor is None
    with pytest.raises(ClientError, match="cannot be compared"):
        client.view("income", user_id=None)


def test_the_other_calls(shop: Any, client: Client) -> None:
    assert client.status()["engine"]["state"] == "live"
    assert [view["name"] for view in client.views()] == ["income"]
    assert client.rebuild("income")["state"] == "rebuilding"
    shop.add_dead_letter("income")
    assert client.view_dead_letters("income")[0]["reason"] == "division by zero"


def test_refusals_have_the_servers_words(client: Client) -> None:
    with pytest.raises(RefusedError, match="there is no view 'nothing'") as caught:
        client.view("nothing")
    assert caught.value.status == 404
    assert "income" in caught.value.hint
    with pytest.raises(RefusedError):
        client.query("DROP VIEW income")


def test_queries_outlive_a_cut(shop: Any, client: Client, cable: Cable) -> None:
    client.status()
    cable.cut()
    assert client.status()["engine"]["state"] == "live"


def test_no_server_is_unreachable_within_the_time_allowed() -> None:
    with (
        Client("http://127.0.0.1:1", request_seconds_max=0.3) as client,
        pytest.raises(UnreachableError, match=r"GET /v1/status within 0\.3 s"),
    ):
        client.status()


def test_following_outlives_cuts_and_a_new_server(shop: Any, client: Client, cable: Cable) -> None:
    first = shop.tick(income=[("ann", "1.00")])
    changes = client.subscribe("income", after=first - 1)
    assert next(changes).tick == 1
    for round_number in range(3):
        shop.tick(income=[("ann", "1.00")])
        cable.cut()
        shop.tick(income=[("ann", "1.00")])
        assert [next(changes).tick, next(changes).tick] == [
            2 + 2 * round_number,
            3 + 2 * round_number,
        ]
    shop.restart_server()
    _know_secret(client, shop)
    shop.tick(income=[("ann", "1.00")])
    change = next(changes)
    assert change.tick == 8
    assert change.before == [{"user_id": "ann", "total": Decimal("7.00"), "payments": 7}]
    assert change.after == [{"user_id": "ann", "total": Decimal("8.00"), "payments": 8}]


def test_changes_add_up_to_the_view_while_everything_is_cut(
    shop: Any, client: Client, cable: Cable, beside: Any
) -> None:
    """The changes applied to an empty copy give the view, whatever happened to connections."""

    def ticks() -> None:
        for n in range(80):
            shop.tick(income=[(f"user {n % 5}", "1.00"), (f"user {n % 3}", "0.50")])
            if n % 7 == 0:
                cable.cut()

    copy: dict[str, dict[str, Any]] = {}
    seen = []
    with beside(ticks):
        for change in client.subscribe("income", after=0):
            seen.append(change.tick)
            for row in change.before:
                assert copy.pop(row["user_id"]) == row
            for row in change.after:
                assert row["user_id"] not in copy
                copy[row["user_id"]] = row
            if change.tick % 11 == 0:
                cable.cut()
            if change.tick == 80:
                break
    assert seen == list(range(1, 81))
    expected = client.view("income").rows
    assert sorted(copy.values(), key=str) == sorted(expected, key=str)


def test_a_rebuild_is_told_to_the_follower(shop: Any, client: Client) -> None:
    shop.tick(income=[("ann", "1.00")])
    shop.tick(income=[("ann", "1.00")])
    changes = client.subscribe("income", after=1)
    assert next(changes).tick == 2
    shop.rebuild("income", followed=False)
    with pytest.raises(ChangesExpiredError, match="rebuilt"):
        next(changes)


def test_the_asynchronous_client_does_the_same(shop: Any, cable: Cable) -> None:
    shop.tick(income=[("ann", "1.00")])
    shop.tick(income=[("ann", "2.00")])

    async def work() -> None:
        async with AsyncClient(cable.url) as client:
            _know_secret(client, shop)
            result = await client.query("SELECT total FROM income")
            assert result.rows == [{"total": Decimal("3.00")}]
            assert len(await client.view("income", user_id="ann")) == 1
            assert (await client.status())["engine"]["state"] == "live"
            ticks = []
            async for change in client.subscribe("income", after=0):
                ticks.append(change.tick)
                if change.tick == 1:
                    cable.cut()
                if change.tick == 2:
                    break
            assert ticks == [1, 2]
            with pytest.raises(RefusedError):
                await client.view("nothing")

    asyncio.run(work())


def _written(client: Client | AsyncClient, shop: Any, ends: int, log: str = "log") -> None:
    """As if the client had flushed events, up to this end of the stream."""
    shop.control.log_ends["payments"] = (ends,)
    client._sender._outbox.covers = Covers(log, {"payments": (ends,)}).text()


def test_a_query_shows_what_the_client_has_written(
    shop: Any, client: Client, beside: Any, until: Any
) -> None:
    _written(client, shop, 2)

    def tick_when_waited_for() -> None:
        until(lambda: shop.server._coverage.waiting)
        shop.tick(income=[("ann", "1.00")] * 2)

    with beside(tick_when_waited_for):
        assert client.view("income").rows[0]["payments"] == 2
    _written(client, shop, 4)
    with beside(tick_when_waited_for):
        assert client.query("SELECT payments FROM income").rows == [{"payments": 4}]
    client.views()  # asks for no view's rows, so there is nothing to wait for


def test_waiting_is_bounded_and_goes_on_over_a_cut(
    shop: Any, cable: Cable, client: Client, beside: Any, until: Any
) -> None:
    with Client(cable.url, request_seconds_max=2.0) as hasty:
        _know_secret(hasty, shop)
        _written(hasty, shop, 2)
        with pytest.raises(RefusedError, match="has not taken in") as caught:
            hasty.view("income")
        assert (caught.value.status, caught.value.problem["views"]) == (504, ["income"])
    with Client(cable.url, reads_own_writes=False) as other:
        _know_secret(other, shop)
        _written(other, shop, 2)
        assert other.view("income").rows == []
    _written(client, shop, 2)

    def cut_and_tick() -> None:
        until(lambda: shop.server._coverage.waiting)
        cable.cut()
        until(lambda: not shop.server._coverage.waiting)
        until(lambda: shop.server._coverage.waiting)
        shop.tick(income=[("ann", "1.00")] * 2)

    with beside(cut_and_tick):
        assert client.view("income").rows[0]["payments"] == 2


def test_what_stands_still_or_is_gone_is_said(shop: Any, client: Client) -> None:
    _written(client, shop, 2)
    shop.control.standing["income"] = ViewStatus("halted", "event 1 is late")
    with pytest.raises(RefusedError, match="halted: event 1 is late") as caught:
        client.view("income")
    assert caught.value.status == 409
    _written(client, shop, 2, log="removed")
    with pytest.raises(RefusedError, match="another log"):
        client.query("SELECT * FROM income")
    assert client.view("income").rows == []  # said once: it is not to be had any more


def test_the_asynchronous_client_waits_too(shop: Any, cable: Cable) -> None:
    async def work() -> None:
        async with AsyncClient(cable.url) as client:
            _know_secret(client, shop)
            _written(client, shop, 2)
            asked = asyncio.create_task(client.view("income"))
            async with asyncio.timeout(60):
                while not shop.server._coverage.waiting:
                    await asyncio.sleep(0.005)
            await asyncio.to_thread(lambda: shop.tick(income=[("ann", "1.00")] * 2))
            assert (await asked).rows[0]["payments"] == 2
            _written(client, shop, 3, log="removed")
            with pytest.raises(RefusedError, match="another log"):
                await client.view("income")
            assert len(await client.view("income")) == 1

    asyncio.run(work())
