"""HTTP/1.1 itself, byte by byte over a socket: heads, bodies, order, limits and ends."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

NOTE = b'{"text":"x"}'
FEW = "connections_max = 3\nrequest_seconds_max = 1\n"


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory, shared_gateway: Any) -> Iterator[Any]:
    gateway = type(shared_gateway)(tmp_path_factory.mktemp("few") / "shop", FEW).start()
    gateway.client.close()
    yield gateway
    assert gateway.stop() == 0
    assert "Traceback" not in gateway.log_text()


def connect(gateway: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.port), timeout=20)


def post(body: bytes = NOTE, fields: str = "", stream: str = "notes") -> bytes:
    head = f"POST /v1/events?name={stream} HTTP/1.1\r\nHost: localhost\r\n{fields}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def read_answer(sock: socket.socket, rest: bytes = b"") -> tuple[int, dict[str, str], bytes, bytes]:
    """Status, fields and body of the next answer, and what came after it."""
    data = rest
    while b"\r\n\r\n" not in data:
        part = sock.recv(65_536)
        assert part, f"the connection ended after {data!r}"
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    line, *lines = head.decode().split("\r\n")
    fields = {name.lower(): value for name, value in (each.split(": ", 1) for each in lines)}
    length = int(fields.get("content-length", 0))
    while len(body) < length:
        part = sock.recv(65_536)
        assert part, "the body ended too early"
        body += part
    return int(line.split(" ")[1]), fields, body[:length], body[length:]


def is_ended(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def code_of(body: bytes) -> str:
    return str(json.loads(body)["code"])


def test_requests_in_a_row_are_answered_in_their_order(shared_gateway: Any) -> None:
    """Stored, refused and answered by others, all sent before the first answer is read."""
    kinds = [
        (post(), 200),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        (post(stream="nowhere"), 404),
        (post(b"{}" * 20_000), 200),
        (b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (post(fields="Content-Encoding: br\r\n"), 415),
    ] * 40
    before = shared_gateway.counts("notes")["received"]
    with connect(shared_gateway) as sock:
        sock.sendall(b"".join(request for request, _ in kinds[:60]))
        for request, _ in kinds[60:]:
            sock.sendall(request)
        rest = b""
        for number, (_, wanted) in enumerate(kinds):
            status, fields, _, rest = read_answer(sock, rest)
            assert status == wanted, number
            assert "connection" not in fields
        assert rest == b""
    assert shared_gateway.counts("notes")["received"] == before + 80


def test_thousands_of_refused_requests_in_one_piece(shared_gateway: Any) -> None:
    request = post(b"", stream="nowhere")
    with connect(shared_gateway) as sock:
        sock.sendall(request * 3_000)
        rest = b""
        for _ in range(3_000):
            status, _, _, rest = read_answer(sock, rest)
            assert status == 404


def test_a_request_that_comes_byte_by_byte(
    shared_gateway: Any, until_taken: Callable[..., None]
) -> None:
    before = len(shared_gateway.stored("notes"))
    with connect(shared_gateway) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for octet in post(fields="Idempotency-Key: byte-by-byte\r\n"):
            sock.sendall(bytes([octet]))
            until_taken(sock)
        assert read_answer(sock)[0] == 200
    assert len(shared_gateway.stored("notes")) == before + 1


MALFORMED = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00",
    "a space in a name": b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "two lengths": b"POST /v1/events?name=notes HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Length: 12\r\nContent-Length: 13\r\n\r\n" + NOTE,
    "length and chunks": b"POST /v1/events?name=notes HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Length: 12\r\nTransfer-Encoding: chunked\r\n\r\n" + NOTE,
    "an endless length": post().replace(b"Length: 12", b"Length: " + b"9" * 40),
    "an address that is not ASCII": b"GET /\xc3\xa4 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an upgrade with a body": post(fields="Connection: Upgrade\r\nUpgrade: h2c\r\n"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_what_is_not_a_request_is_refused_in_words(shared_gateway: Any, what: str) -> None:
    before = len(shared_gateway.stored("notes"))
    with connect(shared_gateway) as sock:
        sock.sendall(MALFORMED[what])
        status, fields, body, _ = read_answer(sock)
        assert (status, code_of(body)) == (400, "malformed-request")
        assert fields["connection"] == "close"
        assert is_ended(sock)
    assert len(shared_gateway.stored("notes")) == before


def test_what_came_before_a_malformed_request_is_answered(shared_gateway: Any) -> None:
    """What is durable must not go without its answer because of what follows."""
    last = post(fields="Connection: close\r\n")
    get = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    before = len(shared_gateway.stored("notes"))
    for sent, wanted in (
        (post() + post() + b"no request\r\n\r\n", [200, 200, 400]),
        (post() + post(fields="Transfer-Encoding: chunked\r\n"), [200, 400]),
        (post() + MALFORMED["an upgrade with a body"] + post(), [200, 400]),
        (last + b"no request\r\n\r\n", [200]),
        (last + get, [200]),
    ):
        with connect(shared_gateway) as sock:
            sock.sendall(sent)
            rest = b""
            for status in wanted:
                found, _, _, rest = read_answer(sock, rest)
                assert found == status
            assert rest == b""
            assert is_ended(sock)
    assert len(shared_gateway.stored("notes")) == before + 6


CHUNKED = b"HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
BROKEN = {
    "a bad chunk": (b"POST /v1/heartbeats " + CHUNKED, b"zz\r\n", 400),
    "a bad chunk at once": (b"", b"POST /v1/heartbeats " + CHUNKED + b"zz\r\n", 400),
    "a bad chunk that nobody wants": (b"GET /healthz " + CHUNKED, b"zz\r\n", 200),
    "an endless trailer": (b"POST /v1/heartbeats " + CHUNKED, b"0\r\nX: " + b"y" * 300_000, 431),
    "endless trailers": (b"POST /v1/heartbeats " + CHUNKED, b"0\r\n" + b"X:y\r\n" * 60_000, 431),
    "a coding that is not known": (
        b"",
        b"POST /v1/heartbeats " + CHUNKED.replace(b"chunked", b"gzip, chunked"),
        415,
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_body_is_refused_in_words(
    shared_gateway: Any, until_taken: Callable[..., None], what: str
) -> None:
    first, then, wanted = BROKEN[what]
    with connect(shared_gateway) as sock:
        sock.sendall(first)
        until_taken(sock)
        sock.sendall(then)
        status, fields, _, _ = read_answer(sock)
        assert (status, fields["connection"]) == (wanted, "close")


@pytest.mark.parametrize("is_ended_head", [True, False])
def test_a_head_has_a_bound(shared_gateway: Any, is_ended_head: bool) -> None:
    with connect(shared_gateway) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X: yyyyyyyy\r\n" * 6_000)
        sock.sendall(b"\r\n" if is_ended_head else b"Y: ")
        status, _, body, _ = read_answer(sock)
        assert (status, code_of(body)) == (431, "head-too-large")


def test_an_upgrade_is_not_taken_and_an_absolute_address_is(shared_gateway: Any) -> None:
    wish = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n"
    with connect(shared_gateway) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + wish + b"\r\n")
        assert read_answer(sock)[0] == 200
        sock.sendall(b"GET http://localhost/healthz HTTP/1.1\r\nHost: elsewhere\r\n\r\n")
        assert read_answer(sock)[0] == 200
        sock.sendall(b"GET http://elsewhere/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_answer(sock)[0] == 421


def test_hundreds_of_upgrades_in_one_piece(shared_gateway: Any) -> None:
    wish = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
    with connect(shared_gateway) as sock:
        sock.sendall(wish * 1_200)
        rest = b""
        for _ in range(1_200):
            status, _, _, rest = read_answer(sock, rest)
            assert status == 200


def test_old_clients_and_those_that_want_no_more_are_left(shared_gateway: Any) -> None:
    for request in (
        b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        post(fields="Connection: close\r\n"),
    ):
        with connect(shared_gateway) as sock:
            sock.sendall(request)
            status, fields, _, _ = read_answer(sock)
            assert (status, fields["connection"]) == (200, "close")
            assert is_ended(sock)


def test_who_says_that_nothing_more_comes_is_answered(shared_gateway: Any) -> None:
    with connect(shared_gateway) as sock:
        sock.sendall(post())
        sock.shutdown(socket.SHUT_WR)
        assert read_answer(sock)[0] == 200
        assert is_ended(sock)


def test_a_client_may_ask_before_it_sends_a_body(shared_gateway: Any) -> None:
    body = NOTE
    for stream, first in (("notes", 100), ("nowhere", 404)):
        head = post(body, "Expect: 100-continue\r\n", stream)[: -len(body)]
        with connect(shared_gateway) as sock:
            sock.sendall(head)
            status, _, _, rest = read_answer(sock)
            assert status == first
            if status == 100:
                sock.sendall(body)
                assert read_answer(sock, rest)[0] == 200


def test_a_refusal_is_seen_by_who_is_still_sending(shared_gateway: Any) -> None:
    body = b"x" * 30_000_000
    with connect(shared_gateway) as sock:
        sock.sendall(post(body, stream="nowhere"))
        status, fields, _, _ = read_answer(sock)
        assert (status, fields["connection"]) == (404, "close")


def test_too_many_connections_are_told_so(few: Any, until: Callable[..., None]) -> None:
    held = [connect(few) for _ in range(3)]
    for sock in held:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_answer(sock)[0] == 200
    with connect(few) as sock:
        status, fields, body, _ = read_answer(sock)
        assert (status, code_of(body)) == (503, "too-many-connections")
        assert fields["retry-after"] == "1"
    for sock in held:
        sock.close()

    def serves_again() -> bool:
        with connect(few) as sock:
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return read_answer(sock)[0] == 200

    until(serves_again)


@pytest.mark.parametrize(
    "begun", [b"POST /v1/ev", post()[:-5], post(stream="nowhere")[:-5]], ids=["head", "body", "no"]
)
def test_who_is_too_slow_does_not_stay(few: Any, begun: bytes) -> None:
    with connect(few) as sock:
        sock.sendall(begun)
        status, _, body, _ = read_answer(sock)
        wanted = "unknown-stream" if b"nowhere" in begun else "too-slow"
        assert code_of(body) == wanted, status
        assert is_ended(sock)
